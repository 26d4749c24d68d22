"""The part of a task suite that is the same for every benchmark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, ClassVar, TypedDict

from ..base import Environment, HistoryEntry, Message, Observation, ParsedResponse, Task
from .balance import balanced
from .checks import check_choice, check_counts, check_options
from .contexts import Contexts, chosen_contexts
from .parsing import TaggedParser
from .prompts import RULES, step_messages

if TYPE_CHECKING:
    from typing_extensions import Unpack

PromptBuilder = Callable[[Task, Sequence[HistoryEntry], Observation], list[Message]]


class SuiteOptions(TypedDict, total=False):
    """Options of every suite; what is left out is as the suite's class has it.

    Args:
        privileged: what the teacher reads: the name of a context, several joined by ``+`` (in that order, a blank line
            between two), ``"both"`` where the suite says what it is, or ``"none"``.
        history_length: past turns shown in the prompt.
        max_turns: turns after which the collector ends an episode.
        limits: per split, at most so many tasks (see `BaseSuite.limit_by_type`).
        build_messages: replaces the prompt: called as ``(task, history, observation) -> messages``.
        parse: replaces the parser of responses.
    """

    privileged: str
    history_length: int
    max_turns: int
    limits: Mapping[str, int] | None
    build_messages: PromptBuilder | None
    parse: Callable[[str], ParsedResponse] | None


class BaseSuite(ABC):
    """A `turncredit.envs.TaskSuite` but for `load` and `make_env`, and `context` where a teacher is to know something.

    Attributes of the class that a benchmark sets:
        name: short name of the benchmark.
        splits: names of the splits; a mapping from them will do.
        max_turns, history_length: defaults of the options.
        parser: takes a response apart.
        stop_strings: a response ends behind the first of them; those of the parser.
        context_names: contexts that `context` makes; the first is the default of ``privileged``.
        both: what ``privileged="both"`` stands for, such as ``"hint+skills"``.
        opening, rules: first and last words of the default prompt.
        limit_by_type: a limit deals tasks from the types in turn; False takes the first so many.

    Args:
        counts: whole numbers of the benchmark's own, ``{name: (value, least, usual value)}``, checked with the others.
        options: see `SuiteOptions`.

    Raises:
        TypeError: an unknown option, or one of another kind.
        ValueError: an option is out of range, or names a split or context that there is not.
    """

    name = ""
    splits: Collection[str] = ()
    max_turns = 30
    history_length = 2
    stop_strings: tuple[str, ...] = ("</action>",)
    parser: ClassVar[Callable[[str], ParsedResponse]] = TaggedParser()
    context_names: ClassVar[tuple[str, ...]] = ()
    both = ""
    privileged = ""
    opening = ""
    rules = RULES
    limit_by_type: ClassVar[bool] = True

    def __init__(self, *, counts: Mapping[str, tuple[int, int, int]] | None = None, **options: Unpack[SuiteOptions]):
        cls, owner = type(self), type(self).__name__
        own = [name for name, option in signature(cls).parameters.items() if option.kind != option.VAR_KEYWORD]
        check_options(owner, options, SuiteOptions.__annotations__, {*own} - {"counts"})
        self._check_class()
        self.history_length = options.get("history_length", cls.history_length)
        self.max_turns = options.get("max_turns", cls.max_turns)
        self.privileged = options.get("privileged", cls.privileged or next(iter(cls.context_names), "none"))
        self._build_messages = options.get("build_messages")
        self._parse = options.get("parse") or cls.parser
        self._limits = options.get("limits") or {}
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._chosen()
        check_counts(
            owner,
            history_length=(self.history_length, 0, cls.history_length),
            max_turns=(self.max_turns, 1, cls.max_turns),
            **(counts or {}),
        )
        if not isinstance(self._limits, Mapping):
            raise TypeError(f"{owner}: limits must map splits to numbers, got {self._limits!r}; write {{'eval': 60}}")
        for split, limit in self._limits.items():
            check_choice(owner, "limits", split, self.splits)
            check_counts(owner, **{f"limits[{split!r}]": (limit, 1, "leave the split out for all its tasks")})

    @abstractmethod
    def load(self, split: str) -> Sequence[Task]:
        """The ordered tasks of one of `splits`, limits aside; the same list on every process."""

    @abstractmethod
    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory; called once per environment inside the worker process that will own it."""

    def prompt(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The messages of the next turn; ``observation.info["task"]`` is shown as what must be done."""
        words = str(observation.info.get("task", ""))
        return step_messages(
            self.opening, words, history, observation, history_length=self.history_length, rules=self.rules
        )

    def context(self, task: Task, name: str) -> str | None:
        """The text of one of `context_names`, or None where this task has none."""
        raise NotImplementedError(f"{type(self).__name__} must define context(task, name) for {name!r}")

    def check_split(self, split: str) -> None:
        """Raise a ValueError unless there is such a split."""
        check_choice("tasks", "split", split, self.splits)

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split in the order of `load`, or as its limit selects them.

        Raises:
            ValueError: there is no such split, or two of its tasks have one id.
        """
        if split not in self._tasks:
            self.check_split(split)
            self._tasks[split] = self._selected(split, self.load(split))
        return self._tasks[split]

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The student's chat messages for the next turn."""
        return (self._build_messages or self.prompt)(task, history, observation)

    def parse(self, response: str) -> ParsedResponse:
        """Take a response apart; never raises."""
        return self._parse(response)

    def contexts(self, task: Task) -> Mapping[str, str | None]:
        """What a teacher may read of `task`, by name."""
        return Contexts(self.context_names, partial(self.context, task))

    def privileged_context(self, task: Task) -> str | None:
        """The contexts that ``privileged`` names, or None where the task has none of them."""
        contexts = self.contexts(task)
        return "\n\n".join(text for text in (contexts[name] for name in self._chosen()) if text) or None

    def _check_class(self) -> None:
        owner = type(self).__name__
        if not self.name:
            raise ValueError(f"{owner}: name must be the benchmark's short name, got ''; set it in the class")
        for attribute in ("splits", "stop_strings", "context_names"):
            value = getattr(self, attribute)
            if isinstance(value, str):
                raise TypeError(f"{owner}: {attribute} must be several texts, got {value!r}; write ({value!r},)")

    def _chosen(self) -> tuple[str, ...]:
        return chosen_contexts(type(self).__name__, self.privileged, self.context_names, self.both)

    def _selected(self, split: str, tasks: Sequence[Task]) -> tuple[Task, ...]:
        twice = [task_id for task_id, times in Counter(task.id for task in tasks).items() if times > 1]
        if twice:
            raise ValueError(
                f"{type(self).__name__}.load: task ids must be unique in split {split!r}, got {twice[0]!r} again; "
                "put into the id what tells two tasks apart"
            )
        limit = self._limits.get(split)
        if limit is None:
            return tuple(tasks)
        return tuple(balanced(tasks, limit) if self.limit_by_type else tasks[:limit])
