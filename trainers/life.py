"""What follows an update, in an order in which no error loses it: checkpoint, evaluation, callbacks, log line."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelerate import Accelerator

from .budget import is_over
from .distributed import agree_max
from .guard import Terminated
from .loggers import MetricsLogger
from .model_files import keep_best
from .resume import save_run

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


class OtherProcessFailed(RuntimeError):
    """Raised here because another process raised, at a place where all of them stop together."""


@contextlib.contextmanager
def together(accelerator: Accelerator, shared: list[BaseException]) -> Iterator[None]:
    """An error of one process inside ends all processes here, so that none waits for the others; collective at the end.

    Args:
        accelerator: the processes.
        shared: gets the error that this process raises, as a sign that all raise one.

    Raises:
        OtherProcessFailed: only another process raised.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if agree_max(accelerator, [int(failure is not None)])[0]:
        failure = failure or OtherProcessFailed("GRPOTrainer: another process failed; its own output says why")
        shared.append(failure)
        raise failure


def evaluation_due(trainer: GRPOTrainer) -> bool:
    """Whether the panel is played after the update just made."""
    config, step = trainer.config, trainer.step
    every = bool(config.eval_steps) and step % config.eval_steps == 0
    return step == 0 or is_over(trainer) or every


def is_finished(trainer: GRPOTrainer, log: MetricsLogger | None) -> bool:
    """Whether everything that follows `trainer.step` updates was done before; collective, equal on every process.

    It was not before the first update, and not where a run was killed between a checkpoint and its evaluation or line.
    """
    if trainer.update_metrics is None:  # a checkpoint of a version that did not say
        return True
    line_missing = log is not None and not log.has(trainer.step)
    return not agree_max(trainer.accelerator, [int(line_missing)])[0]


def finish_update(trainer: GRPOTrainer, log: MetricsLogger | None) -> None:
    """Evaluate where it is due, call `on_step_end`, and write the line of the update, whatever of it there is.

    Raises:
        Terminated: SIGTERM or Ctrl-C arrived meanwhile.
    """
    line = dict(trainer.update_metrics or {})
    if trainer.step:
        line["train/failed_saves"] = float(trainer.failed_saves)
    try:
        with together(trainer.accelerator, trainer.shared_errors):
            if trainer.evaluation_due and trainer.evaluation is None:
                trainer.evaluate()
            if trainer.evaluation_due:
                keep_best(trainer)
            if trainer.step:
                line |= (trainer.evaluation or {}) if trainer.evaluation_due else {}
                for callback in trainer.callbacks:
                    callback.on_step_end(trainer, line)
    finally:
        if trainer.evaluation_due:
            line |= trainer.evaluation or {}
        if log is not None:
            log.log(trainer.step, line)
        if trainer.monitor is not None:
            trainer.monitor.after_update(trainer, line)
    guard = trainer.guard
    if number := agree_max(trainer.accelerator, [int(guard.requested) * guard.number])[0]:
        guard.number = signal.Signals(number)  # all end with one code, whoever heard of it
        raise Terminated


def save_or_go_on(trainer: GRPOTrainer, last: bool) -> None:
    """A checkpoint that cannot be written costs itself and not the run, unless it is the last one."""
    try:
        root = save_run(trainer)
    except OSError as error:
        trainer.failed_saves += 1
        if last:
            raise
        logger.error("the checkpoint of update %d could not be written: %s", trainer.step, error)
        return
    trainer.announce_save(root)


def save_on_the_way_out(trainer: GRPOTrainer, error: BaseException) -> None:
    """Before an error ends the run: a checkpoint of the last finished update, unless there is one.

    None is written where the weights are not those of a finished update (an optimiser step of the next one was taken,
    a lagging teacher is in their place), nor with several processes where only some of them failed: saving is a
    collective call, which the failed ones would never make.
    """
    if not trainer.step or trainer.saved_step == trainer.step:
        return
    alone = trainer.accelerator.num_processes == 1
    if trainer.torn or not (alone or any(error is shared for shared in trainer.shared_errors)):
        logger.error("update %d is in no checkpoint; --resume goes on from the last one", trainer.step)
        return
    try:
        save_run(trainer)
        logger.error("after an error the state of update %d was saved; --resume goes on from there", trainer.step)
    except Exception as failure:
        logger.error("after an error the state of update %d could not be saved: %s", trainer.step, failure)
