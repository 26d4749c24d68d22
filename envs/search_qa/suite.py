"""Search-QA as a task suite: which questions, how they are asked, how answers are read, what the teacher may know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..base import Environment, HistoryEntry, Message, Observation, Task
from ..kit import BaseSuite, SuiteOptions
from ..kit import balanced as balanced
from ..kit.checks import check_choice
from .answers import normalize_answer
from .bm25 import Bm25Retriever
from .data import Question
from .env import Anchor
from .factory import EnvFactory
from .generator import generate_world, split_questions
from .http_retriever import HttpRetriever
from .prompts import ANSWER_OPENING, STOP_STRINGS, parse_response, search_messages
from .retrieval import Retriever
from .skills import skills_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

Privileged = str
"""``"skills"``, ``"answer"``, ``"facts"``, several joined by ``+``, ``"both"`` or ``"none"``."""

_logger = logging.getLogger(__name__)


class SearchQASuite(BaseSuite):
    """Questions by split, and where passages come from. Without arguments: the generated world with BM25.

    A task's type is its data source, so that metrics per type are metrics per dataset, and a limit takes from each. A
    training question that also stands in another split (same text after normalisation) is left out of training; the
    number is logged. Contexts: ``"skills"`` of the question's kind, the gold ``"answer"``, and the supporting
    ``"facts"``, where a question has some; ``privileged="both"`` is the answer, then the skills.

    Args:
        questions: questions by split (``"train"``, ``"eval"``, ..), see `load_questions`; None generates them.
        retriever: the address of a Search-R1 server, or a picklable function of no arguments that makes a retriever;
            it is called once in every worker process, so heavy indexes belong into a server. None builds BM25 over
            the generated passages.
        topk: passages per search.
        seed: of the generated world.
        anchor, strict_original: see `SearchQAEnv`.
        options: ``privileged`` ("skills"), ``history_length`` (4), ``max_turns`` (4), ``limits``, ``build_messages``
            and ``parse`` (its actions must stay complete blocks), see `turncredit.envs.kit.SuiteOptions`.

    Raises:
        TypeError: see `BaseSuite`.
        ValueError: an argument is out of range, or questions come without a retriever.
    """

    name = "search_qa"
    max_turns = history_length = 4
    splits: dict[str, Sequence[Question]]
    stop_strings = STOP_STRINGS
    parser = parse_response
    causal_span = "clean_step"
    privileged = "skills"
    context_names = ("skills", "answer", "facts")
    both = "answer+skills"
    answer_opening = ANSWER_OPENING

    def __init__(
        self,
        questions: Mapping[str, Sequence[Question]] | None = None,
        *,
        retriever: str | Callable[[], Retriever] | None = None,
        topk: int = 3,
        seed: int = 0,
        anchor: Anchor = "observation",
        strict_original: bool = False,
        **options: Unpack[SuiteOptions],
    ) -> None:
        if questions is None:
            world = generate_world(seed)
            questions = split_questions(world.questions)
            retriever = retriever or partial(Bm25Retriever, world.documents)
        if retriever is None:
            raise ValueError(
                "SearchQASuite: retriever must be given with questions of your own, got None; "
                "pass a server's address or a function that makes a retriever"
            )
        if isinstance(retriever, str):
            HttpRetriever(retriever).close()
            retriever = partial(HttpRetriever, retriever)
        self._make_retriever = retriever
        self.splits = _checked(questions)
        self._questions = {f"{split}/{item.id}": item for split, items in self.splits.items() for item in items}
        self.topk = topk
        self.anchor: Anchor = anchor
        self.strict_original = strict_original
        super().__init__(counts={"topk": (topk, 1, 3)}, **options)

    def check_split(self, split: str) -> None:
        """Raise a ValueError unless there is such a split."""
        check_choice("tasks", "split", split, self.splits, "pass its questions to the suite")

    def load(self, split: str) -> list[Task]:
        """The tasks of a split, in the order of its questions."""
        return [Task(f"{split}/{item.id}", item.data_source, split) for item in self.splits[split]]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `SearchQAEnv`; environments of one process share one retriever."""
        asked = {task.id: self.question(task) for split in self.splits for task in self.tasks(split)}
        names = ("max_turns", "topk", "anchor", "strict_original")
        return EnvFactory(asked, self._make_retriever, {name: getattr(self, name) for name in names})

    def prompt(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        limits = {"history_length": self.history_length, "max_turns": self.max_turns}
        return search_messages(self.question(task).question, history, observation, **limits)

    def context(self, task: Task, name: str) -> str | None:
        """Skills of the question's kind, its gold answers, or its supporting passages."""
        question = self.question(task)
        if name == "answer":
            return "The correct answer is: " + " or: ".join(question.answers)
        if name == "facts":
            return "Passages that hold the answer:\n" + "\n".join(question.facts) if question.facts else None
        return f"Useful skills:\n{skills_text(question.kind, question.question)}"

    def gold_answer(self, task: Task) -> str:
        """The first of a question's gold answers."""
        return self.question(task).answers[0]

    def question(self, task: Task) -> Question:
        """The question of a task.

        Raises:
            KeyError: there is no such task.
        """
        if task.id not in self._questions:
            raise KeyError(f"SearchQASuite: task must be one of this suite, got {task.id!r}; take it from tasks(split)")
        return self._questions[task.id]


def _checked(questions: Mapping[str, Sequence[Question]]) -> dict[str, Sequence[Question]]:
    """The questions by split, without training questions that are held out too."""
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
    train = questions.get("train", ())
    kept = [item for item in train if normalize_answer(item.question) not in held_out]
    if train and not kept:
        raise ValueError(
            "SearchQASuite: questions must leave some for training, got none that is not held out too; "
            "pass different files for the splits"
        )
    if len(kept) < len(train):
        _logger.warning("left %d training questions out: held out too", len(train) - len(kept))
    return {**questions, "train": kept} if train else dict(questions)
