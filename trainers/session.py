"""From the output folder to the last line: what surrounds the updates of one call of `GRPOTrainer.train`."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from .guard import Terminated, check_folder, keep_later_records, output_folder_lock, set_aside, unused
from .life import save_on_the_way_out
from .loggers import MetricsLogger
from .model_files import BEST, best_step
from .monitor import Monitor

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


def run_session(trainer: GRPOTrainer, resume_from: str | bool | None, allow_changed_config: bool) -> dict[str, float]:
    """Resume where that is asked for, run the updates, and leave a checkpoint behind however it ends; collective.

    Args:
        trainer: whose run it is.
        resume_from, allow_changed_config: see `GRPOTrainer.train`.

    Returns:
        The last evaluation's metrics.
    """
    main = trainer.accelerator.is_main_process
    check_folder(trainer.accelerator, trainer.folder)
    with trainer.guard.installed(), output_folder_lock(trainer.folder) if main else contextlib.nullcontext():
        if resume_from:
            trainer.resume(resume_from, allow_changed_config=allow_changed_config)
        if is_fresh(trainer):
            trainer.evaluation, trainer.tracker_runs = None, {}
        claim_folder(trainer)
        log = _open_log(trainer)
        trainer.monitor = Monitor(trainer, [] if log is None else log.kept) if main else None
        ended = False
        try:
            evaluation = trainer.run_updates(log)
            ended = True
            return evaluation
        except Terminated:
            if trainer.saved_step != trainer.step and not trainer.torn:
                trainer.save()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            save_on_the_way_out(trainer, error)
            raise
        finally:
            if trainer.monitor is not None:
                trainer.monitor.close()
                trainer.monitor = None
            if log is not None:
                log.close(failed=not ended)
        if main:
            logger.warning(_how_to_go_on(trainer))
        raise trainer.guard.exit(trainer.guard.number)


def claim_folder(trainer: GRPOTrainer) -> None:
    """Before this run writes: what another one left in the output folder is kept under a number; collective.

    `GRPOTrainer.train` calls it, and `train_step` and `save` where they are called by hand.
    """
    trainer.claimed = True
    if trainer.accelerator.is_main_process:
        if trainer.came_from_elsewhere or is_fresh(trainer):
            set_aside(trainer.folder)
        elif trainer.resumed:
            keep_later_records(trainer.folder, trainer.step)
            best = trainer.folder / BEST
            if (best_step(best) or 0) > trainer.step:  # of an update that is made again
                best.rename(unused(best))
    trainer.came_from_elsewhere = False
    trainer.accelerator.wait_for_everyone()


def is_fresh(trainer: GRPOTrainer) -> bool:
    """Whether nothing of this run was made yet, here or in a checkpoint that it goes on from."""
    return trainer.step == 0 and not trainer.resumed


def _open_log(trainer: GRPOTrainer) -> MetricsLogger | None:
    if not trainer.accelerator.is_main_process:
        return None
    # the line of an update whose evaluation is missing is written again
    pending = trainer.update_metrics is not None and trainer.evaluation_due and trainer.evaluation is None
    resume_step = None if is_fresh(trainer) else trainer.step - int(pending)
    return MetricsLogger(trainer.folder, trainer.config.report_to, trainer.config, resume_step, trainer.tracker_runs)


def _how_to_go_on(trainer: GRPOTrainer) -> str:
    place = f"stopped after update {trainer.step} of {trainer.config.max_steps}"
    if trainer.saved_step == trainer.step:
        saved = f"{place}, which is saved in {trainer.folder}"
    elif trainer.saved_step >= 0:
        saved = f"{place}; the newest checkpoint in {trainer.folder} is of update {trainer.saved_step}"
    else:
        saved = f"{place}, without a checkpoint of this session in {trainer.folder}"
    return f"{saved}; go on with --resume, or train(resume_from=True)"
