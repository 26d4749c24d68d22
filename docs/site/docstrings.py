"""Docstrings as the site shows them: roles of other markup become code, doctests become blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe


class HouseDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with ``:func:`name``` as `name` and lines of ``>>>`` in a block of code."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    return re.sub(r"(?m)^(?P<pad> *)>>> (?:.*\n?)(?:(?P=pad).*\S.*\n?)*", _block, text)


def _block(match: re.Match[str]) -> str:
    pad = match["pad"]
    return f"{pad}```pycon\n{match[0].rstrip()}\n{pad}```\n"
