"""What a `GRPOTrainer` is put together from, and the checks that come before."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..credit import CreditMethod, get_credit
from ..envs import Task, TaskSuite
from ..rollout._preflight import PreflightReport, RunParts, preflight_run
from ..rollout.collector import RolloutCollector
from .config import GRPOConfig
from .distributed import agree_max, zero_stage
from .recipes import Recipe
from .tryout import try_options

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


def make_credit(config: GRPOConfig, recipe: Recipe) -> CreditMethod:
    """The credit method with the recipe's options, then the configuration's; its invalid-action penalty is the run's.

    Raises:
        TypeError: an option that the method does not have.
        ValueError: an option out of range; see `try_options`.
    """
    options = {**recipe.credit_options, **config.credit_options}
    method = get_credit(recipe.credit, **options)
    if method.adds_residual and "invalid_penalty" not in options:
        options["invalid_penalty"] = config.invalid_action_penalty
    method = get_credit(recipe.credit, **options)
    try_options(method, config.num_generations)
    return method


def make_collector(
    config: GRPOConfig, accelerator: Any, model: Any, tokenizer: Any, suite: TaskSuite
) -> RolloutCollector:
    """The collector of one process, with as many environments as its share of the rollouts can use."""
    share = -(-config.num_tasks * config.num_generations // accelerator.num_processes)
    sharded = zero_stage(accelerator) == 3 and not config.ds3_gather_for_generation
    return RolloutCollector(
        model,
        tokenizer,
        suite,
        config.sampling,
        num_envs=min(config.num_envs, max(share, 1)),
        num_workers=config.num_workers,
        env_timeout=config.env_timeout,
        max_worker_rss_mb=config.max_worker_rss_mb,
        chat_template_kwargs=config.chat_template_kwargs,
        agree=functools.partial(agree_max, accelerator) if sharded else None,
    )


def check_tasks(config: GRPOConfig, train_tasks: Sequence[Task], eval_tasks: Sequence[Task]) -> None:
    """Raise a ValueError unless there are enough training tasks, each once, and the panel is held out."""
    if not train_tasks:
        raise ValueError("GRPOTrainer: train_tasks must not be empty; check the suite's data folder and split names")
    if len(train_tasks) < config.num_tasks:
        raise ValueError(
            f"GRPOTrainer: train_tasks must hold at least num_tasks = {config.num_tasks}, got "
            f"{len(train_tasks)}; lower num_tasks or provide more tasks"
        )
    for name, tasks in (("train_tasks", train_tasks), ("eval_tasks", eval_tasks)):
        double = sorted(task_id for task_id, times in Counter(task.id for task in tasks).items() if times > 1)
        if double:
            raise ValueError(
                f"GRPOTrainer: {name} must have ids that are unique, got {len(double)} more than once, such as "
                f"{double[0]!r}; a task's id seeds its rollouts and finds its context: give every task its own"
            )
    shared = {task.id for task in train_tasks} & {task.id for task in eval_tasks}
    if shared:
        raise ValueError(
            f"GRPOTrainer: eval_tasks must not overlap train_tasks, got {len(shared)} in both, "
            f"such as {min(shared)!r}; the evaluation panel must be held out"
        )


def check_processes(config: GRPOConfig, accelerator: Any) -> None:
    """Raise unless the run has the processes it was launched for, and a task for each.

    Raises:
        RuntimeError: launched for several processes but running as one.
        ValueError: fewer tasks in an update than processes.
    """
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    if asked != accelerator.num_processes:
        raise RuntimeError(
            f"GRPOTrainer: the script was launched for {asked} processes but runs as "
            f"{accelerator.num_processes}; see docs/scaling.md for launch commands that work"
        )
    if accelerator.num_processes > config.num_tasks:
        raise ValueError(
            f"GRPOTrainer: num_tasks must be at least one per process, got {config.num_tasks} for "
            f"{accelerator.num_processes} processes"
        )


def run_preflight(trainer: GRPOTrainer) -> PreflightReport | None:
    """Compare what the run samples, scores and trains with the model itself, and log one line; None where it is off.

    Raises:
        ValueError: what would train wrongly, by class, figures and fix.
    """
    config, accelerator, policy = trainer.config, trainer.accelerator, trainer.policy
    if not config.preflight:
        logger.warning("preflight is off: nothing says that sampling, scoring and training agree")
        return None
    sharded = zero_stage(accelerator) == 3
    scorer: Any = accelerator.unwrap_model(policy.scorer)
    report = preflight_run(
        RunParts(
            scorer=scorer,
            tokenizer=trainer.tokenizer,
            suite=trainer.suite,
            sampling=config.sampling,
            chat_template_kwargs=config.chat_template_kwargs,
            task=trainer.train_tasks[0],
            teacher_length=config.teacher_max_completion_length,
            scoring=policy.scoring,
            reference=policy.reference,
            own_reference=not policy.given,
            generation=trainer._generation,
            agree=functools.partial(agree_max, accelerator) if sharded else None,
            masters=zero_stage(accelerator) > 0,
        )
    )
    if accelerator.is_main_process:
        logger.info(report.summary())
    report.raise_if_refused()
    return report
