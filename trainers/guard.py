"""What protects a long run: one run per output folder, SIGTERM answered with a checkpoint, old ones kept apart."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .checkpoint import list_checkpoints

logger = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM
"""143: what a process that ended on SIGTERM returns."""


class Terminated(BaseException):
    """SIGTERM arrived at a moment at which the weights are those of the last finished update."""


class TerminationGuard:
    """Turns SIGTERM into a request that the training loop answers.

    Args:
        immediate: raise `Terminated` at once inside `interruptible` blocks. With several processes the request waits
            for the end of the update instead, when all of them can save together.
    """

    def __init__(self, immediate: bool):
        self.requested = False
        self._immediate = immediate
        self._open = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen inside; the former handler comes back afterwards. Does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.signal(signal.SIGTERM, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, former)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, nothing that a checkpoint holds changes."""
        if self._immediate and self.requested:
            raise Terminated
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def _handle(self, *_: Any) -> None:
        first, self.requested = not self.requested, True
        if first:
            logger.warning("SIGTERM: a checkpoint is written, then the run ends with code %d", EXIT_CODE)
        if self._immediate and self._open:
            self._open = False
            raise Terminated


@contextlib.contextmanager
def output_folder_lock(folder: Path) -> Iterator[None]:
    """Hold a run's output folder; the lock goes with the process, however it ends.

    Raises:
        RuntimeError: another run holds it.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file: IO[str] = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - closed below
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip()
            raise RuntimeError(
                f"GRPOTrainer: output_dir must belong to one run at a time, got {str(folder)!r}, which process "
                f"{owner or 'unknown'} is writing to; choose another output_dir or wait for it"
            ) from None
        except OSError as error:
            logger.warning("the file system of %s has no locks (%s); nothing keeps a second run away", folder, error)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        file.close()


def set_aside(folder: Path) -> Path | None:
    """Rename a folder of earlier checkpoints, so that a fresh run cannot mix with them or resume from one of them."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    target = _unused(folder)
    folder.rename(target)
    logger.warning("earlier checkpoints in %s are now in %s", folder, target.name)
    return target


def set_later_aside(folder: Path, step: int) -> Path | None:
    """Move checkpoints of later updates away: a run that went on from an older one would not be resumed from here."""
    later = [path for path in list_checkpoints(folder) if int(path.name.rpartition("-")[2]) > step]
    if not later:
        return None
    target = _unused(folder)
    target.mkdir()
    for path in later:
        path.rename(target / path.name)
    logger.warning("checkpoints after update %d in %s are now in %s", step, folder, target.name)
    return target


def _unused(folder: Path) -> Path:
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target
