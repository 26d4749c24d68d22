"""Rollouts that a run keeps: trajectories, log-probs and credit of an update, from which credit can be computed again.

``rollouts/step-000010/process-0.jsonl.gz`` holds the trajectories that credit was computed from, with the log-probs
that it read and the teacher's; ``process-0.json`` beside it which method computed it, with every option; and
``process-0.safetensors`` the credit, and signals that do not follow from the trajectories. Every process writes its
own, as rollouts of a task lie on one process and credit is computed there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..credit import Credit, CreditInputs, get_credit
from ..credit.records import fields_of
from ..credit.signals import list_signals
from ..rollout.io import load_trajectories, save_trajectories
from ..rollout.types import Trajectory
from .checkpoint import replace_text
from .packed import packed, same, unpacked

if TYPE_CHECKING:
    from .grpo import GRPOTrainer
    from .phase import PhaseResult

logger = logging.getLogger(__name__)

FORMAT, VERSION = "turncredit.rollouts", 1
_ENDING = ".jsonl.gz"


def save_rollouts(trainer: GRPOTrainer, trajectories: Sequence[Trajectory], result: PhaseResult) -> None:
    """Keep this process's rollouts where it is the update's turn; what cannot be written costs these files only."""
    every, update = trainer.config.save_rollouts, trainer.step + 1
    if not every or update % every:
        return
    process = trainer.accelerator.process_index
    root = trainer.folder / "rollouts"
    path = root / f"step-{update:06d}" / f"process-{process}{_ENDING}"
    about = {
        "format": FORMAT,
        "version": VERSION,
        "update": update,
        "step": trainer.step,
        "process": process,
        "processes": trainer.accelerator.num_processes,
        "method": trainer.method.name,
        "failed": [[t.task_id, t.rollout_index, t.failure] for t in trajectories if t.failure is not None],
    }
    try:
        write_rollouts(path, scored_trajectories(trainer.run), result, about)
        _prune(root, process, trainer.config.save_rollouts_limit)
    except (OSError, ValueError) as error:
        logger.warning("rollouts of update %d could not be saved: %s", update, error)


def scored_trajectories(run: Any) -> list[Trajectory]:
    """The batch's trajectories with the log-probs that credit read, and the teacher's where there are any."""
    teacher, row, scored = run.signals.get("teacher_logprobs"), 0, []
    for trajectory in run.batch.trajectories:
        turns = list(trajectory.turns)
        for place in range(trajectory.replayed, len(turns)):
            size = len(turns[place].response_ids)
            told = None if teacher is None else tuple(teacher[row, :size].float().tolist())
            own = tuple(run.student_logprobs[row, :size].float().tolist())
            turns[place] = replace(turns[place], logprobs=own, teacher_logprobs=told)
            row += 1
        scored.append(replace(trajectory, turns=tuple(turns)))
    return scored


def write_rollouts(path: Path, trajectories: list[Trajectory], result: PhaseResult, about: Mapping[str, Any]) -> None:
    """Write the three files, the trajectories last: where they are, the others are whole.

    Raises:
        OSError: one cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    known = {**about, "credit": None, "credit_options": {}, "signals": {}, "left_out": [], "not_saved": {}}
    credit, inputs, method = result.credit, result.inputs, result.method
    if credit is not None and inputs is not None and method is not None:
        tensors |= {"advantages": credit.advantages, "turn_weights": credit.turn_weights}
        if not same(result.rows.advantages, credit.advantages, inputs.response_mask):
            tensors["trained_advantages"] = result.rows.advantages
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        follows = fields_of(trajectories)
        given = {name: inputs.signal(name) for name in list_signals()}
        missing = [name for name, value in given.items() if value is None and follows.get(name) is not None]
        signals = {
            name: value
            for name, value in given.items()
            if value is not None and not same(value, follows.get(name), inputs.response_mask)
        }
        known |= {"credit": method.name, "left_out": missing}
        known["metrics"] = {name: float(value) for name, value in credit.metrics.items()}
        for key, values in (("credit_options", method.options), ("signals", signals)):
            for name, value in values.items():
                try:
                    known[key][name] = packed(value, f"{key}.{name}", tensors)
                except TypeError as error:
                    known["not_saved"][f"{key}.{name}"] = str(error)
    path.parent.mkdir(parents=True, exist_ok=True)
    _save_tensors(_beside(path, ".safetensors"), tensors)
    replace_text(_beside(path, ".json"), json.dumps(known, indent=1) + "\n")
    save_trajectories(trajectories, path)


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name.removesuffix(_ENDING) + ending)


def _prune(root: Path, process: int, limit: int | None) -> None:
    """Remove this process's oldest files beyond `limit` updates."""
    found = sorted(root.glob(f"step-*/process-{process}{_ENDING}"), key=lambda path: int(path.parent.name[5:]))
    for path in found[: -limit if limit else 0]:
        for file in path.parent.glob(f"*process-{process}.*"):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another process's files are there still
            path.parent.rmdir()


@dataclass(frozen=True)
class SavedRollouts:
    """What a process kept of an update; see `load_rollouts`.

    Args:
        trajectories: N, those that credit was computed from; failed ones stand in ``about["failed"]``.
        credit: what the method gave, or None where it gives no credit; its details are not saved.
        trained_advantages: ``[M, T]`` float, what the loss read: credit with the invalid-action residual.
        about: the update, its method and options, and metrics, as JSON has them.
        signals: those that do not follow from the trajectories, and None for what the method was not given.
        options: of the credit function, all of them.
    """

    trajectories: list[Trajectory]
    credit: Credit | None
    trained_advantages: Tensor | None
    about: Mapping[str, Any]
    signals: Mapping[str, Any] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    def inputs(self) -> CreditInputs:
        """The batch that the method read; `CreditInputs.from_trajectories` of the trajectories gives all they hold."""
        return CreditInputs.from_trajectories(self.trajectories, **self.signals)

    def recompute(self, **options: Any) -> Credit:
        """The method's credit once more, bit for bit; `options` in place of those that it ran with.

        Raises:
            ValueError: the run's method gives no credit, or an option or signal could not be saved; or its module has
                not been imported.
        """
        if self.about["credit"] is None:
            raise ValueError(
                f"SavedRollouts.recompute: method must give credit, got {self.about['method']!r}, which has none; "
                "choose a credit function and call it on inputs()"
            )
        unknown = [name for name in self.about["not_saved"] if name.partition(".")[2] not in options]
        if unknown:
            raise ValueError(
                f"SavedRollouts.recompute: {unknown[0]} must be known, but it could not be saved "
                f"({self.about['not_saved'][unknown[0]]}); make it again"
            )
        method = get_credit(self.about["credit"], **{**self.options, **options})
        return method(self.inputs(), step=self.about["step"])


def load_rollouts(path: str | os.PathLike[str]) -> SavedRollouts:
    """Read what a run with ``save_rollouts`` kept.

    Args:
        path: a process's file, ``rollouts/step-000010/process-0.jsonl.gz``, or the folder of an update of one process.

    Raises:
        FileNotFoundError: there is no such file, or not the two beside it.
        ValueError: a folder of several processes, or files that are foreign, damaged or of a newer version.
    """
    path = _only_file(Path(path))
    about = json.loads(_beside(path, ".json").read_text(encoding="utf-8"))
    if about.get("format") != FORMAT or about["version"] > VERSION:
        raise ValueError(
            f"load_rollouts: {_beside(path, '.json')} must be {FORMAT!r} of version {VERSION} or less, got "
            f"{about.get('format')!r} {about.get('version')!r}; update turncredit"
        )
    tensors = load_file(_beside(path, ".safetensors"))
    credit = None
    if about["credit"] is not None:
        credit = Credit(tensors["advantages"], tensors["turn_weights"], metrics=about["metrics"])
    signals = {name: unpacked(value, tensors) for name, value in about["signals"].items()}
    return SavedRollouts(
        trajectories=load_trajectories(path),
        credit=credit,
        trained_advantages=tensors.get("trained_advantages", tensors.get("advantages")),
        about=about,
        signals={**dict.fromkeys(about["left_out"]), **signals},
        options={name: unpacked(value, tensors) for name, value in about["credit_options"].items()},
    )


def _only_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob(f"process-*{_ENDING}"))
    if not found:
        raise FileNotFoundError(
            f"load_rollouts: path must be a process's file or the folder of an update, got {str(path)!r} without any; "
            "name rollouts/step-000010 of a run with save_rollouts"
        )
    if len(found) > 1:
        raise ValueError(
            f"load_rollouts: path must be the file of one process, got {len(found)} in {str(path)!r}; load each, "
            f"{found[0].name!r} first"
        )
    return found[0]
