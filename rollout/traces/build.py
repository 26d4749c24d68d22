"""From traces to trajectories: rewards, successes, groups, all checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types import StopReason, Trajectory, Turn
from .records import REWARDS, Trace, TraceError, filled
from .turns import steps_of, turn_of

Reader = str | Mapping[Any, Any] | Callable[[Mapping[str, Any]], Any] | None
"""Where a value stands in a record: a name (``"info.score"`` looks inside), a mapping from tasks, a function."""


@dataclass(frozen=True)
class Options:
    """How traces become trajectories; see `turncredit.rollout.load_traces`."""

    reward: Reader = None
    success: Reader = None
    group_by: Reader = None
    join_assistant: bool = False


@dataclass
class Groups:
    """Numbers groups in the order of their first trace, and traces in their group."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def place(self, key: Hashable) -> tuple[int, int]:
        """Group id and rollout index of the next trace with this key."""
        number = self.numbers.setdefault(key, len(self.numbers))
        self.sizes[number] = self.sizes.get(number, -1) + 1
        return number, self.sizes[number]


def trajectory_of(trace: Trace, options: Options, groups: Groups) -> Trajectory:
    """The trajectory of a trace, its turns without ids.

    Raises:
        TraceError: no turn, no reward, or one that is no finite number.
    """
    trace = filled(trace)
    steps = steps_of(trace, options.join_assistant)
    reward, per_turn = _rewards(trace, options.reward, [step.reward for step in steps])
    success = _success(trace, options.success, reward)
    turns = tuple(turn_of(step, value) for step, value in zip(steps, per_turn, strict=True))
    key = _key(trace, options.group_by, turns)
    group, index = groups.place(key)
    ended = StopReason.SUCCESS if success == 1 else StopReason.MAX_TURNS if trace.cut else StopReason.DONE
    return Trajectory(
        task_id=trace.task if trace.task is not None else f"task {group}",
        task_type="",
        group_id=group,
        rollout_index=index,
        turns=turns,
        reward=reward,
        success=success,
        stop_reason=ended,
        policy_version=trace.version,
    )


def _asked(reader: Reader, trace: Trace, what: str) -> Any:
    """What the option says of the trace; None where it says nothing."""
    if isinstance(reader, str):
        value: Any = trace.source
        for name in reader.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
    if isinstance(reader, Mapping):
        return reader.get(trace.task)
    try:
        return reader(trace.source) if reader is not None else None
    except Exception as error:
        raise TraceError(f"{what} must be a function of records, got {error!r} from it; correct it") from error


def _rewards(trace: Trace, reader: Reader, of_turns: Sequence[Any]) -> tuple[float, list[float]]:
    """The return, and the reward of each turn; where turns have none the last one has it all."""
    given = trace.reward if reader is None else _asked(reader, trace, "reward")
    if isinstance(given, list | tuple):
        if len(given) != len(of_turns):
            raise TraceError(
                f"reward must be one number, or one per turn, got {len(given)} for {len(of_turns)} turns; sum them up"
            )
        of_turns, given = given, None
    if any(value is not None for value in of_turns):
        turns = [_number(0.0 if value is None else value, "the reward of a turn") for value in of_turns]
        return (sum(turns) if given is None else _number(given, "reward")), turns
    if given is None and reader is None and trace.success is not None:
        given = trace.success
    if given is None:
        raise TraceError(
            f"reward must be known, got none under {list(REWARDS)}, with keys {sorted(map(str, trace.source))[:12]}; "
            'name it, reward="info.score", or pass a function or a mapping from tasks'
        )
    total = _number(given, "reward")
    return total, [0.0] * (len(of_turns) - 1) + [total]


def _number(value: Any, what: str) -> float:
    try:
        number = float(value) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TraceError(f"{what} must be a finite number, got {value!r}; a missing reward is not 0, drop the trace")
    return number


def _success(trace: Trace, reader: Reader, reward: float) -> float:
    """Success in [0, 1]; where nothing says it, whether the return is at least 1."""
    given = trace.success if reader is None else _asked(reader, trace, "success")
    if given is None:
        return float(reward >= 1.0)
    number = _number(given, "success")
    if not 0.0 <= number <= 1.0:
        raise TraceError(f"success must lie in [0, 1], got {given!r}; pass a fraction of success, not a scaled reward")
    return number


def _key(trace: Trace, reader: Reader, turns: Sequence[Turn]) -> Hashable:
    """What the traces of a group have in common."""
    prompt = repr([(m["role"], m["content"]) for m in turns[0].messages])
    if reader == "prompt":
        return prompt
    if reader is None or reader == "task":
        usual = trace.task if trace.group is None else trace.group
        if usual is None and reader == "task":
            raise TraceError('task must be named in the record, got none; group_by="prompt" groups by first prompts')
        return prompt if usual is None else usual
    given = _asked(reader, trace, "group_by")
    if given is None:
        raise TraceError(f"group_by must give a value, got None from {reader!r}; name another field, or a function")
    return given if isinstance(given, str | int | tuple) else repr(given)
