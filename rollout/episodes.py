"""Where an episode starts: at its task, or behind turns that are replayed first; and an episode in play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..envs import HistoryEntry, Observation, StepResult, Task
from ..envs.replay import Recording
from ..envs.results import numeric_info, shown
from .types import Message, StopReason, Trajectory, Turn

ContextOf = Callable[[int], str | None]
"""Turn index (from 0, replayed turns included) -> the text that the policy reads as privileged context in that turn."""


@dataclass(frozen=True)
class EpisodeStart:
    """One episode to play: its task, the turns that are replayed first, and what the policy may know.

    Args:
        task: the task.
        group_id: the group whose siblings it is compared with.
        rollout_index: its number inside the group.
        prefix: recorded turns; their actions are taken again, their observations must come again.
        context: privileged text for every turn behind the prefix, or turn index -> text; None for none.
        max_turns: turns behind the prefix, at most; None leaves the suite's limit alone, which holds anyway.
        seed: further parts of the seeds of its responses; starts that are alike in everything else need different ones.
            Without them the seeds are those of an ordinary episode, so the same seed and step give the same turns.
        observation: what the first new turn must see, where a record says so; None compares nothing.

    Raises:
        TypeError: a field of another kind.
        ValueError: `max_turns` is not positive.
    """

    task: Task
    group_id: int = 0
    rollout_index: int = 0
    prefix: tuple[Turn, ...] = ()
    context: str | ContextOf | None = None
    max_turns: int | None = None
    seed: tuple[int | str, ...] = ()
    observation: Observation | None = None

    def __post_init__(self) -> None:
        for name in ("prefix", "seed"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list):
                raise TypeError(f"EpisodeStart: {name} must be a tuple, got {shown(value)}; write ({name},)")
            object.__setattr__(self, name, tuple(value))
        _demand(isinstance(self.task, Task), "task", "a Task", self.task, "take it from suite.tasks(split)")
        for name in ("group_id", "rollout_index"):
            _demand(type(getattr(self, name)) is int, name, "an int", getattr(self, name), "number them from 0")
        seen = self.observation is None or isinstance(self.observation, Observation)
        _demand(seen, "observation", "an Observation or None", self.observation, "write Observation(text)")
        for turn in self.prefix:
            _demand(isinstance(turn, Turn), "prefix", "recorded turns", turn, "pass trajectory.turns[:k]")
        for part in self.seed:
            _demand(type(part) in (int, str), "seed", "ints and strings", part, "convert its parts")
        known = self.context is None or isinstance(self.context, str) or callable(self.context)
        _demand(known, "context", "text or a function of the turn", self.context, "pass str, callable or None")
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 1):
            raise ValueError(
                f"EpisodeStart: max_turns must be a whole number of at least 1, got {self.max_turns!r}; "
                "None leaves the suite's limit alone"
            )

    @classmethod
    def at_turn(cls, trajectory: Trajectory, turn: int, **changes: Any) -> EpisodeStart:
        """The start at `turn` of a recorded trajectory: its earlier turns are the prefix.

        Args:
            trajectory: the record.
            turn: 0 .. the number of its turns.
            **changes: further fields; without ``task`` one is made of the record's id and type.

        Raises:
            ValueError: there is no such turn.
        """
        if type(turn) is not int or not 0 <= turn <= len(trajectory.turns):
            raise ValueError(
                f"EpisodeStart.at_turn: turn must lie in 0..{len(trajectory.turns)}, the trajectory's turns, got "
                f"{turn!r}"
            )
        fields = {
            "task": Task(trajectory.task_id, trajectory.task_type),
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            "prefix": trajectory.turns[:turn],
            "observation": _seen(trajectory.turns[turn]) if turn < len(trajectory.turns) else None,
        }
        return cls(**{**fields, **changes})

    def recording(self) -> Recording:
        """What the environment runner has to replay."""
        seen = tuple(map(_seen, self.prefix)) + ((self.observation,) if self.observation is not None else ())
        return Recording(self.task.id, tuple(turn.action for turn in self.prefix), seen)


def _seen(turn: Turn) -> Observation:
    return Observation(turn.observation, turn.admissible_actions, turn.anchor)


def _demand(right: bool, name: str, rule: str, value: Any, fix: str) -> None:
    if not right:
        raise TypeError(f"EpisodeStart: {name} must be {rule}, got {shown(value)} ({type(value).__name__}); {fix}")


def check_starts(starts: list[EpisodeStart]) -> None:
    """Raise unless every start is one and no two would draw the same responses.

    Raises:
        TypeError: something else than an `EpisodeStart`.
        ValueError: two starts are alike in task, rollout index, seed, prefix, context and turn limit.
    """
    seen: set[Any] = set()
    for start in starts:
        if not isinstance(start, EpisodeStart):
            raise TypeError(
                f"RolloutCollector.collect_starts: starts must be EpisodeStart records, got {shown(start)}; "
                "collect(tasks) takes tasks"
            )
        context = start.context if isinstance(start.context, str | None) else id(start.context)
        prefix = tuple(turn.response_ids for turn in start.prefix)
        key = (start.task.id, start.rollout_index, start.seed, prefix, context, start.max_turns)
        if key in seen:
            raise ValueError(
                f"RolloutCollector.collect_starts: starts must differ, got two alike for task {start.task.id!r}, which "
                "would draw the same responses; give each its own rollout_index or seed"
            )
        seen.add(key)


@dataclass
class Episode:
    """An episode in play; becomes a frozen `Trajectory` when it ends."""

    start: EpisodeStart
    observation: Observation = field(default_factory=lambda: Observation(""))
    history: list[HistoryEntry] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    replayed: int = 0
    success: float = 0.0
    info: dict[str, float] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    prompt_ids: tuple[int, ...] = ()
    opened: str = ""
    budget: int = 0

    def begin(self, outcome: StepResult) -> None:
        """Take over what came of the reset and of the replayed turns."""
        for turn in self.start.prefix:
            self.add(turn)
        self.replayed = len(self.turns)
        self.reach(outcome)

    def add(self, turn: Turn) -> None:
        """Append a turn that was played or replayed."""
        self.turns.append(turn)
        self.history.append(HistoryEntry(turn.observation, turn.action, turn.response, turn.thinking, turn.valid))

    def reach(self, outcome: StepResult) -> None:
        """Go on from what the last action led to."""
        self.success = float(outcome.success)
        self.info = numeric_info(outcome.info)
        self.observation = outcome.observation

    @property
    def tokens(self) -> int:
        """Response tokens so far, those of replayed turns included."""
        return sum(len(turn.response_ids) for turn in self.turns)

    def over(self, max_turns: int) -> bool:
        """Whether a turn limit is reached: the suite's `max_turns`, or the start's own behind the prefix."""
        own = self.start.max_turns
        return len(self.turns) >= max_turns or (own is not None and len(self.turns) - self.replayed >= own)

    def seed(self, seed: int, step: int) -> tuple[int | str, ...]:
        """Seed parts of the next response."""
        start = self.start
        return (seed, step, start.task.id, start.rollout_index, len(self.turns), *start.seed)

    def trajectory(self, reason: StopReason, failure: str | None, policy_version: int) -> Trajectory:
        """The record of the episode."""
        return Trajectory(
            task_id=self.start.task.id,
            task_type=self.start.task.type,
            group_id=self.start.group_id,
            rollout_index=self.start.rollout_index,
            turns=tuple(self.turns),
            reward=sum(turn.reward for turn in self.turns),
            success=self.success,
            stop_reason=reason,
            failure=failure,
            policy_version=policy_version,
            info=self.info,
            replayed=self.replayed,
        )
