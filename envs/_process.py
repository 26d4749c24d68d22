"""A worker process as `VectorEnv` sees it: started, spoken to, waited for, ended."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from ._worker import EnvSlots, unpacked
from .base import Environment

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(int(sys.argv[2]))"


class WorkerProcess:
    """One worker process and the connection to it, started at a reset and again after its end."""

    def __init__(self, job: tuple[str, bytes]) -> None:
        self._job = job
        self._live: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._serial = 0
        self.starts = 0
        self.rss_mb = 0.0

    @property
    def pid(self) -> int | None:
        return self._live[0].pid if self._live else None

    @property
    def has_died(self) -> bool:
        # an idle worker says nothing: something to read is the end of its connection, which can come before its status
        return self._live is not None and (self._live[0].poll() is not None or self._live[1].poll(0))

    def send(self, kind: str, requests: Mapping[int, Any]) -> Connection | None:
        """Send a request; None when the process is gone. A reset starts a process where none runs."""
        try:
            if self._live is None:
                if kind != "reset":
                    return None
                self._live = _launch()
                self.starts += 1
                self.rss_mb = 0.0
                self._live[1].send(self._job)
            self._serial += 1
            self._live[1].send((self._serial, kind, requests))
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self._live[1]

    def receive(self) -> dict[int, Any] | None:
        """The replies that have arrived, or None when the process ended instead."""
        if self._live is None:
            return None
        try:
            serial, replies, self.rss_mb = self._live[1].recv()
        except (EOFError, OSError):
            return None
        return unpacked(replies) if serial == self._serial else None

    def ask_to_leave(self) -> None:
        """Tell the process to close its environments and end; `stop` then waits for it."""
        if self._live is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._live[1].send((0, "close", {}))

    def stop(self, patience: float) -> None:
        """End the process, at once where it does not leave within `patience` seconds, and free what it held here."""
        if self._live is None:
            return
        process, connection = self._live
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        connection.close()
        self._live = None


def _launch() -> tuple[subprocess.Popen[bytes], Connection]:
    """A fresh interpreter that serves `_worker.main`, and our end of the connection.

    Its standard input is a pipe from here that carries nothing: it closes when this process ends. SIGINT and SIGTERM
    are held back while the child starts, until it ignores them.
    """
    ours, theirs = multiprocessing.Pipe()
    boot = _BOOT.format(module=EnvSlots.__module__)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", boot, json.dumps(sys.path), str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return process, ours  # type: ignore[return-value]


def factory_message(make_env: Callable[[], Environment]) -> tuple[str, bytes]:
    """What a worker is told first: a script to import or "", and the pickled factory.

    Raises:
        ValueError: a fresh interpreter could not find the factory.
    """
    try:
        payload = pickle.dumps(make_env)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"VectorEnv: make_env must be picklable, got {make_env!r} ({error}); "
            "use a function or class of a module, functools.partial of one, or num_workers=0"
        ) from error
    if b"__main__" not in payload:
        return "", payload
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise ValueError(
            f"VectorEnv: make_env must be importable in a worker, got {make_env!r}, which an interactive session "
            "defines; put it into a module or use num_workers=0"
        )
    return os.path.abspath(script), payload
