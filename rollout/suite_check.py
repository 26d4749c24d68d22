"""Plays a task suite's contract through, without a model, and says in one sentence each what is wrong."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..envs import EnvFailure, Task, TaskSuite
from .chat import Chat, check_chat_template
from .contexts import informed
from .prompts import check_tokenizer
from .suite_answers import context_answer, contexts_answer
from .suite_calls import asked, parsed_response
from .suite_members import REQUIRED, check_picklable, checked_factory, checked_setting, checked_tasks, suite_member
from .suite_trial import Trial
from .template_options import template_options
from .types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ODD_RESPONSES = (
    *("", " ", "\n", "hello", "\x00", "é 門 😀", "a" * 5000),
    *("<think>", "</think>", "<action>", "</action>", "<action></action>", "<think></think><action></action>"),
    *("</action><action>", "<think>a<think>b</think>", "<action>a</action><action>b</action>", "<ACTION>A</ACTION>"),
    *("<think>a</think><action>b</action>", "<think>a</think><search>b</search>", "<think>a</think><answer>b</answer>"),
    *("{", '{"action": 1}', "[]", "a[b", "]", "%s {0} \\", "<action>\n\n</action>"),
)
"""What policies say before they know the format; `parse` must take all of it."""
_SPLITS = ("train", "eval", "test")
_ALIKE = 30  # characters by which two sentences tell the same


@dataclass(frozen=True)
class SuiteReport:
    """What `check_suite` found; ``str(report)`` lists it.

    Args:
        name: the suite's.
        played: what was played, in words.
        faults: one sentence each, the member first; empty where nothing is wrong.
    """

    name: str
    played: str
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def __str__(self) -> str:
        head = f"check_suite of {self.name}: {self.played}"
        return "\n".join([f"{head}; nothing is wrong"] if self.ok else [head, *(f"- {fault}" for fault in self.faults)])

    def raise_if_wrong(self) -> None:
        """Raise one ValueError that says everything that is wrong."""
        if self.faults:
            raise ValueError(f"check_suite: suite must keep the contract of TaskSuite, got {self}")


class _Checks:
    """The faults found so far, the first of each kind; a check that raises is one."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def add(self, fault: str) -> None:
        if not any(fault[:_ALIKE] == known[:_ALIKE] for known in self.faults):
            self.faults.append(fault)

    def of(self, member: str, call: Callable[[], Any]) -> Any:
        """What `call` returns, or None where it raises, which is a fault of `member`."""
        answer = asked(member, call)
        if isinstance(answer, EnvFailure):
            self.add(answer.message)
            return None
        return answer

    def own(self, member: str, call: Callable[[], Any]) -> Any:
        """The same for a check of this library's, whose own messages say it all."""
        try:
            return call()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1].filename
            if os.path.dirname(where) != os.path.dirname(__file__):
                return self.of(member, call)
            self.add(str(error))
            return None


def check_suite(
    suite: TaskSuite, tokenizer: PreTrainedTokenizerBase | None = None, *, split: str = "train", episodes: int = 2
) -> SuiteReport:
    """Play a suite's contract through: every member's answers, resets and replays, splits, contexts, odd responses.

    Nothing is generated and no process is started. Each of a few tasks is played with several fixed choices of actions
    (listed ones where the environment lists them, else what ``parse`` makes of odd responses), and again in a second
    environment and in one that was used before: all three must show the same.

    Args:
        suite: the task suite.
        tokenizer: its chat template is given the suite's messages; None leaves that out.
        split: the split whose tasks are played.
        episodes: how many of its tasks, at most.

    Returns:
        A report; ``str(report)`` lists what is wrong, ``report.raise_if_wrong()`` raises it.
    """
    checks = _Checks()
    for name in REQUIRED:
        checks.own(
            name, lambda name=name: checked_setting(suite, name) if name in REQUIRED[:4] else suite_member(suite, name)
        )
    label = str(getattr(suite, "name", type(suite).__name__))
    if checks.faults:
        return SuiteReport(label, "its members alone", tuple(checks.faults))
    tasks = _splits(suite, split, checks)[:episodes]
    kwargs = _template(suite, tokenizer, checks)
    _optional_members(suite, checks)
    for task in tasks:
        _contexts(suite, task, checks)
    for response in ODD_RESPONSES:
        answer = parsed_response(suite, response)
        if isinstance(answer, EnvFailure):
            checks.add(f"{answer.message}; it was given {response[:40]!r}")
    factory = _factory(suite, checks)
    if factory is None or not tasks:
        return SuiteReport(label, "no episode", tuple(checks.faults))

    def prompt(messages: list[Message], task: Task) -> None:
        _prompts(suite, task, messages, checks, tokenizer if kwargs is not None else None, kwargs or {})

    with Trial(suite, factory, checks.add, prompt) as trial:
        for task in tasks:
            trial.play(task)
    ended = f", {trial.ended} of them to their end" if trial.ended else ", none of them to its end"
    played = f"{trial.episodes} episodes of {len(tasks)} tasks of {split!r}{ended}"
    return SuiteReport(label, played, tuple(checks.faults))


def _splits(suite: TaskSuite, split: str, checks: _Checks) -> list[Task]:
    """The tasks of the split; other splits must hold other tasks, and every call must give the same."""
    tasks = checks.own("tasks", lambda: checked_tasks(suite, split)) or []
    if tasks and checks.own("tasks", lambda: checked_tasks(suite, split)) != tasks:
        checks.add(f"tasks({split!r}) must give the same list on every call, got two that differ")
    named = getattr(suite, "splits", _SPLITS)
    named = _SPLITS if callable(named) or isinstance(named, str) else tuple(named)
    ids = {split: {task.id for task in tasks}}
    for other in named:
        if other == split:
            continue
        try:
            found = {task.id for task in suite.tasks(other)}
        except Exception:  # there need not be such a split
            continue
        for name, known in ids.items():
            shared = sorted(known & found)
            if shared:
                checks.add(
                    f"tasks({name!r}) and tasks({other!r}) must hold different tasks, got {len(shared)} in both, "
                    f"such as {shared[0]!r}"
                )
        ids[other] = found
    return tasks


def _template(suite: TaskSuite, tokenizer: PreTrainedTokenizerBase | None, checks: _Checks) -> Mapping[str, Any] | None:
    """Variables of the template, or None where there is no template to try."""
    where = "check_suite"
    if tokenizer is None:
        checks.own("tools", lambda: template_options(suite, {}, where))
        return None

    def options() -> Mapping[str, Any]:
        check_tokenizer(tokenizer)
        found = template_options(suite, {}, where, str(tokenizer.chat_template))
        check_chat_template(tokenizer, found)
        return found

    return checks.own("tools", options)


def _optional_members(suite: TaskSuite, checks: _Checks) -> None:
    span = getattr(suite, "causal_span", "action_only")
    if span not in ("action_only", "clean_step"):
        checks.add(f'causal_span must be "action_only" or "clean_step", got {span!r}')
    for name in ("contexts", "with_context", "same_target", "gold_answer"):
        member = getattr(suite, name, None)
        if member is not None and not callable(member):
            checks.add(f"{name} must be a method, got {member!r}; leave it out where there is none")


def _contexts(suite: TaskSuite, task: Task, checks: _Checks) -> None:
    """Contexts are text and the same on every call."""
    readers: dict[str, Callable[[], Any]] = {
        "privileged_context": lambda: context_answer(suite.privileged_context(task)),
    }
    named = getattr(suite, "contexts", None)
    if callable(named):
        readers["contexts"] = lambda: {
            name: context_answer(text, "contexts", name) for name, text in contexts_answer(named(task)).items()
        }
    for member, read in readers.items():
        first, again = checks.of(member, read), checks.of(member, read)
        if first != again:
            checks.add(f"{member} must give a task the same text on every call, got {first!r:.80} and {again!r:.80}")


def _factory(suite: TaskSuite, checks: _Checks) -> Callable[[], Any] | None:
    factory = checks.own("make_env", lambda: checked_factory(suite))
    if factory is None:
        return None
    checks.own("make_env", lambda: check_picklable(suite, factory))
    one, other = (checks.of("make_env()", factory) for _ in range(2))
    if one is None or other is None:
        return None
    if one is other:
        checks.add("make_env must return a factory that makes a new environment, got the same one twice")
    wrong = [name for name in ("reset", "step", "close") if not callable(getattr(one, name, None))]
    if wrong:
        checks.add(
            f"make_env must make environments with reset, step and close, got {type(one).__name__} without {wrong}"
        )
        return None
    for env in (one, one, other):  # closing twice is harmless
        checks.of("close", env.close)
    return factory


def _prompts(
    suite: TaskSuite,
    task: Task,
    messages: list[Message],
    checks: _Checks,
    tokenizer: PreTrainedTokenizerBase | None,
    kwargs: Mapping[str, Any],
) -> None:
    """The template takes the messages, also with a context where the suite puts it."""

    def taken(member: str, shown: list[Message]) -> bool:
        try:
            return tokenizer is None or bool(Chat(tokenizer, shown, kwargs).ids())
        except Exception as error:
            checks.add(f"{member}: {error}")
            return False

    context = asked("privileged_context", lambda: suite.privileged_context(task))
    hooked = hasattr(suite, "with_context")
    if not taken("messages", messages) or (context is None and not hooked):
        return
    member, text = "with_context" if hooked else "messages", context if isinstance(context, str) else "hint"
    told = checks.of(member, lambda: informed(suite, messages, text))
    if told is not None:
        taken(member, told)
