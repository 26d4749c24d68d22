"""Search-QA as a task suite: which questions, how they are asked, how answers are read, what the teacher may know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..base import Environment, HistoryEntry, Message, Observation, ParsedResponse, Task
from .answers import normalize_answer
from .bm25 import Bm25Retriever
from .data import Question
from .env import Anchor, SearchQAEnv
from .generator import generate_world, split_questions
from .http_retriever import HttpRetriever
from .prompts import STOP_STRINGS, parse_response, search_messages
from .retrieval import Document, Retriever
from .skills import skills_text

Privileged = Literal["skills", "answer", "facts", "both", "none"]
PromptBuilder = Callable[[Task, Sequence[HistoryEntry], Observation], list[Message]]
_logger = logging.getLogger(__name__)


class SearchQASuite:
    """Questions by split, and where passages come from. Without arguments: the generated world with BM25.

    A task's type is its data source, so that metrics per type are metrics per dataset. A training question that also
    stands in another split (same text after normalisation) is left out of training; the number is logged.

    Args:
        questions: questions by split (``"train"``, ``"eval"``, ..), see `load_questions`; None generates them.
        retriever: the address of a Search-R1 server, or a picklable function of no arguments that makes a retriever;
            it is called once in every worker process, so heavy indexes belong into a server. None builds BM25 over
            the generated passages.
        privileged: what the teacher reads: ``"skills"`` of the question's kind, the gold ``"answer"``, the supporting
            ``"facts"``, ``"both"`` (answer, then skills), or ``"none"``. A question without facts has no context then.
        history_length: past turns shown in the prompt.
        max_turns: turns of an episode.
        topk: passages per search.
        limits: per split, at most so many tasks, taken in turn from the data sources so that each is there.
        seed: of the generated world.
        build_messages: replaces the prompt: called as ``(task, history, observation) -> messages``.
        parse: replaces the parser of responses; actions must stay complete blocks.
        anchor, strict_original: see `SearchQAEnv`.

    Raises:
        ValueError: an argument is out of range, or questions come without a retriever.
    """

    name = "search_qa"
    stop_strings = STOP_STRINGS
    causal_span = "clean_step"

    def __init__(
        self,
        questions: Mapping[str, Sequence[Question]] | None = None,
        *,
        retriever: str | Callable[[], Retriever] | None = None,
        privileged: Privileged = "skills",
        history_length: int = 4,
        max_turns: int = 4,
        topk: int = 3,
        limits: Mapping[str, int] | None = None,
        seed: int = 0,
        build_messages: PromptBuilder | None = None,
        parse: Callable[[str], ParsedResponse] = parse_response,
        anchor: Anchor = "observation",
        strict_original: bool = False,
    ) -> None:
        if privileged not in ("skills", "answer", "facts", "both", "none"):
            raise ValueError(
                f'SearchQASuite: privileged must be "skills", "answer", "facts", "both" or "none", got {privileged!r}; '
                "choose one of them"
            )
        if history_length < 0 or max_turns < 1 or topk < 1:
            raise ValueError(
                f"SearchQASuite: history_length must be at least 0, max_turns and topk at least 1, got "
                f"{history_length}, {max_turns} and {topk}; 4, 4 and 3 are the usual values"
            )
        if questions is not None and retriever is None:
            raise ValueError(
                "SearchQASuite: retriever must be given with questions of your own, got None; "
                "pass a server's address or a function that makes a retriever"
            )
        if questions is None:
            world = generate_world(seed)
            questions = split_questions(world.questions)
            retriever = retriever or _Bm25Over(world.documents)
        self.privileged = privileged
        self.history_length = history_length
        self.max_turns = max_turns
        self.topk = topk
        self.anchor: Anchor = anchor
        self.strict_original = strict_original
        self._build_messages = build_messages
        self._parse = parse
        self._make_retriever = _HttpAt(retriever) if isinstance(retriever, str) else retriever
        self._questions: dict[str, Question] = {}
        self._tasks: dict[str, tuple[Task, ...]] = {}
        for split, chosen in _selected(questions, limits or {}).items():
            self._tasks[split] = tuple(Task(f"{split}/{item.id}", item.data_source, split) for item in chosen)
            self._questions.update({f"{split}/{item.id}": item for item in chosen})

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, in the order of its questions, or dealt from the data sources where a limit is set."""
        if split not in self._tasks:
            raise ValueError(
                f"tasks: split must be one of {sorted(self._tasks)}, got {split!r}; pass its questions to the suite"
            )
        return self._tasks[split]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `SearchQAEnv`; environments of one process share one retriever."""
        assert self._make_retriever is not None
        options = {
            "max_turns": self.max_turns,
            "topk": self.topk,
            "anchor": self.anchor,
            "strict_original": self.strict_original,
        }
        return EnvFactory(self._questions, self._make_retriever, options)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        if self._build_messages is not None:
            return self._build_messages(task, history, observation)
        return search_messages(
            self.question(task).question,
            history,
            observation,
            history_length=self.history_length,
            max_turns=self.max_turns,
        )

    def parse(self, response: str) -> ParsedResponse:
        """Take a response apart; never raises."""
        return self._parse(response)

    def privileged_context(self, task: Task) -> str | None:
        """Skills, answer, facts or nothing, as the suite was asked."""
        question = self.question(task)
        parts = []
        if self.privileged in ("answer", "both"):
            parts.append("The correct answer is: " + " or: ".join(question.answers))
        if self.privileged == "facts" and question.facts:
            parts.append("Passages that hold the answer:\n" + "\n".join(question.facts))
        if self.privileged in ("skills", "both"):
            parts.append(f"Useful skills:\n{skills_text(question.kind, question.question)}")
        return "\n\n".join(parts) or None

    def question(self, task: Task) -> Question:
        """The question of a task.

        Raises:
            KeyError: there is no such task.
        """
        if task.id not in self._questions:
            raise KeyError(f"SearchQASuite: task must be one of this suite, got {task.id!r}; take it from tasks(split)")
        return self._questions[task.id]


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


class _HttpAt:
    def __init__(self, url: str) -> None:
        HttpRetriever(url).close()
        self.url = url

    def __call__(self) -> Retriever:
        return HttpRetriever(self.url)


class _Bm25Over:
    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents

    def __call__(self) -> Retriever:
        return Bm25Retriever(self.documents)


def _selected(questions: Mapping[str, Sequence[Question]], limits: Mapping[str, int]) -> dict[str, Sequence[Question]]:
    for split, items in questions.items():
        ids = {item.id for item in items}
        if not items or len(ids) < len(items):
            raise ValueError(
                f"SearchQASuite: questions must be a non-empty list of unique ids in split {split!r}, got {len(items)} "
                f"questions with {len(ids)} ids; load each data source once"
            )
    held_out = {
        normalize_answer(item.question) for split, items in questions.items() if split != "train" for item in items
    }
    chosen: dict[str, Sequence[Question]] = dict(questions)
    if "train" in chosen:
        kept = [item for item in chosen["train"] if normalize_answer(item.question) not in held_out]
        if len(kept) < len(chosen["train"]):
            _logger.warning("left %d training questions out: held out too", len(chosen["train"]) - len(kept))
        if not kept:
            raise ValueError(
                "SearchQASuite: questions must leave some for training, got none that is not held out too; "
                "pass different files for the splits"
            )
        chosen["train"] = kept
    return {split: balanced(items, limits[split]) if split in limits else items for split, items in chosen.items()}


def balanced(questions: Sequence[Question], limit: int) -> list[Question]:
    """At most `limit` questions, dealt from the data sources in turn, each in its own order.

    Raises:
        ValueError: the limit is not positive.
    """
    if limit < 1:
        raise ValueError(f"balanced: limit must be at least 1, got {limit}; leave it out for all questions")
    by_source: dict[str, list[Question]] = {}
    for question in questions:
        by_source.setdefault(question.data_source, []).append(question)
    longest = max((len(group) for group in by_source.values()), default=0)
    dealt = [group[place] for place in range(longest) for group in by_source.values() if place < len(group)]
    return dealt[:limit]
