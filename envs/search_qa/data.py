"""Questions and passages on disk or on the hub, in Search-R1's schema."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .retrieval import Document, as_document

TRAIN_SOURCES = ("nq", "hotpotqa")
HELD_OUT_SOURCES = ("triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle")
DATA_SOURCES = (*TRAIN_SOURCES, *HELD_OUT_SOURCES)
"""The seven datasets as Search-R1 names them: those trained on, then those only evaluated."""

_FILES = (".parquet", ".jsonl", ".json", ".jsonl.gz")


@dataclass(frozen=True)
class Question:
    """One question.

    Args:
        id: stable and unique in its split, ``<data_source>/<id in the file>``.
        question: the question, in words.
        answers: accepted answers.
        data_source: the dataset, for per-dataset metrics.
        kind: ``"lookup"``, ``"bridge"``, ``"comparison"``, or "" where the data does not say.
        facts: passages that support the answer, in order; empty where the data names none.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    data_source: str
    kind: str = ""
    facts: tuple[str, ...] = ()


def load_questions(
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    config: str | None = None,
    data_sources: Sequence[str] | None = None,
    limit: int | None = None,
) -> list[Question]:
    """Questions of a local parquet or JSON-lines file, or of a dataset on the hub, in the order of the data.

    Rows hold ``question``, ``golden_answers`` (or ``reward_model.ground_truth.target``) and ``data_source``; without
    the last, the config's name stands in, then the file's or dataset's. ``passages`` with ``is_gold`` and
    ``metadata.supporting_facts`` become the supporting facts.

    Args:
        source: a file, or a name for ``datasets.load_dataset``.
        split: the dataset's split, needed for a hub name; ignored for a file.
        config: the dataset's configuration; ignored for a file.
        data_sources: keep these only, as in `DATA_SOURCES`; None keeps all.
        limit: keep so many from the start, after `data_sources`.

    Raises:
        FileNotFoundError: `source` looks like a file and does not exist.
        ValueError: a row lacks a field, an id stands twice, or nothing is left.
    """
    path = Path(source).expanduser()
    if path.name.endswith(_FILES) or path.exists():
        rows, fallback = _file_rows(path), path.name.partition(".")[0]
    else:
        rows, fallback = _hub_rows(str(source), config, split), config or str(source).rpartition("/")[2]
    questions: dict[str, Question] = {}
    for index, row in enumerate(rows):
        if limit is not None and len(questions) >= limit:
            break
        question = _question(row, index, fallback, str(source))
        if data_sources is not None and question.data_source not in data_sources:
            continue
        if question.id in questions:
            raise ValueError(
                f"load_questions: ids must be unique within a data source, got {question.id!r} twice in "
                f"{str(source)!r}; give each row its own 'id' or remove the column"
            )
        questions[question.id] = question
    if not questions:
        raise ValueError(
            f"load_questions: source must hold questions, got none in {str(source)!r} for "
            f"data_sources={data_sources} and limit={limit}; check the names"
        )
    return list(questions.values())


def load_corpus(path: str | os.PathLike[str]) -> list[Document]:
    """Passages of a JSON-lines (also gzipped) or parquet file: ``id`` and ``contents``, or ``title`` and ``text``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a row is no passage, or there is none.
    """
    documents = []
    for index, row in enumerate(_file_rows(Path(path).expanduser())):
        try:
            documents.append(as_document(row, position=index))
        except ValueError as error:
            raise ValueError(f"load_corpus: row {index} of {str(path)!r} must be a passage; {error}") from None
    if not documents:
        raise ValueError(f"load_corpus: path must hold passages, got an empty file {str(path)!r}; check the download")
    return documents


def question_kind(question: str) -> str:
    """The kind that a question's wording tells: ``"comparison"``, ``"bridge"`` or ``"lookup"``.

    >>> question_kind("Who was born earlier, Ada or Grace?")
    'comparison'
    """
    words = question.lower().replace("?", " ").replace(",", " ").split()
    two_things = "or" in words or "both" in words or {"and", "same"} <= set(words)
    plain = " ".join(words)
    if (two_things and words[0] in _ASKING) or "in common" in plain or "out of" in plain:
        return "comparison"
    linked = "whose" in words[1:] or any(f"{person} of" in plain for person in _RELATED)
    return "bridge" if linked else "lookup"


_RELATED = (
    "author",
    "brother",
    "composer",
    "creator",
    "daughter",
    "director",
    "father",
    "founder",
    "husband",
    "mother",
    "performer",
    "singer",
    "sister",
    "son",
    "spouse",
    "wife",
    "writer",
)
"""Who is named by what they did or whom they belong to has to be found first."""

_ASKING = frozenset({"who", "which", "what", "are", "is", "were", "was", "do", "did", "does", "between"})
_TYPES = {
    "bridge": "bridge",
    "comparison": "comparison",
    "compositional": "bridge",
    "inference": "bridge",
    "bridge_comparison": "comparison",
}
"""Kinds of question by the ``type`` that HotpotQA and 2WikiMultihopQA give in their metadata."""
_SINGLE_HOP = ("nq", "triviaqa", "popqa")
_MULTI_HOP = ("hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def _question(row: Mapping[str, Any], index: int, fallback: str, where: str) -> Question:
    data_source = str(row.get("data_source") or fallback)
    text = row.get("question")
    answers = row.get("golden_answers")
    if answers is None:
        truth = (row.get("reward_model") or {}).get("ground_truth") or {}
        answers = truth.get("target") if isinstance(truth, Mapping) else truth
    answers = [answers] if isinstance(answers, str) else list(answers if answers is not None else [])
    if not isinstance(text, str) or not text.strip() or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(
            f"load_questions: rows must have a text 'question' and texts in 'golden_answers', got {text!r} and "
            f"{answers!r} in row {index} of {where!r}; convert the file to Search-R1's schema"
        )
    if not answers:
        raise ValueError(
            f"load_questions: rows must have at least one gold answer, got none in row {index} of {where!r}; "
            "leave such rows out"
        )
    metadata = row.get("metadata") or {}
    told = str(metadata.get("type")) if isinstance(metadata, Mapping) else ""
    kind = _TYPES.get(told) or ("lookup" if data_source in _SINGLE_HOP else question_kind(text))
    if data_source in _MULTI_HOP and kind == "lookup":
        kind = "bridge"
    identifier = row.get("id")
    name = index if identifier is None else identifier
    return Question(f"{data_source}/{name}", text.strip(), tuple(answers), data_source, kind, _facts(row))


def _facts(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Supporting passages: gold ones of ``passages``, or the sentences FlashRAG's metadata points to."""
    passages = row.get("passages")
    if passages is not None:
        return tuple(f'"{item["title"]}"\n{item["text"]}' for item in passages if item.get("is_gold"))
    metadata = row.get("metadata")
    if not isinstance(metadata, Mapping):
        return ()
    facts, context = metadata.get("supporting_facts"), metadata.get("context")
    if not isinstance(facts, Mapping) or not isinstance(context, Mapping):
        return ()
    texts = dict(zip(context.get("title", ()), context.get("sentences") or context.get("content") or (), strict=False))
    wanted = zip(facts.get("title", ()), facts.get("sent_id", ()), strict=False)
    found = [(title, texts[title][number]) for title, number in wanted if number < len(texts.get(title, ()))]
    return tuple(f'"{title}"\n{sentence.strip()}' for title, sentence in found)


def _file_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"load: source must be a file or a dataset's name, got {str(path)!r}, which is no file; "
            f"name a file ending in one of {', '.join(_FILES)}"
        )
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.name.endswith(_FILES):
        return _json_rows(path)
    raise ValueError(f"load: source must end in one of {', '.join(_FILES)}, got {path.name!r}; convert the file")


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(
            f"load: pyarrow must be installed to read {path.name!r}, got an ImportError ({error}); "
            'run: pip install "turncredit[search]"'
        ) from error
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        if path.suffix == ".json":
            yield from json.load(stream)
            return
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"load: every line of {path.name!r} must be JSON, got {line[:60]!r} in line {number} ({error}); "
                    "write one object a line"
                ) from None
            if not isinstance(row, dict):
                raise ValueError(
                    f"load: every line of {path.name!r} must be an object, got {line[:60]!r} in line {number}; "
                    "write one object a line"
                )
            yield row


def _hub_rows(name: str, config: str | None, split: str | None) -> Iterator[Mapping[str, Any]]:
    if split is None:
        raise ValueError(
            f"load_questions: split must be named for the dataset {name!r}, got None; pass split='train' or 'test'"
        )
    import datasets

    yield from datasets.load_dataset(name, config, split=split)  # type: ignore[misc]
