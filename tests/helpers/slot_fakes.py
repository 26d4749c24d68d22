"""An environment for tests of slots and workers; workers import this file as a module of its own."""

from __future__ import annotations

import os
import signal
import time

from turncredit.envs import Observation, StepResult

closed: list[str] = []


class Steps:
    """Counts the steps of an episode; some actions take their time or kill the process."""

    def reset(self, task_id: str) -> Observation:
        if task_id == "broken":
            raise KeyError("no task called broken")
        if task_id == "slow":
            time.sleep(0.2)
        self.task, self.count = task_id, 0
        return Observation(f"{task_id}:0", info={"pid": os.getpid()})

    def step(self, action: str) -> StepResult:
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action in ("nap", "hang"):
            time.sleep(0.2 if action == "nap" else 60)
        self.count += 1
        return StepResult(Observation(f"{self.task}:{self.count}"), done=action == "finish")

    def close(self) -> None:
        closed.append(getattr(self, "task", "never reset"))
