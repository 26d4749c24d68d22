"""Environments that share one retriever per process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .data import Question
from .env import SearchQAEnv
from .retrieval import Retriever


class EnvFactory:
    """Makes environments that share one retriever per process; sent to workers by pickle, without the retriever.

    Args:
        questions: by task id.
        make_retriever: called at the first environment.
        options: further arguments of `SearchQAEnv`.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        make_retriever: Callable[[], Retriever],
        options: Mapping[str, Any],
    ) -> None:
        self._questions = questions
        self._make_retriever = make_retriever
        self._options = dict(options)
        self._retriever: Retriever | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvFactory, (self._questions, self._make_retriever, self._options)

    def __call__(self) -> SearchQAEnv:
        if self._retriever is None:
            self._retriever = self._make_retriever()
        return SearchQAEnv(self._questions, self._retriever, **self._options)
