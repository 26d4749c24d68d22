"""ReAct logs: one text of thoughts, actions and observations, or a list of an agent's intermediate steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..types import Message
from .records import Trace, TraceError, text_message
from .registry import Record, register_trace_format

_TEXTS = ("text", "log", "scratchpad", "trace", "traj", "output")
_QUESTION = re.compile(r"^(?:Question|Task)(?: \d+)?:", re.MULTILINE)
_SPOKEN = re.compile(r"^(?:Thought|Action|Final Answer)(?: \d+)?:", re.MULTILINE)
_SEEN = re.compile(r"^Observation(?: \d+)?:", re.MULTILINE)


def _text(record: Record) -> str:
    return next((record[n] for n in _TEXTS if isinstance(record.get(n), str) and _SPOKEN.search(record[n])), "")


@register_trace_format("react", fits=lambda record: bool(_text(record)) or "intermediate_steps" in record)
def read_react(record: Record) -> Trace:
    """A text of ``Question:``, ``Thought:``, ``Action:`` and ``Observation:`` lines, numbered or not, in which all that
    stands before the last question is context; or ``{"input", "intermediate_steps": [[action, observation]],
    "output"}``."""
    if "intermediate_steps" in record:
        return Trace(record, _of_steps(record), 1)
    messages = _of_text(_text(record), record.get("question") or record.get("input"))
    return Trace(record, messages, sum(m["role"] != "assistant" for m in messages[:2]) if messages else 0)


def _of_text(text: str, question: Any) -> list[Message]:
    """Messages of a log: what stands between two observations is one turn."""
    asked = list(_QUESTION.finditer(text))
    examples, text = (text[: asked[-1].start()].strip(), text[asked[-1].start() :]) if asked else ("", text)
    begin = _SPOKEN.search(text)
    if begin is None:
        raise TraceError("text must hold a line 'Thought:' or 'Action:' behind its last question, got none; it is cut")
    task = text[: begin.start()].strip() or (str(question) if question else "")
    if not task:
        raise TraceError("text must hold its question, got a log that starts with a thought; give it in 'question'")
    messages = ([text_message("system", examples)] if examples else []) + [text_message("user", task)]
    place = begin.start()
    while place < len(text):
        seen = _SEEN.search(text, place)
        messages.append(text_message("assistant", text[place : seen.start() if seen else len(text)].strip()))
        if seen is None:
            break
        spoken = _SPOKEN.search(text, seen.end())
        place = spoken.start() if spoken else len(text)
        messages.append(text_message("user", text[seen.start() : place].strip()))
    return messages


def _of_steps(record: Record) -> list[Message]:
    messages = [text_message("user", str(record.get("input") or record.get("question") or ""))]
    for action, observation in record["intermediate_steps"]:
        messages += [text_message("assistant", _said(action)), text_message("user", f"Observation: {observation}")]
    output = record.get("output")
    output = output.get("output") if isinstance(output, Mapping) else output
    return messages + ([text_message("assistant", f"Final Answer: {output}")] if output else [])


def _said(action: Any) -> str:
    if isinstance(action, str):
        return action
    inner = action.get("kwargs", action)
    return (inner.get("log") or "").strip() or f"Action: {inner['tool']}\nAction Input: {inner['tool_input']}"
