"""What a retriever is to the environment: one method, one record, one error; and how passages are worded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Document:
    """One retrieved passage.

    Args:
        id: its id in the corpus.
        contents: ``"\\"Title\\"\\ntext"``, Search-R1's form.
        score: the retriever's score; larger is better, comparable within one query only.
    """

    id: str
    contents: str
    score: float = 0.0


class RetrievalError(Exception):
    """A search that failed.

    Args:
        cause: a short stable word: ``"timeout"``, ``"unreachable"``, ``"http_error"``, ``"malformed"``,
            ``"cooling_down"`` or ``"error"``.
        message: what happened, for a person.
    """

    def __init__(self, cause: str, message: str = "") -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}" if self.message else self.cause


class NoListsError(RetrievalError):
    """A well-formed reply without any list of passages; an empty list of passages for the query is none of these."""


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """At most `topk` passages for each query, best first.

        Raises:
            RetrievalError: the search failed; the environment marks the step and goes on.
        """
        ...

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""
        ...


def as_document(item: Any, *, position: int = 0) -> Document:
    """A passage from a corpus row or a server's reply: ``contents``, or ``title`` and ``text``, with an ``id``.

    Args:
        item: a mapping, possibly wrapped as ``{"document": {..}, "score": x}``.
        position: stands in for an absent id.

    Raises:
        ValueError: it is neither.
    """
    score = 0.0
    if isinstance(item, Mapping) and isinstance(item.get("document"), Mapping):
        score = item.get("score", 0.0)
        item = item["document"]
    if not isinstance(item, Mapping) or isinstance(score, bool) or not isinstance(score, (int, float)):
        raise ValueError(
            f"as_document: item must be a passage with a numeric score, got {str(item)[:80]!r} and score {score!r}; "
            'write {"id": .., "contents": ..}'
        )
    contents = item.get("contents")
    if contents is None and isinstance(item.get("text"), str):
        title = item.get("title")
        contents = f'"{title}"\n{item["text"]}' if isinstance(title, str) and title else item["text"]
    if not isinstance(contents, str):
        raise ValueError(
            f"as_document: item must have the text field 'contents' (or 'title' and 'text'), got fields "
            f"{sorted(map(str, item))}; write contents as '\"Title\"\\ntext'"
        )
    return Document(str(item.get("id", position)), contents, float(score))


def information_block(documents: Sequence[Document] | None, *, strict_original: bool = False) -> str:
    """The observation that search results become.

    Numbered passages as the one JSON string ``result`` between information tags, as the published environments word it;
    None stands for a retriever that gave no reply at all.

    Args:
        documents: the passages.
        strict_original: show a search without passages as an empty result, as the published code does; by default the
            agent is told so in words.
    """
    if documents is None:
        return _block("Unknown API state (no response and no error message).")
    if not documents and not strict_original:
        return _block("No search results found.")
    return _block("".join(f"Doc {n}: {doc.contents.strip()}\n" for n, doc in enumerate(documents, start=1)))


def error_block(cause: str) -> str:
    """The observation that a failed search becomes; the cause only, no addresses."""
    return _block(f"Search error: {cause}")


def read_information(observation: str) -> str:
    """The text inside an information block, or the observation itself where there is no such block.

    >>> read_information(information_block([Document("1", "Rome fell.")]))
    'Doc 1: Rome fell.\\n'
    """
    head, tail = "<information>", "</information>"
    if not (observation.startswith(head) and observation.endswith(tail)):
        return observation
    try:
        return str(json.loads(observation[len(head) : -len(tail)])["result"])
    except (ValueError, KeyError, TypeError):
        return observation


def _block(text: str) -> str:
    return f"<information>{json.dumps({'result': text})}</information>"
