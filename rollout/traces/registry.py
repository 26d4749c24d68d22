"""Trace formats by name: what a record of the format looks like, and how it is read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .records import Trace

Record = Mapping[str, Any]


@dataclass(frozen=True)
class TraceFormat:
    """A format.

    Args:
        name: its name.
        read: one record -> one trace.
        fits: whether a record is of this format; asked when none is named.
        expand: the records of a file -> one record per trace, where they are not that already.
    """

    name: str
    read: Callable[[Record], Trace]
    fits: Callable[[Record], bool]
    expand: Callable[[Sequence[Record]], Sequence[Record]] | None = None


_FORMATS: dict[str, TraceFormat] = {}


def register_trace_format(
    name: str,
    *,
    fits: Callable[[Record], bool] | None = None,
    expand: Callable[[Sequence[Record]], Sequence[Record]] | None = None,
) -> Callable[[Callable[[Record], Trace]], Callable[[Record], Trace]]:
    """Decorator that makes ``read(record) -> Trace`` a format of `load_traces`.

    Args:
        name: the name; a new definition replaces an earlier one.
        fits: whether a record is of this format; without it the format has to be named. Formats defined last are asked
            first.
        expand: the records of a file -> one record per trace.
    """

    def decorate(read: Callable[[Record], Trace]) -> Callable[[Record], Trace]:
        _FORMATS.pop(name, None)
        _FORMATS[name] = TraceFormat(name, read, fits or (lambda record: False), expand)
        return read

    return decorate


def list_trace_formats() -> list[str]:
    """Names of all formats, sorted."""
    return sorted(_FORMATS)


def get_trace_format(name: str) -> TraceFormat:
    """The format of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in _FORMATS:
        known = list_trace_formats()
        close = difflib.get_close_matches(str(name), known, 1)
        fix = f"did you mean {close[0]!r}?" if close else "pick one, or leave it out"
        raise ValueError(f"load_traces: format must be one of {known}, got {name!r}; {fix}")
    return _FORMATS[name]


def detect(record: Record) -> TraceFormat | None:
    """The format that the record is of, or None."""
    return next((one for one in reversed(_FORMATS.values()) if _fits(one, record)), None)


def _fits(one: TraceFormat, record: Record) -> bool:
    try:
        return bool(one.fits(record))
    except (KeyError, TypeError, AttributeError, IndexError):
        return False
