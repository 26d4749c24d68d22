"""Trajectories as a data set to pass on: a folder that ``load_dataset`` reads, with its card."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..io import save_trajectories
from ..types import Trajectory
from .tables import to_dataset

TABLE = "turns.parquet"
EPISODES = "trajectories.jsonl.gz"
CARD = "README.md"

_MEANING = {
    "trajectory, turn": "which episode, and which of its turns",
    "task_id, task_type, group_id, rollout_index": "the task, the group of rollouts of it, the place in the group",
    "prompt_ids, response_ids, tokens": "token ids that the policy read and wrote, and how many it wrote",
    "text, thinking, action, observation": "the response, its thinking, the action parsed from it, what was observed",
    "valid": "whether the action could be taken",
    "reward, return, success": "of the turn, of the episode, success in [0, 1]",
    "stop_reason, failure": "how the episode ended, and of what it failed",
    "logprob, evidence": "sums over the turn's tokens, nats: log-prob; teacher minus student",
    "credit, weight": "mean advantage of its tokens and its turn weight, where they were computed",
}


def save_dataset(
    trajectories: Sequence[Trajectory], folder: str | os.PathLike[str], credit: Any = None, *, name: str | None = None
) -> Path:
    """Write trajectories as a data set: a table of turns, the exact episodes, and a data-set card.

    ``datasets.load_dataset(folder)`` gives the table of `to_dataset`; `load_trajectories` reads the file of episodes.

    Args:
        trajectories: at least one with a turn.
        folder: a new or an empty one; its name is the data set's unless `name` is given.
        credit: see `to_pandas`.
        name: the data set's title.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: there is no turn, or the credit is of other turns.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"save_dataset: folder must be new or empty, got {str(folder)!r} with files in it; choose another one"
        )
    table = to_dataset(trajectories, credit)
    card = dataset_card(trajectories, name or folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_parquet(str(folder / TABLE))
    save_trajectories(trajectories, folder / EPISODES)
    (folder / CARD).write_text(card, encoding="utf-8")
    return folder


def dataset_card(trajectories: Sequence[Trajectory], name: str) -> str:
    """The text of a ``README.md`` for a folder with `TABLE` and `EPISODES`, with the header that the hub reads.

    Args:
        trajectories: what the folder holds.
        name: the data set's title.
    """
    from huggingface_hub import DatasetCardData

    header = DatasetCardData(
        pretty_name=name,
        task_categories=["text-generation"],
        tags=["turncredit", "agent", "trajectories"],
        configs=[{"config_name": "default", "data_files": TABLE}],  # one kind of file is all that a folder may have
        ignore_metadata_errors=True,
    )
    kinds = Counter(trajectory.task_type for trajectory in trajectories)
    rows = "\n".join(
        f"| {kind} | {count} | {_success([t for t in trajectories if t.task_type == kind])} |"
        for kind, count in sorted(kinds.items())
    )
    failed = sum(trajectory.failure is not None for trajectory in trajectories)
    turns = sum(len(trajectory.turns) - trajectory.replayed for trajectory in trajectories)
    columns = "\n".join(f"| `{names}` | {meaning} |" for names, meaning in _MEANING.items())
    return (
        f"---\n{header.to_yaml()}\n---\n\n# {name}\n\n"
        f"{len(trajectories)} episodes of a language-model agent with {turns} turns on "
        f"{len({t.task_id for t in trajectories})} tasks; {failed} failed by their environment. Mean success "
        f"{_success(trajectories)} over the others. Written by turncredit.\n\n"
        f"| task type | episodes | mean success |\n|---|---|---|\n{rows}\n\n"
        "## How to load it\n\n"
        "```python\nfrom datasets import load_dataset\n\n"
        'turns = load_dataset("FOLDER", split="train")  # one row per turn\n\n'
        "from turncredit.rollout import load_trajectories\n\n"
        f'trajectories = load_trajectories("FOLDER/{EPISODES}")  # exactly what was saved\n```\n\n'
        "`FOLDER` is the folder of this file; `load_dataset` takes a name on the hub as well.\n\n"
        f"## Columns of the turns\n\n| column | meaning |\n|---|---|\n{columns}\n"
    )


def _success(trajectories: Sequence[Trajectory]) -> str:
    usable = [trajectory.success for trajectory in trajectories if trajectory.failure is None]
    return f"{sum(usable) / len(usable):.3f}" if usable else "-"
