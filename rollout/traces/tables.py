"""Trajectories as tables of one row per turn: pandas frames, `datasets.Dataset`, parquet through either."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..types import Trajectory, Turn

if TYPE_CHECKING:
    import datasets
    import pandas


def to_pandas(trajectories: Iterable[Trajectory], credit: Any = None) -> pandas.DataFrame:
    """A frame of one row per turn: task, group, ids, text, action, reward, and what `credit` says of it.

    Args:
        trajectories: any, sampled or imported. Turns that were replayed from another record have no row.
        credit: the `Credit` of a batch that ``CreditInputs.from_trajectories`` made of them, or None.

    Returns:
        Columns ``trajectory, turn, task_id, task_type, group_id, rollout_index, prompt_ids, response_ids, text,
        thinking, action, observation, valid, reward, return, success, stop_reason, failure, tokens, logprob, evidence,
        credit, weight``. ``logprob`` and ``evidence`` are sums over the turn's tokens, nats: of the log-probs, and of
        teacher minus student (missing without a teacher). ``credit`` is the mean advantage of its tokens, ``weight``
        its turn weight (missing without `credit`).

    Raises:
        ImportError: pandas is not installed.
        ValueError: the credit is of other turns.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"to_pandas: pandas must be installed, got {error}; pip install 'turncredit[pandas]', or use to_dataset"
        ) from error
    return pandas.DataFrame(rows_of(trajectories, credit), columns=list(COLUMNS))


def to_dataset(trajectories: Iterable[Trajectory], credit: Any = None) -> datasets.Dataset:
    """The table of `to_pandas` as a `datasets.Dataset`; its ``to_parquet`` and ``to_json`` write it.

    Raises:
        ValueError: there is no turn, or the credit is of other turns.
    """
    import datasets

    rows = rows_of(trajectories, credit)
    if not rows:
        raise ValueError("to_dataset: trajectories must have turns, got none; there is nothing to write")
    return datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in COLUMNS}, features=_features())


_KINDS = {
    "int64": ("trajectory", "turn", "group_id", "rollout_index", "tokens"),
    "string": ("task_id", "task_type", "text", "thinking", "action", "observation", "stop_reason", "failure"),
    "float64": ("reward", "return", "success", "logprob", "evidence", "credit", "weight"),
    "bool": ("valid",),
}
COLUMNS = (
    *("trajectory", "turn", "task_id", "task_type", "group_id", "rollout_index", "prompt_ids", "response_ids", "text"),
    *("thinking", "action", "observation", "valid", "reward", "return", "success", "stop_reason", "failure", "tokens"),
    *("logprob", "evidence", "credit", "weight"),
)


def _features() -> Any:
    from datasets import Features, List, Value

    kinds = {name: Value(kind) for kind, names in _KINDS.items() for name in names}
    return Features({name: kinds.get(name) or List(Value("int64")) for name in COLUMNS})


def rows_of(trajectories: Iterable[Trajectory], credit: Any = None) -> list[dict[str, Any]]:
    """One dict per turn, with `COLUMNS` as keys; see `to_pandas`.

    Raises:
        ValueError: the credit is of other turns.
    """
    placed = [(n, t, k) for n, t in enumerate(trajectories) for k in range(t.replayed, len(t.turns))]
    turns = [trajectory.turns[place] for _, trajectory, place in placed]
    given = _credit(turns, credit)
    return [
        {**_row(number, trajectory, place), "credit": value, "weight": weight}
        for (number, trajectory, place), (value, weight) in zip(placed, given, strict=True)
    ]


def _row(number: int, trajectory: Trajectory, place: int) -> dict[str, Any]:
    turn, teacher = trajectory.turns[place], trajectory.turns[place].teacher_logprobs
    scored = sum(turn.logprobs) if turn.tokenized else None
    return {
        "trajectory": number,
        "turn": place - trajectory.replayed,
        "task_id": trajectory.task_id,
        "task_type": trajectory.task_type,
        "group_id": trajectory.group_id,
        "rollout_index": trajectory.rollout_index,
        "prompt_ids": list(turn.prompt_ids),
        "response_ids": list(turn.response_ids),
        "text": turn.response,
        "thinking": turn.thinking,
        "action": turn.action,
        "observation": turn.observation,
        "valid": turn.valid,
        "reward": turn.reward,
        "return": trajectory.reward,
        "success": trajectory.success,
        "stop_reason": trajectory.stop_reason.value,
        "failure": trajectory.failure,
        "tokens": len(turn.response_ids),
        "logprob": scored,
        "evidence": None if teacher is None else math.fsum((*teacher, *(-x for x in turn.logprobs))),
    }


def _credit(turns: Sequence[Turn], credit: Any) -> Sequence[tuple[float | None, float | None]]:
    """Mean advantage and weight of each turn."""
    if credit is None:
        return [(None, None)] * len(turns)
    advantages, weights = credit.advantages, credit.turn_weights
    width = max((len(turn.response_ids) for turn in turns), default=0)
    if tuple(advantages.shape) != (len(turns), width) or any(not turn.tokenized for turn in turns):
        raise ValueError(
            f"to_pandas: credit must be of these turns, [{len(turns)}, {width}], got {list(advantages.shape)}; compute "
            "it from CreditInputs.from_trajectories of the same trajectories"
        )
    sums = advantages.double().sum(1).tolist()  # 0 outside the mask
    means = [value / len(turn.response_ids) for value, turn in zip(sums, turns, strict=True)]
    return list(zip(means, weights.double().tolist(), strict=True))
