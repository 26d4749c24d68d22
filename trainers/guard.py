"""What protects a long run: one run per output folder, signals answered with a checkpoint, old ones kept apart."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from accelerate import Accelerator

from .checkpoint import list_checkpoints
from .distributed import agree_max

logger = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM
"""143: what a process that ended on SIGTERM returns."""


class Terminated(BaseException):
    """SIGTERM or Ctrl-C arrived at a moment at which the weights are those of the last finished update."""


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ends a run after Ctrl-C with code 130 and without a traceback; ``except KeyboardInterrupt`` sees it."""


class TerminationGuard:
    """Turns SIGTERM and Ctrl-C (SIGINT) into a request that the training loop answers.

    In one process a second Ctrl-C, a second or more after the first, is a KeyboardInterrupt at once. With several
    processes it is the launcher's to end them.

    Args:
        immediate: raise `Terminated` at once inside `interruptible` blocks. With several processes the request waits
            for the end of the update instead, when all of them can save together.
        says: log that the request was heard; of several processes one does.
    """

    def __init__(self, immediate: bool, says: bool = True):
        self.requested = False
        self.number = signal.SIGTERM
        self._immediate = immediate
        self._says = says
        self._open = False
        self._heard = 0.0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen inside; the former handlers come back afterwards. Does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.requested = False
        # one that is ignored, as under nohup, stays so
        heard = [number for number in _HEARD if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        former = {number: signal.signal(number, self._handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

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

    def exit(self, number: int) -> SystemExit:
        """What ends the process after a signal, with 128 + its number as its code."""
        return Interrupted(128 + number) if number == signal.SIGINT else SystemExit(128 + number)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        now = time.monotonic()
        if first:
            self.number, self._heard = signal.Signals(signum), now
            if self._says:
                logger.warning(_HEARD[self.number] + (_AGAIN if self._immediate and signum == signal.SIGINT else ""))
        # a launcher sends its processes the Ctrl-C that they got from the terminal already
        elif self._immediate and signum == signal.SIGINT == self.number and now - self._heard > _SAME_SECONDS:
            raise KeyboardInterrupt
        if self._immediate and self._open:
            self._open = False
            raise Terminated


_HEARD = {
    signal.SIGTERM: f"SIGTERM: a checkpoint is written, then the run ends with code {EXIT_CODE}",
    signal.SIGINT: "Ctrl-C: every finished update is saved, then the run ends",
}
_AGAIN = "; once more ends it at once"
_SAME_SECONDS = 1.0


def check_folder(accelerator: Accelerator, folder: Path) -> None:
    """Raise unless process 0 can write into a run's output folder; collective.

    Raises:
        OSError: it cannot be made or written to; every process raises.
    """
    failure: OSError | None = None
    if accelerator.is_main_process:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
            if not (folder / "checkpoints").is_dir() and (folder / "checkpoints").exists():
                raise NotADirectoryError(f"{folder / 'checkpoints'} is no folder")
        except OSError as error:
            failure = error
    if agree_max(accelerator, [int(failure is not None)])[0]:
        raise OSError(
            f"GRPOTrainer: output_dir must be a folder that can be written to, got {str(folder)!r} "
            f"({failure or 'on process 0'}); choose another output_dir"
        ) from failure


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


RUN_FILES = (
    "checkpoints",
    "metrics.jsonl",
    "completions",
    "rollouts",
    "tensorboard",
    "tracker_runs.json",
    "best",
    "eval_trajectories.jsonl.gz",
    "learning_curve.png",
    "failed-update-*.jsonl.gz",
)
"""What a run leaves in its output folder, as patterns."""


def set_aside(folder: Path) -> int | None:
    """Rename what an earlier run left in its output folder, so that a fresh run neither mixes with nor overwrites it.

    ``metrics.jsonl`` becomes ``metrics.1.jsonl``, ``checkpoints`` becomes ``checkpoints.1`` and so on, everything with
    the first number that is free for all of it. Files of other names are left alone.

    Returns:
        The number, or None where there was nothing.
    """
    found = [path for pattern in RUN_FILES for path in sorted(folder.glob(pattern)) if _belongs_to_the_last_run(path)]
    if not found:
        return None
    number = 1
    while any(numbered(path, number).exists() for path in found):
        number += 1
    for path in found:
        path.rename(numbered(path, number))
    logger.warning(
        "an earlier run's files in %s are now %s", folder, ", ".join(numbered(path, number).name for path in found)
    )
    return number


def numbered(path: Path, number: int) -> Path:
    """The path with a number before its endings: ``metrics.1.jsonl``."""
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}.{number}{dot}{endings}")


def _belongs_to_the_last_run(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.stat().st_size > 0 and not re.search(r"-process-\d+\.\d+\.", path.name)


def set_later_aside(folder: Path, step: int) -> Path | None:
    """Move checkpoints of later updates away: a run that went on from an older one would not be resumed from here."""
    later = [path for path in list_checkpoints(folder) if int(path.name.rpartition("-")[2]) > step]
    if not later:
        return None
    target = unused(folder)
    target.mkdir()
    for path in later:
        path.rename(target / path.name)
    logger.warning("checkpoints after update %d in %s are now in %s", step, folder, target.name)
    return target


def keep_later_records(folder: Path, step: int) -> None:
    """Before a run goes on from an older checkpoint: keep its log, and what later updates wrote, under a number."""
    if not any(int(path.name.rpartition("-")[2]) > step for path in list_checkpoints(folder / "checkpoints")):
        return
    log = folder / "metrics.jsonl"
    if log.is_file():
        target = unused(log)
        shutil.copy2(log, target)
        logger.warning("the log with its lines after update %d is kept as %s", step, target.name)
    for records, pattern in ((folder / "completions", "step-*.txt"), (folder / "rollouts", "step-*")):
        later = [path for path in records.glob(pattern) if int(path.stem.rpartition("-")[2]) > step]
        if later:
            target = unused(records)
            target.mkdir()
            for path in later:
                path.rename(target / path.name)


def unused(folder: Path) -> Path:
    """The path with the first number that is free."""
    number = 1
    while (target := numbered(folder, number)).exists():
        number += 1
    return target
