"""What the teacher reads: contexts by name, and functions of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...rollout.contexts import context_text
from ...rollout.types import Trajectory
from ..batch import TurnBatch
from .method import Method, TextsOf
from .providers import place

if TYPE_CHECKING:
    from .run import Run


def hindsight_text(trajectory: Trajectory) -> str:
    """A successful trajectory told as observations and actions.

    Raises:
        TypeError: an observation or action that is not text.
    """
    for told in (text for turn in trajectory.turns for text in (turn.observation, turn.action)):
        if not isinstance(told, str):
            raise TypeError(
                f"hindsight_text: trajectory must hold observations and actions as text, got {type(told).__name__}; "
                "let the environment and the suite's parse() return strings"
            )
    lines = [f"Observation: {turn.observation}\nAction: {turn.action}" for turn in trajectory.turns]
    return "A successful attempt at this task went like this.\n" + "\n".join(lines)


def hindsight_contexts(trajectories: Sequence[Trajectory]) -> list[str | None]:
    """For every trajectory the first successful *other* one of its group, told as text; None where there is none.

    Source: StepOPSD (arXiv 2605.27140). First means the smallest rollout index; success means 1.
    """
    winners: dict[int, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.rollout_index):
        if trajectory.success >= 1.0:
            winners.setdefault(trajectory.group_id, []).append(trajectory)
    contexts = []
    for trajectory in trajectories:
        siblings = [t for t in winners.get(trajectory.group_id, []) if t is not trajectory]
        contexts.append(hindsight_text(siblings[0]) if siblings else None)
    return contexts


CONTEXTS: dict[str, TextsOf] = {"hindsight": lambda batch, run: hindsight_contexts(batch.trajectories)}
"""Contexts by name that no suite has to have."""


def register_context(name: str) -> Callable[[TextsOf], TextsOf]:
    """Decorator that makes a function of batch and run, see `TextsOf`, a teacher's context by name.

    Raises:
        ValueError: the name is that of another function.
    """

    def decorate(texts: TextsOf) -> TextsOf:
        old = CONTEXTS.get(name)
        if old is not None and place(old) != place(texts):
            raise ValueError(f"register_context: name must be new, got {name!r}; choose another name")
        CONTEXTS[name] = texts
        return texts

    return decorate


def teacher_texts(method: Method, batch: TurnBatch, run: Run) -> list[str | None]:
    """One text or None per row, from the method's context.

    Raises:
        TypeError, ValueError: a function of the method's returned something else, or `prepare` asks where the method
            names no teacher, whose context nothing checked at the start.
    """
    if method.teacher is None:
        raise ValueError(
            f"{method.name}: teacher must be named by a method whose prepare asks what it reads, got None; write "
            'Method(teacher=Teacher(context="privileged"))'
        )
    context = method.teacher.context
    if context is None:
        return [None] * len(batch.turns)
    if isinstance(context, str) and context not in CONTEXTS:
        tasks = [run.tasks[trajectory.task_id] for trajectory in batch.trajectories]
        texts: Sequence[str | None] = [context_text(run.suite, task, context) for task in tasks]
    else:
        texts = (CONTEXTS[context] if isinstance(context, str) else context)(batch, run)
    if not isinstance(texts, list | tuple):
        raise TypeError(
            f"{method.name}: the teacher's context must give a list of texts, got {type(texts).__name__}; give one "
            "text or None per trajectory or per turn"
        )
    if len(texts) not in (len(batch.trajectories), len(batch.turns)):
        raise ValueError(
            f"{method.name}: the teacher's context must give one text per trajectory ({len(batch.trajectories)}) or "
            f"per turn ({len(batch.turns)}), got {len(texts)}; return None where there is none"
        )
    wrong = next((text for text in texts if not isinstance(text, str | None)), None)
    if wrong is not None:
        raise TypeError(
            f"{method.name}: the teacher's context must give texts or None, got {type(wrong).__name__}; join the parts"
        )
    if len(texts) == len(batch.turns):
        return list(texts)
    return [texts[i] for i in batch.trajectory_ids.tolist()]
