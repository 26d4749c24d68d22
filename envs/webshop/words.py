"""Word lists that ship with the package."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any


@lru_cache(maxsize=8)
def package_json(name: str) -> Any:
    """The parsed JSON file `name` of this package."""
    return json.loads(resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def word_list(name: str) -> tuple[str, ...]:
    """A word list of ``words.json``, in its order."""
    return tuple(" ".join(package_json("words.json")[name]).split())
