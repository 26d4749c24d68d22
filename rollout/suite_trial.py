"""Episodes of a suite under fixed choices of actions, each played three times: they must be the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..envs import EnvFailure, Environment, HistoryEntry, Observation, StepResult, Task, TaskSuite
from ..envs.vector import VectorEnv
from .suite_calls import parsed_response, turn_messages
from .types import Message

LONGEST = 20
"""Turns of a trial episode, at most."""
_RULES = 5
_NO_ACTION = "qvz no such action 90125"
_SAID = (
    "<think>a</think><action>look</action>",
    "<think>a</think><search>door</search>",
    "<think>a</think><answer>door</answer>",
    "look",
)


class Trial:
    """Two environments of a suite, and what goes wrong in them.

    Args:
        suite: the suite, whose settings are right.
        factory: of its environments.
        add: takes a sentence about a fault.
        prompt: called with the messages of every turn of a first play, and the task.
    """

    def __init__(
        self,
        suite: TaskSuite,
        factory: Callable[[], Environment],
        add: Callable[[str], None],
        prompt: Callable[[list[Message], Task], None],
    ):
        self._suite, self._add, self._prompt = suite, add, prompt
        self._envs = VectorEnv(factory, 2, num_workers=0)
        parsed = [parsed_response(suite, text) for text in _SAID]
        self._actions = tuple(dict.fromkeys([*(p.action for p in parsed if not isinstance(p, EnvFailure)), ""]))
        self.episodes = self.ended = 0

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *exc: object) -> None:
        self._envs.close()

    def play(self, task: Task) -> None:
        """Play a task under every rule, and each episode again in both environments."""
        for rule in range(_RULES):
            actions, first = self._first(task, rule)
            self.episodes += 1
            self.ended += isinstance(first[-1], StepResult) and first[-1].done
            for slot, where in ((1, "another environment"), (0, "an environment that was used before")):
                if not self._same(first, self._again(slot, task, actions), task, where):
                    return
            if isinstance(first[-1], EnvFailure):
                return

    def _first(self, task: Task, rule: int) -> tuple[list[str], list[StepResult | EnvFailure]]:
        """Play in the first environment, with prompts; the actions taken and what came of the reset and of each."""
        answer = self._envs.reset({0: task.id})[0]
        outcome = answer if isinstance(answer, EnvFailure) else StepResult(answer)
        actions: list[str] = []
        outcomes: list[StepResult | EnvFailure] = [outcome]
        history: list[HistoryEntry] = []
        while not isinstance(outcome, EnvFailure) and not outcome.done:
            if len(actions) >= min(int(self._suite.max_turns), LONGEST):
                break
            seen = outcome.observation
            self._messages(task, history, seen)
            actions.append(self._action(seen, rule, len(actions)))
            outcome = self._envs.step({0: actions[-1]})[0]
            outcomes.append(outcome)
            if isinstance(outcome, StepResult):
                self._listed(seen, actions[-1], outcome)
                history.append(HistoryEntry(seen.text, actions[-1], actions[-1], "", outcome.valid))
        if isinstance(outcome, EnvFailure):
            member = "step" if actions else "reset"
            said = outcome.message
            self._add(said if said.startswith(member) else f"{member}: {said}")
        return actions, outcomes

    def _action(self, observation: Observation, rule: int, turn: int) -> str:
        """The rule's own listed action in every turn; the last rule takes them in turn, with one that is none first."""
        listed = observation.admissible_actions or self._actions
        if rule == _RULES - 1:
            return _NO_ACTION if turn == 0 else listed[turn * 7 % len(listed)]
        return listed[rule % len(listed)]

    def _listed(self, observation: Observation, action: str, outcome: StepResult) -> None:
        if action in observation.admissible_actions and not outcome.valid:
            self._add(f"step must take the actions that admissible_actions lists, got valid=False for {action!r}")

    def _messages(self, task: Task, history: list[HistoryEntry], observation: Observation) -> None:
        given = copy.deepcopy(history)
        messages = turn_messages(self._suite, task, given, observation)
        again = turn_messages(self._suite, task, list(history), observation)
        if isinstance(messages, EnvFailure):
            self._add(messages.message)
            return
        if given != history:
            self._add("messages must leave the history as it is, got it changed; make a list of its own")
        if messages != again:
            self._add("messages must be the same for the same history and observation, got two that differ")
        self._prompt(messages, task)

    def _again(self, slot: int, task: Task, actions: list[str]) -> list[StepResult | EnvFailure]:
        answer = self._envs.reset({slot: task.id})[slot]
        outcomes: list[StepResult | EnvFailure] = [answer if isinstance(answer, EnvFailure) else StepResult(answer)]
        for action in actions:
            last = outcomes[-1]
            if isinstance(last, EnvFailure) or last.done:
                break
            outcomes.append(self._envs.step({slot: action})[slot])
        return outcomes

    def _same(self, first: list[Any], again: list[Any], task: Task, where: str) -> bool:
        for turn, (one, other) in enumerate(zip(first, again, strict=False)):
            name, got, expected = _difference(one, other)
            if name:
                member = "reset" if turn == 0 else "step"
                self._add(
                    f"{member} must depend on the task and the actions alone, got another {name} of task {task.id!r} "
                    f"after {turn} actions in {where}: {got!r:.100} instead of {expected!r:.100}"
                )
                return False
        return True


def _difference(one: StepResult | EnvFailure, other: StepResult | EnvFailure) -> tuple[str, Any, Any]:
    """The first thing in which an outcome differs from another: its name, then both; "" where there is none."""
    if isinstance(one, EnvFailure) or isinstance(other, EnvFailure):
        if type(one) is type(other):
            return "", None, None
        told = [x.message if isinstance(x, EnvFailure) else x.observation.text for x in (other, one)]
        return "outcome", told[0], told[1]
    for name in ("text", "admissible_actions", "anchor"):
        values = getattr(other.observation, name), getattr(one.observation, name)
        if values[0] != values[1]:
            return "observation" if name == "text" else name, *values
    for name in ("reward", "done", "success", "valid"):
        if getattr(one, name) != getattr(other, name):
            return name, getattr(other, name), getattr(one, name)
    return "", None, None
