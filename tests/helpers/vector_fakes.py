"""Small environments for the tests of the vector runner; workers import this file as a module of its own."""

from __future__ import annotations

import os
import signal
import sys
import time

from turncredit.envs import Observation, StepResult


class Counter:
    """Counts the actions of one episode; some actions misbehave on purpose."""

    made = 0

    def __init__(self, log: str | None = None) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.log = log
        self.task = ""
        self.count = 0

    def reset(self, task_id: str) -> Observation:
        if task_id == "broken":
            raise KeyError("no task called broken")
        if task_id == "hang":
            time.sleep(60)
        self.task, self.count = task_id, 0
        return self._observe()

    def step(self, action: str) -> StepResult:
        if action == "raise":
            raise RuntimeError("the engine fell over")
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            time.sleep(60)
        if action == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        self.count += 1
        info = {"send": lambda: None} if action == "unpicklable" else {}
        return StepResult(self._observe(), reward=float(self.count), done=action == "finish", info=info)

    def close(self) -> None:
        if self.log:
            with open(self.log, "a", encoding="utf-8") as stream:
                stream.write(f"closed {self.number}\n")

    def _observe(self) -> Observation:
        info = {"pid": os.getpid(), "env": self.number, "torch": "torch" in sys.modules}
        return Observation(f"{self.task}:{self.count}", info=info)


class Unmakeable:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no licence")
