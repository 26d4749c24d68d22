"""What is tried before the first update: tasks, processes, sampling and scoring, and what a checkpoint will hold."""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..envs import Task
from ..rollout._preflight import PreflightReport, RunParts, preflight_run
from .checkpoint import Stateful, read_part, write_part
from .config import GRPOConfig
from .distributed import agree_max, zero_stage
from .identity import is_adapted
from .readback import warn_where_it_reads_back_otherwise

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


def check_saveable(model: Any, tokenizer: Any, state: Any, parts: Mapping[str, Stateful] | None = None) -> None:
    """Write everything of a checkpoint but weights into a temporary folder; warn of a tokenizer that reads otherwise.

    Args:
        model: the bare policy.
        tokenizer: its tokenizer.
        state: what ``trainer_state.json`` will hold.
        parts: states of the method's own.

    Raises:
        ValueError: something could not be saved; the message names it and the fix.
    """
    fixes = {
        "generation_config": (
            "repair it, for instance model.generation_config.do_sample = True where a temperature is set, or replace "
            "it by transformers.GenerationConfig() (training does not read it)"
        ),
        "config": "remove the entry of model.config that is no plain value",
        "peft_config": "remove the entry of the adapter's configuration that is no plain value",
        "tokenizer": "load it with AutoTokenizer.from_pretrained, or mend its save_pretrained",
        "trainer state": "use plain values in the configuration",
        **{f"state {part!r} of the method": "let state_dict return tensors and plain values" for part in parts or {}},
    }
    with tempfile.TemporaryDirectory() as name:
        for part, save in _parts(model, tokenizer, state, parts or {}):
            try:
                save(Path(name))
            except Exception as error:
                raise ValueError(
                    f"GRPOTrainer: {part} must be something that can be saved, got {type(error).__name__}: "
                    f"{' '.join(str(error).split())}; {fixes[part]}"
                ) from error
        warn_where_it_reads_back_otherwise(tokenizer, Path(name))
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not is_adapted(model) and not quantizer.is_serializable():
        raise ValueError(
            f"GRPOTrainer: model must be something that can be saved, got weights quantised by "
            f"{type(quantizer).__name__}; load it without quantisation, or train an adapter (peft_config)"
        )


def _parts(model: Any, tokenizer: Any, state: Any, parts: Mapping[str, Stateful]) -> Iterator[tuple[str, Any]]:
    if is_adapted(model):
        for adapter in getattr(model, "peft_config", {}).values():
            yield "peft_config", adapter.save_pretrained
    elif hasattr(model.config, "save_pretrained"):
        yield "config", model.config.save_pretrained
        generates = getattr(model, "can_generate", lambda: True)()
        if generates and getattr(model, "generation_config", None) is not None:
            yield "generation_config", model.generation_config.save_pretrained
    yield "tokenizer", tokenizer.save_pretrained
    yield "trainer state", lambda folder: (folder / "trainer_state.json").write_text(json.dumps(state))
    for name, part in parts.items():
        yield f"state {name!r} of the method", functools.partial(_write_and_read, name, part)


def _write_and_read(name: str, part: Stateful, folder: Path) -> None:
    write_part(folder, name, part.state_dict())
    read_part(folder, name)


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
    if 0 < len(eval_tasks) < config.num_eval_tasks:
        logger.warning("num_eval_tasks is %d, but only %d tasks are held out", config.num_eval_tasks, len(eval_tasks))


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
            teacher_length=trainer.method.options.get("teacher_max_completion_length"),
            scoring=policy.scoring,
            reference=policy.reference,
            own_reference=not policy.given,
            generation=trainer.generation,
            agree=functools.partial(agree_max, accelerator) if sharded else None,
            masters=zero_stage(accelerator) > 0,
        )
    )
    if accelerator.is_main_process:
        logger.info(report.summary())
    report.raise_if_refused()
    return report
