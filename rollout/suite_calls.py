"""Calls of a task suite in the middle of a rollout: what it does wrong fails one episode and not the run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..envs import EnvFailure, HistoryEntry, Observation, ParsedResponse, Task, TaskSuite
from ..envs.results import shown
from .chat import Chat
from .contexts import NamedContext, informed
from .episodes import ContextOf
from .prompts import parse_response
from .suite_answers import WrongAnswer, context_answer, messages_answer, parsed_answer
from .types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def parsed_response(suite: TaskSuite, response: str, opened: str = "") -> ParsedResponse | EnvFailure:
    """``suite.parse`` of what the prompt opened and the response, its fields checked, or the failure
    ``"suite_error"`` (see `turncredit.rollout.prompts.parse_response`)."""

    def parse(text: str) -> ParsedResponse:
        return parsed_answer(suite.parse(text), text)

    return asked("parse", lambda: parse_response(parse, response, opened))


def parsed_or_empty(suite: TaskSuite, response: str, opened: str = "") -> ParsedResponse:
    """A response that is no turn of an episode (a teacher's, say); an invalid empty one where the suite is at fault."""
    answer = parsed_response(suite, response, opened)
    return ParsedResponse("", "", False) if isinstance(answer, EnvFailure) else answer


def turn_messages(
    suite: TaskSuite, task: Task, history: Sequence[HistoryEntry], observation: Observation
) -> list[Message] | EnvFailure:
    """``suite.messages(..)`` as a list of messages, or the failure ``"suite_error"``."""
    return asked("messages", lambda: messages_answer(suite.messages(task, history, observation)))


def turn_chat(
    suite: TaskSuite,
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    context: str | None,
    kwargs: Mapping[str, Any],
) -> tuple[tuple[int, ...], str] | EnvFailure:
    """Prompt ids and the thinking block that the prompt opens, or ``"suite_error"`` where the suite's hook or the
    template refuses."""
    member = "with_context" if context is not None and hasattr(suite, "with_context") else "messages"
    shown_messages = asked(member, lambda: informed(suite, messages, context))
    if isinstance(shown_messages, EnvFailure):
        return shown_messages

    def render() -> tuple[tuple[int, ...], str]:
        chat = Chat(tokenizer, shown_messages, kwargs)
        return chat.ids(), chat.opened()

    return asked(member, render)


def turn_context(context: str | ContextOf | None, turn: int) -> str | EnvFailure | None:
    """The privileged text that the policy reads in this turn, or the failure ``"suite_error"``."""
    if context is None or isinstance(context, str):
        return context
    member = context.member if isinstance(context, NamedContext) else "context"
    return asked(member, lambda: context_answer(context(turn), member))


def asked(name: str, call: Callable[[], Any]) -> Any:
    """What `call` returns, or the failure ``"suite_error"`` that says what member `name` did wrong."""
    try:
        return call()
    except WrongAnswer as error:
        return EnvFailure("suite_error", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        return EnvFailure("suite_error", f"{name} raised {type(error).__name__} at {place}: {shown(error, plain=True)}")
