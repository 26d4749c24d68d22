"""An environment that answers what it is told to; workers import this file as a module of its own, without torch."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from turncredit.envs import EnvFailure, Observation, StepResult

FINE = Observation("fine", ("go",))
GymStep = namedtuple("GymStep", "observation reward done success valid info")


def tensor(value: Any) -> Any:
    import torch

    return torch.tensor(value)


class Mute:
    """Says nothing about itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Talkative(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@dataclasses.dataclass(frozen=True)
class RichResult(StepResult):
    """A subclass with a field and a constructor of its own."""

    colour: str = "red"


def foreign_class() -> Any:
    """An object whose class only the worker knows."""
    module = types.ModuleType("only_in_the_worker")
    exec("class Thing: pass", module.__dict__)
    sys.modules["only_in_the_worker"] = module
    return module.Thing()


def step(**fields: Any) -> StepResult:
    return StepResult(**{"observation": FINE, **fields})


# what the environment answers -> what the message must say
BAD_STEPS: dict[str, tuple[Any, str]] = {
    "reward None": (lambda: step(reward=None), "reward must be a finite number .* got None"),
    "reward nan": (lambda: step(reward=float("nan")), "reward must be a finite number .* got nan"),
    "reward inf": (lambda: step(reward=float("inf")), "reward must be a finite number .* got inf"),
    "reward -inf of numpy": (lambda: step(reward=np.float32("-inf")), "reward must be a finite number .* got .*-inf"),
    "reward beyond float32": (lambda: step(reward=1e30), r"within \+-1e\+15, got 1e\+30"),
    "reward beyond float": (lambda: step(reward=10**400), "reward must be a finite number"),
    "reward text": (lambda: step(reward="1.0"), r"reward must be a finite number .* got '1.0' \(str\)"),
    "reward text of numpy": (lambda: step(reward=np.array("1.0")), "reward must be a finite number"),
    "reward array": (lambda: step(reward=np.array([1.0])), r"reward must be a finite number .* got array\(\[1.\]\)"),
    "reward tensor nan": (lambda: step(reward=tensor(float("nan"))), "reward must be a finite number"),
    "reward tensor of one": (lambda: step(reward=tensor([1.0])), "reward must be a finite number"),
    "reward list": (lambda: step(reward=[1.0]), "reward must be a finite number"),
    "reward complex": (lambda: step(reward=1j), "reward must be a finite number"),
    "reward masked": (lambda: step(reward=np.ma.masked), "reward must be a finite number"),
    "reward decimal nan": (lambda: step(reward=Decimal("sNaN")), "reward must be a finite number"),
    "reward mute": (lambda: step(reward=Mute()), "reward must be a finite number .* got a Mute"),
    "success 10": (lambda: step(success=10.0), r"success must be a bool or a fraction in \[0, 1\], got 10.0"),
    "success -1": (lambda: step(success=-1), "success must be"),
    "success nan": (lambda: step(success=float("nan")), "success must be"),
    "success None": (lambda: step(success=None), "success must be .* got None"),
    "success text": (lambda: step(success="False"), "success must be .* got 'False'"),
    "success array": (lambda: step(success=np.array([True, False])), "success must be"),
    "done None": (lambda: step(done=None), "done must be a bool, got None"),
    "done text": (lambda: step(done="False"), "done must be a bool, got 'False'"),
    "done 2": (lambda: step(done=2), "done must be a bool, got 2"),
    "done half": (lambda: step(done=0.5), "done must be a bool, got 0.5"),
    "valid None": (lambda: step(valid=None), "valid must be a bool, got None"),
    "valid info": (lambda: step(valid={"ok": True}), "valid must be a bool"),
    "info text": (lambda: step(info="score 0.7"), "info must be a mapping, got 'score 0.7'"),
    "info list": (lambda: step(info=[("score", 0.7)]), "info must be a mapping"),
    "info lambda": (lambda: step(info={"send": lambda: None}), "cannot be pickled"),
    "observation None": (lambda: step(observation=None), "StepResult: observation must be an Observation, got None"),
    "observation text": (lambda: step(observation="a room"), "observation must be an Observation, got 'a room'"),
    "text None": (lambda: step(observation=Observation(None)), "text must be a str, got None"),
    "text bytes": (lambda: step(observation=Observation(b"room")), "text must be a str, got b'room'"),
    "text dict": (lambda: step(observation=Observation({"text": "room"})), "text must be a str"),
    "text array": (lambda: step(observation=Observation(np.zeros(3))), "text must be a str"),
    "anchor number": (lambda: step(observation=Observation("room", anchor=7)), "anchor must be a str, got 7"),
    "actions text": (lambda: step(observation=Observation("room", "go")), "must be a tuple of str, got 'go'"),
    "actions number": (lambda: step(observation=Observation("room", 4)), "must be a tuple of str, got 4"),
    "actions mapping": (lambda: step(observation=Observation("room", {"a": 1})), "must be a tuple of str"),
    "actions numbers": (lambda: step(observation=Observation("room", (1, 2))), "must hold str alone, got 1"),
    "observation info": (lambda: step(observation=Observation("room", info=3)), "Observation: info must be a mapping"),
    "tuple of 4": (lambda: (FINE, 1.0, True, {}), r"the result must be a StepResult, got \(Observation"),
    "tuple of 5": (lambda: ("room", 1.0, True, False, {}), "the result must be a StepResult"),
    "named tuple": (lambda: GymStep(FINE, 1.0, True, True, True, {}), "the result must be a StepResult"),
    "dict": (lambda: {"observation": FINE, "reward": 1.0}, "the result must be a StepResult"),
    "str": (lambda: "You win", r"the result must be a StepResult, got 'You win' \(str\)"),
    "None": (lambda: None, "the result must be a StepResult, got None"),
    "number": (lambda: 1.0, "the result must be a StepResult, got 1.0"),
    "observation": (lambda: FINE, "the result must be a StepResult, got Observation"),
    "class": (lambda: StepResult, "the result must be a StepResult"),
}

BAD_RESETS: dict[str, tuple[Any, str]] = {
    "reset None": (lambda: None, "reset: the result must be an Observation, got None"),
    "reset str": (lambda: "a room", "reset: the result must be an Observation, got 'a room'"),
    "reset tuple": (lambda: ("a room", {}), "reset: the result must be an Observation"),
    "reset step": (lambda: step(), "reset: the result must be an Observation, got StepResult"),
    "reset text None": (lambda: Observation(None), "Observation: text must be a str, got None"),
    "reset actions": (lambda: Observation("room", "go"), "admissible_actions must be a tuple of str"),
    "reset info": (lambda: Observation("room", info={"send": lambda: None}), "cannot be pickled"),
}

GOOD_STEPS: dict[str, Any] = {
    "plain": lambda: step(reward=0.5, done=True, success=True),
    "ints": lambda: step(reward=1, done=1, success=1, valid=0),
    "numpy": lambda: step(reward=np.float32(0.5), done=np.bool_(True), success=np.bool_(True), valid=np.True_),
    "arrays": lambda: step(reward=np.array(0.5), done=np.array(True), success=np.array(1)),
    "tensors": lambda: step(reward=tensor(0.5), done=tensor(True), success=tensor(1.0)),
    "decimal": lambda: step(reward=Decimal("0.5"), done=True, success=Fraction(1)),
    "fraction": lambda: step(reward=Fraction(1, 2), success=Fraction(1, 4)),
    "bool": lambda: step(reward=True),
    "rich": lambda: RichResult(FINE, np.float64(0.5), colour="blue"),
    "info None": lambda: step(info=None),
    "actions None": lambda: step(observation=Observation("room", None)),
    "actions list": lambda: step(observation=Observation("room", ["go", "stay"], None)),
    "actions numpy": lambda: step(observation=Observation(np.str_("room"), np.array(["go", "stay"]))),
    "actions set": lambda: step(observation=Observation("room", {"stay", "go", "jump", "duck"})),
    "info proxy": lambda: step(info=types.MappingProxyType({"score": 2})),
    "own failure": lambda: EnvFailure("unscored", "the judge is away"),
    "numbers": lambda: step(
        info={
            "float": 0.5,
            "int": 3,
            "bool": True,
            "numpy float": np.float16(0.25),
            "numpy int": np.int64(4),
            "numpy bool": np.bool_(False),
            "array": np.array(7),
            "tensor": tensor(8),
            "bfloat": tensor(0.5).bfloat16(),
            "decimal": Decimal("0.125"),
            "fraction": Fraction(1, 8),
            "nan": float("nan"),
            "inf": np.inf,
            "huge": 10**400,
            "text": "0.5",
            "none": None,
            "vector": np.zeros(2),
            "parts": {"a": 1.0},
            17: 1,
        }
    ),
}


class Says:
    """Answers as told by the task id at a reset and by the action at a step."""

    def reset(self, task_id: str) -> Any:
        return BAD_RESETS[task_id][0]() if task_id in BAD_RESETS else Observation(f"start {task_id}", ("go",))

    def step(self, action: str) -> Any:
        if action == "exit":
            raise SystemExit(3)
        if action == "talkative":
            raise Talkative
        if action == "foreign":
            return step(info={"thing": foreign_class()})
        if action in BAD_STEPS:
            return BAD_STEPS[action][0]()
        return GOOD_STEPS[action]() if action in GOOD_STEPS else step(done=action == "end")

    def close(self) -> None:
        """Nothing to free."""


class Playing:
    """Two good turns, then the answer that the task id names, at once or at the second turn."""

    def reset(self, task_id: str) -> Any:
        self.task_id, self.turns = task_id, 0
        return BAD_RESETS[task_id][0]() if task_id in BAD_RESETS else Observation("red door", ("red",))

    def step(self, action: str) -> Any:
        self.turns += 1
        if self.turns == 2 and self.task_id in BAD_STEPS:
            return BAD_STEPS[self.task_id][0]()
        if self.turns == 2 and self.task_id in GOOD_STEPS:
            return GOOD_STEPS[self.task_id]()
        done = self.turns == 3
        return StepResult(Observation("door"), reward=0.25 * self.turns, done=done, success=done)

    def close(self) -> None:
        self.turns = 0
