"""Privileged contexts by name, and where in a prompt they go."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..envs import Task, TaskSuite
from ..envs.results import shown
from .prompts import with_privileged_context
from .suite_answers import WrongAnswer, context_answer, contexts_answer, messages_answer
from .types import Message


class UnknownContext(ValueError):
    """A name that is none of the suite's contexts."""


def context_text(suite: TaskSuite, task: Task, name: str) -> str | None:
    """The suite's context of that name for a task.

    Args:
        suite: the task suite; ``"privileged"`` is its ``privileged_context(task)``, other names are those of its
            optional member ``contexts(task)``.
        task: the task.
        name: a name, or several joined by ``+``: their texts are joined by a blank line.

    Returns:
        The text, or None where the task has none.

    Raises:
        TypeError: the suite answers with something else than text.
        ValueError: the suite has no such context; the message lists those it has.
    """
    if not isinstance(name, str):
        raise TypeError(f"context_text: name must be a str, got {shown(name)}; name a context of the suite")
    texts = [_one(suite, task, part.strip()) for part in name.split("+")]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(text for text in texts if text) or None


def _one(suite: TaskSuite, task: Task, name: str) -> str | None:
    if name == "privileged":
        return context_answer(suite.privileged_context(task))
    contexts = _contexts(suite, task)
    if name not in contexts:
        known = [*contexts, "privileged"]
        close = difflib.get_close_matches(name, known, 1)
        raise UnknownContext(
            f"context_text: name must be a context of the suite {getattr(suite, 'name', type(suite).__name__)!r}, one "
            f"of {known}, got {name!r}; " + (f"did you mean {close[0]!r}?" if close else "see its contexts()")
        )
    return context_answer(contexts[name], "contexts", name)


def _contexts(suite: TaskSuite, task: Task) -> Mapping[str, str | None]:
    member = getattr(suite, "contexts", None)
    return {} if member is None else contexts_answer(member(task))


@dataclass(frozen=True)
class NamedContext:
    """A context of the suite for every turn of one task's episodes; see `context_text`."""

    suite: TaskSuite
    task: Task
    name: str

    @property
    def member(self) -> str:
        """The member of the suite that answers."""
        return "privileged_context" if self.name == "privileged" else "contexts"

    def __call__(self, turn: int) -> str | None:
        return context_text(self.suite, self.task, self.name)


def named_context(suite: TaskSuite, task: Task, name: str | None) -> NamedContext | None:
    """The context of that name as an `EpisodeStart` takes it; None for no name."""
    return None if name is None else NamedContext(suite, task, name)


def check_context(suite: TaskSuite, task: Task, name: str | None) -> None:
    """Raise where the suite has no context of that name; what else it does wrong is its episode's failure.

    Raises:
        TypeError: `name` is no text.
        ValueError: the suite has no such context.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"context_text: name must be a str, got {shown(name)}; name a context of the suite")
    try:
        if name is not None and name != "privileged":
            context_text(suite, task, name)
    except UnknownContext:
        raise
    except Exception:
        return


def informed(suite: TaskSuite | None, messages: Sequence[Message], text: str | None) -> list[Message]:
    """The messages with a privileged text where the suite wants it.

    The optional member ``with_context(messages, text) -> messages`` of a suite says where; without it the text stands
    ahead of the first user message's own (`turncredit.rollout.with_privileged_context`). `messages` stay as they are.
    A hook that leaves the text out is refused: the teacher would be the student.

    Args:
        suite: the task suite, or None for the default place.
        messages: the student's chat messages.
        text: the privileged text; None, or nothing but blanks, adds nothing.

    Raises:
        TypeError, ValueError: the text or an answer of the hook is no text, or there is no user message.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        return list(messages)
    hook = getattr(suite, "with_context", None)
    if hook is None:
        return with_privileged_context(messages, text)
    answer = messages_answer(hook(copy.deepcopy(list(messages)), text), "with_context")
    if answer == list(messages):
        raise WrongAnswer(f"with_context: the result must hold the text {shown(text)}, got the messages as they were")
    return answer
