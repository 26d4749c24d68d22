"""The other side of `VectorEnv`: a process that owns some environments and answers one message at a time."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from .base import EnvFailure, Environment
from .results import checked_answer, shown


class EnvSlots:
    """Environments by slot, made on first use and reused; what one of them raises becomes an `EnvFailure`.

    An answer that is not what the protocol says becomes one too (see `checked_answer`).

    Args:
        make_env: called once per slot.
        caught: what an environment may raise without more harm than its episode.
    """

    def __init__(
        self, make_env: Callable[[], Environment], caught: tuple[type[BaseException], ...] = (Exception,)
    ) -> None:
        self._make_env = make_env
        self._caught = caught
        self._envs: dict[int, Environment] = {}

    def handle(self, kind: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Answer ``"reset"`` (task ids) or ``"step"`` (actions) requests, slot by slot in their order."""
        return {slot: self._answer(kind, slot, argument) for slot, argument in requests.items()}

    def _answer(self, kind: str, slot: int, argument: Any) -> Any:
        try:
            if slot not in self._envs:
                self._envs[slot] = self._make_env()
            env = self._envs[slot]
            return checked_answer(kind, env.reset(argument) if kind == "reset" else env.step(argument))
        except self._caught as error:
            self._discard(slot)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = error.args[0] if isinstance(error, KeyError) and error.args else error  # its str adds quotes
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            raised = f"raised {type(error).__name__} at {place}: {shown(text, 2000, plain=True)}"
            return EnvFailure("error", f"{kind} of {shown(argument)} {raised}")

    def _discard(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            try:
                env.close()
            except self._caught:
                return

    def close(self) -> None:
        """Close every environment."""
        for slot in list(self._envs):
            self._discard(slot)


def packed(replies: Mapping[int, Any]) -> dict[int, bytes]:
    """The replies pickled one by one, so that one which cannot be read at the other end costs its own slot alone."""
    return {slot: pickle.dumps(reply) for slot, reply in replies.items()}


def unpacked(replies: Mapping[int, bytes]) -> dict[int, Any]:
    """What `packed` was given, with a failure in place of each reply whose classes cannot be imported here."""
    return {slot: _read(data) for slot, data in replies.items()}


def _read(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        return EnvFailure(
            "bad_result", f"the environment's answer cannot be read here: {shown(error, plain=True)}; keep it plain"
        )


def resident_mb() -> float:
    """Memory this process holds, in MB; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError):
        return 0.0


def _leave_with_parent() -> None:
    """End this process at once when the parent is gone: its end of our standard input closes, however it died."""
    while os.read(0, 4096):
        continue
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve until the parent closes the connection.

    Args:
        descriptor: inherited file descriptor of the connection. The first message is the factory; every later one is
            (serial, kind, requests), answered by (serial, replies, resident MB).
    """
    # a signal to the whole process group is the parent's to answer; it ends its workers when it is done with them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # held back by `_launch` until now
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    connection = Connection(descriptor)
    try:
        script, payload = connection.recv()
        if script:
            from multiprocessing.spawn import import_main_path

            import_main_path(script)
        slots = EnvSlots(pickle.loads(payload), (Exception, SystemExit))
        while True:
            serial, kind, requests = connection.recv()
            if kind == "close":
                break
            connection.send((serial, packed(slots.handle(kind, requests)), resident_mb()))
        slots.close()
        gc.freeze()  # else the interpreter's end walks through all objects once more, a third of a second for games
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    finally:
        connection.close()
