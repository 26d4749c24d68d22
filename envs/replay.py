"""Recorded actions taken again, all slots at once; what the environment shows must be what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .base import EnvFailure, Observation, StepResult
from .vector import VectorEnv

_FIX = "make the environment deterministic given its task and actions"


@dataclass(frozen=True)
class Recording:
    """The beginning of an episode.

    Args:
        task_id: its task.
        actions: K actions, in order; none for an episode from its start.
        observations: what each of them was chosen on, K, and what the last one led to where that was recorded;
            admissible actions and anchors count where they are recorded.
    """

    task_id: str
    actions: tuple[str, ...] = ()
    observations: tuple[Observation, ...] = ()


def replay(
    envs: VectorEnv,
    recordings: Mapping[int, Recording],
    as_recorded: Callable[[Observation], Observation] = lambda observation: observation,
) -> dict[int, StepResult | EnvFailure]:
    """Reset the given slots and take their recorded actions, one call of the runner for each turn of the longest.

    Args:
        envs: the runner.
        recordings: what to replay, by slot.
        as_recorded: what a recorder made of an observation before it kept it.

    Returns:
        By slot: what the last action led to (without actions, the first observation), or why there is none. An
        observation other than the record's, or an end before the record's, is the failure ``"replay_diverged"``.
    """
    now: dict[int, StepResult | EnvFailure] = {
        slot: answer if isinstance(answer, EnvFailure) else StepResult(answer)
        for slot, answer in envs.reset({slot: recording.task_id for slot, recording in recordings.items()}).items()
    }
    for turn in range(max((len(recording.observations) for recording in recordings.values()), default=0)):
        actions = {}
        for slot, recording in recordings.items():
            outcome = now[slot]
            if turn >= len(recording.observations) or isinstance(outcome, EnvFailure):
                continue
            problem = _divergence(recording, turn, outcome, as_recorded)
            if problem is not None:
                now[slot] = EnvFailure("replay_diverged", problem)
            elif turn < len(recording.actions):
                actions[slot] = recording.actions[turn]
        if actions:
            now |= envs.step(actions)
    return now


def _divergence(
    recording: Recording, turn: int, outcome: StepResult, as_recorded: Callable[[Observation], Observation]
) -> str | None:
    """How an outcome differs from the record of the turn that follows it; None where it does not."""
    where = f"turn {turn} of task {recording.task_id!r}"
    if outcome.done:
        return f"{where} must come as recorded, got the episode's end before it; {_FIX}"
    expected, got = recording.observations[turn], as_recorded(outcome.observation)
    for name in ("text", "admissible_actions", "anchor"):
        one, other = getattr(expected, name), getattr(got, name)
        if one != other and (one or name == "text"):
            label = "observation" if name == "text" else name
            one, other = _excerpts(one, other) if isinstance(one, str) else (repr(one), repr(other))
            return f"{where} must show the recorded {label} {one}, got {other}; {_FIX}"
    return None


def _excerpts(one: str, other: str, length: int = 160) -> tuple[str, str]:
    """Both texts quoted, from shortly before the place where they part."""
    parting = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, parting - 60)

    def quoted(text: str) -> str:
        part = text[start : start + length]
        return f"{'..' * (start > 0)}{part!r}{'..' * (start + length < len(text))}"

    return quoted(one), quoted(other)
