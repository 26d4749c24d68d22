"""From a trace to the turns of a trajectory: who was sampled, on what, and what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ..types import Message, Turn
from .messages import dialect_role, is_example, plain_message
from .records import Step, Trace, TraceError

_THOUGHT = re.compile(r"\s*<(think|thinking|thought)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(r"<(action|tool_call)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_REACT = re.compile(r"^Action(?: \d+)?:[ \t]*(.+)(?:\nAction Input(?: \d+)?:[ \t]*(.+))?", re.MULTILINE)


def steps_of(trace: Trace, join: bool) -> list[Step]:
    """The trace's turns with their prompts; those of a conversation have all that was said before.

    Raises:
        TraceError: no turn, an empty one, one without a prompt, or two in a row and not `join`.
    """
    steps = list(trace.steps) if trace.steps else _steps_of_chat(trace, join)
    if not steps:
        roles = sorted({str(dialect_role(message)) for message in trace.messages})
        raise TraceError(
            f"messages must hold an assistant message behind the prompt, got roles {roles}; there is nothing to give "
            "credit to"
        )
    return steps


def _steps_of_chat(trace: Trace, join: bool) -> list[Step]:
    messages = [plain_message(message, place) for place, message in enumerate(trace.messages)]
    asked = [place for place, message in enumerate(messages) if message["role"] in ("user", "tool")]
    begin = trace.context or (asked[0] if asked else 0)
    steps: list[Step] = []
    said: list[Message] = messages[:begin]
    previous = False
    for place in range(begin, len(messages)):
        message, raw = messages[place], trace.messages[place]
        mine = message["role"] == "assistant" and not is_example(raw)
        if mine:
            _check_said(message, place)
        if mine and previous:
            if not join:
                raise TraceError(
                    f"messages must have something between two turns, got assistant messages in a row at {place - 1} "
                    f"and {place}; pass join_assistant=True to make one turn of them"
                )
            message = _joined(said.pop(), message)
            steps.pop()
        if mine:
            steps.append(Step(tuple(said), message))
        said.append(message)
        previous = mine
    return steps


def _check_said(message: Message, place: int) -> None:
    if not (message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content")):
        raise TraceError(f"messages must hold what the assistant said, got an empty message at {place}; drop the trace")


def _joined(first: Message, second: Message) -> Message:
    """One message that says both."""
    joined = {**first, **second, "content": "\n".join(filter(None, (first["content"], second["content"])))}
    thoughts = [m["reasoning_content"] for m in (first, second) if m.get("reasoning_content")]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return (
        joined
        | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})
        | ({"tool_calls": calls} if calls else {})
    )


def turn_of(step: Step, reward: float) -> Turn:
    """The turn, without ids.

    Raises:
        TraceError: no prompt, an empty message, or one that is not the assistant's.
    """
    messages = [plain_message(message, place) for place, message in enumerate(step.messages)]
    message = plain_message(step.message, len(messages))
    if message["role"] != "assistant":
        raise TraceError(f"steps must end with an assistant message, got one of {message['role']!r}; correct its role")
    if not messages:
        raise TraceError("steps must have a prompt, got a response that stands first; add the task as a user message")
    _check_said(message, len(messages))
    thinking, action = said_and_done(message)
    seen = [m["content"] for m in _since_last_turn(messages)]
    return Turn(
        prompt_ids=(),
        response_ids=(),
        logprobs=(),
        messages=tuple(messages),
        response=message["content"],
        thinking=thinking,
        action=action if step.action is None else step.action,
        observation="\n".join(seen) if step.observation is None else step.observation,
        reward=reward,
        valid=step.valid,
        message=message,
    )


def _since_last_turn(messages: Sequence[Message]) -> list[Message]:
    """What came behind the last assistant message; the system's message is not an observation."""
    last = max((place for place, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    behind = [m for m in messages[last + 1 :] if m["role"] in ("user", "tool")]
    return behind or list(messages[-1:])


def said_and_done(message: Message) -> tuple[str, str]:
    """Thinking and action of a message: its tool calls, what it tags as an action, ReAct's line, or all it says."""
    text = message["content"]
    thought = _THOUGHT.match(text)
    thinking = message.get("reasoning_content") or (thought[2].strip() if thought else "")
    text = text[thought.end() :] if thought else text
    if message.get("tool_calls"):
        return thinking, "\n".join(map(shown_call, message["tool_calls"]))
    tagged = _TAGGED.findall(text)
    if tagged:
        return thinking, tagged[-1][1].strip()
    react = _REACT.search(text)
    if react:
        done = react[1].strip()
        return thinking, f"{done}[{react[2].strip()}]" if react[2] else done
    return thinking, text.strip()


def shown_call(call: dict[str, Any]) -> str:
    """``name({"argument": value})``."""
    function = call["function"]
    return f"{function['name']}({json.dumps(function['arguments'], ensure_ascii=False, sort_keys=True)})"
