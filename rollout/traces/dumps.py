"""What trainers write while they train: verl's rollout dumps and TRL's completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..types import Message
from .chats import as_prompt
from .messages import is_chat
from .records import REWARDS, Trace, TraceError, text_message
from .registry import Record, register_trace_format

_MARKED = (
    re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|$)", re.DOTALL),
    re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?)(?:<\|eot_id\|>|$)", re.DOTALL),
)
_PLAIN = re.compile(r"^(system|user|assistant|tool)\n", re.MULTILINE)


def _messages_of(text: str) -> list[Message]:
    """Messages of a rendered conversation, by the marks of its template or, where they were left out of the text, by
    the lines that name a role."""
    for marks in _MARKED:
        pieces = marks.findall(text)
        if pieces:
            return [text_message(role, content) for role, content in pieces]
    starts = list(_PLAIN.finditer(text))
    if not starts or starts[0].start() != 0:
        return []
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [
        text_message(start[1], text[start.end() : end].strip("\n")) for start, end in zip(starts, ends, strict=True)
    ]


def conversation(prompt: str, answer: str) -> tuple[list[Message], int]:
    """Messages of a prompt and of what followed it, and how many are the prompt's.

    >>> conversation("user\\nGo\\nassistant\\n", "I look.\\nuser\\na door\\nassistant\\nI open it.")[1]
    1
    """
    header = next(
        (h for h in ("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n") if h in prompt),
        "assistant\n",
    )
    asked = prompt if prompt.endswith("\n") else prompt + "\n"
    before = _messages_of(asked)
    if before and before[-1]["role"] == "assistant" and not before[-1]["content"].strip():
        before.pop()
    if not before:
        return [text_message("user", prompt), text_message("assistant", answer)], 1
    return before + _messages_of(header + answer), len(before)


def _of_verl(record: Record) -> bool:
    return isinstance(record.get("input"), str) and isinstance(record.get("output"), str) and "score" in record


@register_trace_format("verl", fits=_of_verl)
def read_verl(record: Record) -> Trace:
    """``{"input", "output", "score", "step"}``, the texts of one rollout; its turns are told apart by the template's
    marks, or by lines that only name a role. Groups are those of one prompt in one step."""
    messages, count = conversation(record["input"], record["output"])
    step = int(record.get("step") or 0)
    return Trace(record, messages, count, group=(step, record["input"]), reward=record["score"], version=step)


@register_trace_format("trl", fits=lambda record: "prompt" in record and "completion" in record)
def read_trl(record: Record) -> Trace:
    """``{"step", "prompt", "completion", NAME OF A REWARD, "advantage"}``; prompt and completion are texts or messages.
    Groups are those of one prompt in one step. The only other column of numbers is the reward."""
    prompt, completion, step = record["prompt"], record["completion"], int(record.get("step") or 0)
    if isinstance(prompt, str) and isinstance(completion, str):
        messages, count = conversation(prompt, completion)
    else:
        asked = as_prompt(prompt)
        said = list(completion) if is_chat(completion) else [text_message("assistant", str(completion))]
        messages, count = asked + said, len(asked)
    return Trace(record, messages, count, group=(step, repr(prompt)), reward=_only_reward(record), version=step)


def _only_reward(record: Mapping[str, Any]) -> Any:
    """The column that holds the reward; None where there is none.

    Raises:
        TraceError: several could be.
    """
    named = [name for name in REWARDS if record.get(name) is not None]
    known = ("step", "prompt", "completion", "advantage", "task_id")
    numbers = [
        k for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool) and k not in known
    ]
    found = named[:1] or numbers
    if len(found) > 1:
        raise TraceError(
            f"reward must stand in one column, got numbers in {found}; name it, reward={found[0]!r}, or pass a "
            "function that adds them as the run did"
        )
    return record[found[0]] if found else None
