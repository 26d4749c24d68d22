"""Trackers beside ``metrics.jsonl``: Weights & Biases, Trackio, TensorBoard; one run of theirs per training run.

What ``report_to`` names may say where to: ``wandb:project/name/group``. The run's name there is kept in checkpoints and
in the output folder, so that a continued run goes on with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .config import GRPOConfig

TRACKERS = ("wandb", "tensorboard", "trackio")
PROJECT = "turncredit"
RUNS = "tracker_runs.json"
"""File in the output folder: the trackers' runs that a continued run goes on with."""

_SHORT_FORM = "write wandb:project/name/group, of which the later ones may be left out"
# runs of Weights & Biases that a training run of this process has logged to
_used: set[str] = set()


@dataclass(frozen=True)
class Target:
    """What an entry of ``report_to`` names: a tracker and, in it, a project, a run's name and a group, "" for none."""

    tracker: str
    project: str = ""
    name: str = ""
    group: str = ""

    @classmethod
    def of(cls, text: str) -> Target:
        """Read ``tracker`` or ``tracker:project/name/group``.

        Raises:
            ValueError: an unknown tracker, a place in TensorBoard, or more than three parts.
        """
        tracker, colon, place = text.partition(":")
        if tracker not in TRACKERS:
            raise ValueError(
                f'GRPOConfig: report_to must be "none", "all" or any of {TRACKERS}, got {[text]}; '
                "metrics.jsonl is always written and can be sent anywhere"
            )
        parts = [part.strip() for part in place.split("/")]
        if colon and (tracker == "tensorboard" or len(parts) > 3 or not any(parts)):
            fix = "TensorBoard has only its folder" if tracker == "tensorboard" else _SHORT_FORM
            raise ValueError(f"GRPOConfig: report_to must name a project, a run and a group, got {text!r}; {fix}")
        return cls(tracker, *parts)


class Tracker(Protocol):
    """An open run of a tracker."""

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an update."""
        ...

    def close(self, failed: bool) -> None:
        """End the run; `failed`: by an error."""
        ...


def trackers(report_to: Any) -> tuple[str, ...]:
    """The trackers that ``report_to`` names: None and ``"none"`` are none, ``"all"`` those that are installed.

    Raises:
        TypeError: neither a name nor a sequence of names.
        ValueError: an unknown name, one tracker twice, or ``"none"`` or ``"all"`` beside others.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f'GRPOConfig: report_to must be names of trackers, got {report_to!r}; write "wandb" or "none"')
    if names in ([], ["none"]):
        return ()
    if names == ["all"]:
        return tuple(name for name in TRACKERS if importlib.util.find_spec(name) is not None)
    names = list(dict.fromkeys(names))
    kinds = [Target.of(name).tracker for name in names]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"GRPOConfig: report_to must name a tracker once, got {names}; leave one of them out")
    return tuple(names)


def open_tracker(
    text: str, folder: Path, config: GRPOConfig, resume_step: int | None, runs: dict[str, dict[str, str]]
) -> Tracker:
    """The run of a tracker that an entry of ``report_to`` names.

    Args:
        text: the entry.
        folder: the output folder.
        config: logged once.
        resume_step: of a continued run its last update; None begins a new run.
        runs: what is known of the runs by tracker, and what is known afterwards.
    """
    target = Target.of(text)
    if target.tracker == "tensorboard":
        return _TensorBoard(folder, resume_step)
    known = {} if resume_step is None else runs.get(target.tracker, {})
    opened = {"wandb": _Wandb, "trackio": _Trackio}[target.tracker](target, folder, config, known)
    runs[target.tracker] = opened.place
    return opened


def read_runs(folder: Path) -> dict[str, dict[str, str]]:
    """The runs of trackers that an output folder names; none where it names none."""
    try:
        found = json.loads((folder / RUNS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class _Wandb:
    """A run of Weights & Biases.

    One that the user opened is used and left open, by one training run; with a place in ``report_to``, or for a second
    training run, one of our own is opened beside it.
    """

    def __init__(self, target: Target, folder: Path, config: GRPOConfig, known: Mapping[str, str]):
        import wandb

        opened: Any = getattr(wandb, "run", None)
        mark = "" if opened is None else str(getattr(opened, "id", id(opened)))
        placed = bool(target.project or target.name or target.group)
        self._own = opened is None or placed or (mark in _used and known.get("id") != mark)
        project = target.project or os.environ.get("WANDB_PROJECT") or PROJECT
        if not self._own:
            _used.add(mark)
            self._run: Any = opened
            self.place = {"id": mark, "project": str(getattr(opened, "project", "") or project)}
            return
        same = known.get("project", project) == project
        asked = os.environ.get("WANDB_RUN_ID")
        wished = None if asked in _used else asked
        name = (known.get("id") if same else None) or wished or uuid.uuid4().hex[:8]
        _used.add(name)
        place = {"name": target.name, "group": target.group}
        options: dict[str, Any] = {key: value for key, value in place.items() if value}
        if opened is not None:
            options["reinit"] = "create_new"
        self.place = {"id": name, "project": project}
        self._run = wandb.init(
            project=project, dir=str(folder), config=config.to_dict(), id=name, resume="allow", **options
        )

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        if self._own:
            self._run.finish(exit_code=int(failed))


class _Trackio:
    """A run of Trackio, in its local database unless the environment names a server."""

    def __init__(self, target: Target, folder: Path, config: GRPOConfig, known: Mapping[str, str]):
        try:
            import trackio
        except ImportError as error:
            raise ImportError(f"{error}; pip install 'turncredit[trackio]'") from error

        project = target.project or os.environ.get("TRACKIO_PROJECT") or PROJECT
        same = known.get("project", project) == project
        before = known.get("name") if same else None
        # a run's name is what it is continued by there
        name = before or "-".join(filter(None, (target.name or _plain(folder.name), uuid.uuid4().hex[:6])))
        self.place = {"name": name, "project": project}
        options: dict[str, Any] = {"group": target.group} if target.group else {}
        options |= {"resume": "allow" if before else "never", "embed": False}
        self._run: Any = trackio.init(project=project, name=name, config=_as_json(config.to_dict()), **options)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, folder: Path, resume_step: int | None):
        from torch.utils.tensorboard import SummaryWriter

        # events of updates that a resumed run makes again are hidden
        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


def _as_json(options: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(options, default=str))


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
