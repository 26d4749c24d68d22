"""The other side of `VectorEnv`: a process that owns some environments and answers one message at a time."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from .base import EnvFailure, Environment


class EnvSlots:
    """Environments by slot, made on first use and reused; what one of them raises becomes an `EnvFailure`.

    Args:
        make_env: called once per slot.
    """

    def __init__(self, make_env: Callable[[], Environment]) -> None:
        self._make_env = make_env
        self._envs: dict[int, Environment] = {}

    def handle(self, kind: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Answer ``"reset"`` (task ids) or ``"step"`` (actions) requests, slot by slot in their order."""
        return {slot: self._answer(kind, slot, argument) for slot, argument in requests.items()}

    def _answer(self, kind: str, slot: int, argument: Any) -> Any:
        try:
            if slot not in self._envs:
                self._envs[slot] = self._make_env()
            env = self._envs[slot]
            return env.reset(argument) if kind == "reset" else env.step(argument)
        except Exception as error:
            self._discard(slot)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            asked = repr(argument)[:200]
            return EnvFailure("error", f"{kind} of {asked} raised {type(error).__name__} at {place}: {text}")

    def _discard(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            try:
                env.close()
            except Exception:
                return

    def close(self) -> None:
        """Close every environment."""
        for slot in list(self._envs):
            self._discard(slot)


def _sendable(replies: dict[int, Any]) -> dict[int, Any]:
    """The replies, with a failure in place of each that cannot be pickled."""
    try:
        pickle.dumps(replies)
        return replies
    except Exception:
        return {slot: _checked(reply) for slot, reply in replies.items()}


def _checked(reply: Any) -> Any:
    try:
        pickle.dumps(reply)
        return reply
    except Exception as error:
        return EnvFailure("error", f"the environment's answer cannot be pickled: {error}; keep info plain")


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
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    connection = Connection(descriptor)
    try:
        script, payload = connection.recv()
        if script:
            from multiprocessing.spawn import import_main_path

            import_main_path(script)
        slots = EnvSlots(pickle.loads(payload))
        while True:
            serial, kind, requests = connection.recv()
            if kind == "close":
                break
            connection.send((serial, _sendable(slots.handle(kind, requests)), resident_mb()))
        slots.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    finally:
        connection.close()
