"""What an environment is to the rest of the library: a small protocol and the records that cross it.

An *environment* (`Environment`) plays one episode at a time and lives in a worker process; it needs no model and
imports no torch. A *task suite* (`TaskSuite`) lives in the main process and knows everything about the benchmark
that is not the engine: which tasks exist, how a prompt is made from a history, how a response is parsed, and what
privileged context the teacher may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Message = dict[str, Any]
"""One chat message: ``{"role": "system" | "user" | "assistant" | "tool", "content": str}``; a content may be a list
of text parts, ``{"type": "text", "text": str}``. An assistant's message may hold ``tool_calls``, then also without
content: ``[{"type": "function", "function": {"name": str, "arguments": {..}}}]``. Other keys are handed on."""


@dataclass(frozen=True)
class Observation:
    """What the agent sees before it acts.

    Args:
        text: the observation as the environment words it.
        admissible_actions: the actions that would be accepted now, sorted; empty where they cannot be listed.
        anchor: the string by which two visits count as the same state (GiGPO); empty means ``text``.
        info: anything else, picklable.
    """

    text: str
    admissible_actions: tuple[str, ...] = ()
    anchor: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """What one action led to.

    Numbers may be of any numeric type (NumPy scalars, arrays and tensors without dimensions, fractions, decimals): the
    vector runner hands on plain ones. A field of another kind, and a number out of range, fails the episode.

    Args:
        observation: the next observation (the last one of the episode when ``done``).
        reward: reward of this step, in the environment's units, finite; 0 where a turn has no score of its own.
        done: whether the episode is over.
        success: whether the task is solved, or the fraction of it that is; a fact of its own, not derived from the
            reward.
        valid: whether the action was well-formed and admissible.
        info: anything else, picklable (for example ``{"score": 0.7}``).
    """

    observation: Observation
    reward: float = 0.0
    done: bool = False
    success: bool | float = False
    valid: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvFailure:
    """An episode the environment could not go on with; travels as data, never as an exception.

    Args:
        cause: a short stable word: ``"worker_died"``, ``"timeout"``, ``"error"`` (the environment raised),
            ``"bad_result"`` (its answer is not what `Environment` says), ``"suite_error"`` (the task suite raised or
            answered so).
        message: what happened, for a person.
    """

    cause: str
    message: str = ""


class Environment(Protocol):
    """One episode at a time. State never leaks from one episode to the next.

    An episode that cannot go on or cannot be scored raises: it is left out with its cause, where a reward of 0 would
    train on it.
    """

    def reset(self, task_id: str) -> Observation:
        """Start `task_id`; the result does not depend on what was played before."""
        ...

    def step(self, action: str) -> StepResult:
        """Take one action. Malformed text costs the turn and is invalid; it never raises."""
        ...

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""
        ...


@dataclass(frozen=True)
class Task:
    """One task. Args: id (stable, unique in its suite), type (for per-type metrics), split ("train", "eval", ...)."""

    id: str
    type: str
    split: str = "train"


@dataclass(frozen=True)
class HistoryEntry:
    """One past turn: what was seen, what the policy said, and what was done.

    Args:
        observation: the observation's text.
        action: the parsed action, empty where there was none.
        response: the whole response as it was sampled, without its closing end-of-sequence token.
        thinking: the text of its think block.
        valid: whether its format was obeyed and its action admissible.
    """

    observation: str
    action: str
    response: str = ""
    thinking: str = ""
    valid: bool = True


@dataclass(frozen=True)
class ParsedResponse:
    """A response taken apart.

    Args:
        thinking: the text of the think block, stripped; empty when there is none.
        action: the text to hand to ``Environment.step``; empty when there is none.
        valid: whether the format was obeyed (the environment decides admissibility on top).
        thinking_span: half-open character range of the thinking inside the response text, or None.
        action_span: half-open character range of the action (between its tags) in the response text, or None.
    """

    thinking: str
    action: str
    valid: bool
    thinking_span: tuple[int, int] | None = None
    action_span: tuple[int, int] | None = None


@runtime_checkable
class TaskSuite(Protocol):
    """A benchmark as the rollout collector and the trainer see it. Picklable parts only in `make_env`.

    Optional members more:

    - ``contexts(task) -> Mapping[str, str | None]``: further privileged contexts by name, such as
      ``{"skills": .., "hint": ..}``; ``privileged_context`` is the one named ``"privileged"``;
    - ``with_context(messages, text) -> messages``: where a privileged text goes; without it, ahead of the first user
      message's own;
    - ``tools``: JSON schemas of tools, handed to the chat template;
    - ``chat_template_kwargs``: variables of the chat template that the suite wants, such as
      ``{"enable_thinking": False}``; a run's own win;
    - ``causal_span`` (``"action_only"``, the default, or ``"clean_step"``): the span of a turn that StepOPSD credits;
    - ``same_target(action, action) -> bool``: AlignOPSD's action filter also asks it;
    - ``gold_answer(task) -> str``: the answer whose probability IGPO asks the policy, and ``answer_opening``, the text
      of a response in front of it.
    """

    @property
    def name(self) -> str:
        """Short name of the benchmark."""
        ...

    @property
    def max_turns(self) -> int:
        """Turns after which the collector ends an episode."""
        ...

    @property
    def history_length(self) -> int:
        """Past turns shown in a prompt."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """A response ends right after the token that completes one of these."""
        ...

    def tasks(self, split: str) -> Sequence[Task]:
        """The ordered tasks of a split; the same list on every process and every call."""
        ...

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory; called once per environment inside the worker process that will own it."""
        ...

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The student's chat messages for the next turn; `history` is the whole episode so far."""
        ...

    def parse(self, response: str) -> ParsedResponse:
        """Take a response apart; never raises."""
        ...

    def privileged_context(self, task: Task) -> str | None:
        """Training-only text for the teacher (skills, hint, gold answer), or None where there is none."""
        ...
