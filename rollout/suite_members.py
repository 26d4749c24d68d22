"""The members of a task suite that are asked once: settings, tasks and the factory; each error names the member."""

from __future__ import annotations

import numbers
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..envs import Environment, Task, TaskSuite
from ..envs.results import shown
from .stop_strings import check_stop_strings

REQUIRED = (
    *("name", "max_turns", "history_length", "stop_strings"),
    *("tasks", "make_env", "messages", "parse", "privileged_context"),
)


def suite_member(suite: Any, name: str) -> Any:
    """A member of the suite.

    Raises:
        TypeError: there is none of that name, or a method is none.
    """
    missing = object()
    value = getattr(suite, name, missing)
    if value is missing:
        raise TypeError(
            f"{type(suite).__name__}.{name} must be there, got no such member; see turncredit.envs.TaskSuite"
        )
    if name in REQUIRED[4:] and not callable(value):
        raise TypeError(f"{type(suite).__name__}.{name} must be a method, got {_shown(value)}; write def {name}(..)")
    return value


def checked_setting(suite: Any, name: str) -> Any:
    """``name``, ``max_turns``, ``history_length`` or ``stop_strings`` of a suite.

    Raises:
        TypeError, ValueError: the setting is missing, of another kind or out of range.
    """
    owner, value = type(suite).__name__, suite_member(suite, name)
    if name == "stop_strings":
        return check_stop_strings(value, owner)
    if name == "name":
        if not isinstance(value, str) or not value:
            raise TypeError(f"{owner}.name must be a short text, got {_shown(value)}; metrics and files carry it")
        return value
    least = {"max_turns": 1, "history_length": 0}[name]
    rule = f"{owner}.{name} must be a whole number of at least {least}, got {_shown(value)}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{rule}; a method needs @property" if callable(value) else f"{rule}; write it as an int")
    if value < least:
        raise ValueError(f"{rule}; " + ("15 is usual" if least else "2 is usual, 0 shows none"))
    return value


def checked_factory(suite: TaskSuite) -> Callable[[], Environment]:
    """``suite.make_env()``.

    Raises:
        TypeError: it is no factory, but an environment, say.
    """
    factory: Any = suite_member(suite, "make_env")()
    if not callable(factory):
        raise TypeError(
            f"{type(suite).__name__}.make_env must return a factory of environments, got {_shown(factory)}; return the "
            "class, or functools.partial(the class, its arguments)"
        )
    return cast("Callable[[], Environment]", factory)


def check_picklable(suite: TaskSuite, factory: Callable[[], Environment]) -> None:
    """Raise a ValueError where a worker process could not be sent the factory."""
    try:
        pickle.dumps(factory)
    except Exception as error:  # what cannot be pickled raises what it likes
        raise ValueError(
            f"{type(suite).__name__}.make_env must return a factory that can be pickled, got {_shown(factory)} "
            f"({error}); return a class of a module or functools.partial of one"
        ) from None


def checked_tasks(suite: TaskSuite, split: str) -> list[Task]:
    """``suite.tasks(split)`` as a list.

    Raises:
        TypeError: something else than a sequence of `Task` records with text as id and type.
        ValueError: there is no task, or an id occurs twice.
    """
    where = f"{type(suite).__name__}.tasks({split!r})"
    tasks = suite_member(suite, "tasks")(split)
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        raise TypeError(f"{where} must return a list of Task records, got {_shown(tasks)}; return list(..)")
    for task in tasks:
        if not isinstance(task, Task):
            raise TypeError(f"{where} must hold Task records, got {_shown(task)}; write Task(id, type, split)")
        for name in ("id", "type"):
            if not isinstance(getattr(task, name), str):
                raise TypeError(f"{where} must give every task a text as {name}, got {_shown(getattr(task, name))}")
    if not tasks:
        raise ValueError(f"{where} must hold at least one task, got none; check the split's name and the data")
    ids = [task.id for task in tasks]
    twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise ValueError(
            f"{where} must have ids that are unique, got {len(twice)} more than once, such as {twice[0]!r}"
        )
    return list(tasks)


def _shown(value: Any) -> str:
    return f"{shown(value)} ({type(value).__name__})"
