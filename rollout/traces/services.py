"""Exports of tracing services: Langfuse's traces and observations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .chats import as_prompt, as_response
from .messages import is_chat
from .records import REWARDS, Step, Trace, TraceError, found
from .registry import Record, register_trace_format


def _either(record: Record, camel: str) -> Any:
    """A field by its name in the API, or by that in an export."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in camel)
    return record.get(camel) if record.get(camel) is not None else record.get(snake)


def _is_observation(record: Record) -> bool:
    return _either(record, "traceId") is not None and isinstance(record.get("type"), str) and "input" in record


def _joined(records: Sequence[Record]) -> list[Record]:
    """One record per trace, where each was one observation."""
    traces: dict[Any, Any] = {}
    for place, record in enumerate(records):
        if not (isinstance(record, Mapping) and _is_observation(record)):
            traces[place, None] = record
            continue
        key = _either(record, "traceId")
        trace = traces.setdefault(key, {"id": key, "observations": [], "metadata": {}})
        trace["observations"].append(record)
        trace["metadata"].update(
            _opened(record.get("metadata")) if isinstance(_opened(record.get("metadata")), Mapping) else {}
        )
        trace["scores"] = trace.get("scores") or _opened(record.get("scores"))
    return list(traces.values())


def _opened(value: Any) -> Any:
    """JSON that an export wrote as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def _prompt(value: Any) -> list[Any]:
    value = _opened(value)
    if isinstance(value, Mapping) and is_chat(value.get("messages")):
        value = value["messages"]
    return as_prompt(value)


@register_trace_format(
    "langfuse",
    fits=lambda record: _is_observation(record) or isinstance(record.get("observations"), list),
    expand=_joined,
)
def read_langfuse(record: Record) -> Trace:
    """A trace with its ``observations`` and ``scores``, or observations in a row, which are put together by trace. Each
    observation of type ``GENERATION`` is a turn, in the order of their starts: its ``input`` is the prompt."""
    made = [one for one in record["observations"] if str(one.get("type")).upper() == "GENERATION"]
    if not made:
        kinds = sorted({str(one.get("type")) for one in record["observations"]})
        raise TraceError(
            f"observations must hold one of type 'GENERATION', got {kinds}; export them with input and output"
        )
    made.sort(key=lambda one: str(_either(one, "startTime") or ""))
    steps = [Step(_prompt(one.get("input")), as_response(_opened(one.get("output")))) for one in made]
    return Trace(record, steps=steps, reward=_score(record))


def _score(record: Record) -> Any:
    """The score that is the reward: by its name, or the only one with a number."""
    scores = record.get("scores")
    if isinstance(scores, Mapping):
        named = dict(scores)
    else:
        named = {str(s.get("name")): s.get("value") for s in scores or () if isinstance(s, Mapping)}
    named = {name: value for name, value in named.items() if isinstance(value, int | float)}
    usual = found(named, REWARDS)
    if usual is not None or len(named) < 2:
        return usual if usual is not None else next(iter(named.values()), None)
    raise TraceError(
        f"scores must hold one that is the reward, got {sorted(named)}; pass a function, reward=lambda r: .."
    )
