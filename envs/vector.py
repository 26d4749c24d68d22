"""Many episodes at once in worker processes, where a process that dies or hangs costs its episodes and not the run."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from multiprocessing.connection import Connection, wait
from typing import Any

from ._process import WorkerProcess, factory_message
from ._worker import EnvSlots
from .base import EnvFailure, Environment, Observation, StepResult

_CHUNK = 8


class SlotState(Enum):
    """Where a slot is. ``LOST`` is an episode whose failure has not been told yet."""

    IDLE = "was never reset"
    RUNNING = "is running"
    DONE = "is over"
    LOST = "was lost"
    FAILED = "has failed"
    RELEASED = "was given up"


class VectorEnv:
    """Steps `num_envs` environments, each pinned to a worker process.

    A call sends one message to each worker concerned and waits for all of them together. Environments are made once
    per slot inside the worker and reused for every later episode. What goes wrong travels as `EnvFailure`:

    - an environment that raises: ``"error"`` for that slot; its environment is made anew at the next reset;
    - one whose answer is no `Observation` or `StepResult`, or holds a field of another kind or a number out of range:
      ``"bad_result"`` for that slot;
    - a worker that dies: ``"worker_died"`` for each running episode of that worker;
    - a worker silent for `timeout` seconds: it is killed, and ``"timeout"`` likewise.

    An episode lost while its slot was not part of the call is told at its next step. A worker is replaced when one of
    its slots is next reset. Workers are fresh interpreters that import only the factory's module; they ignore Ctrl-C
    and SIGTERM, and leave when this process does, however it ends.

    Args:
        make_env: a picklable factory. One that is defined in a script itself makes workers import that script, so
            guard its main part with ``if __name__ == "__main__"``.
        num_envs: number of slots, numbered from 0.
        num_workers: processes; 0 plays in this one, where nothing can be timed out.
        timeout: seconds that a worker may take to answer one call for all its slots; the first call includes its start.
        max_worker_rss_mb: replace a worker of more memory than this as soon as none of its episodes is running.

    Raises:
        ValueError: a number is out of range, or the factory cannot be sent to a worker.
    """

    def __init__(
        self,
        make_env: Callable[[], Environment],
        num_envs: int,
        *,
        num_workers: int = 2,
        timeout: float = 120.0,
        max_worker_rss_mb: float | None = None,
    ) -> None:
        for name, value, least in (("num_envs", num_envs, 1), ("num_workers", num_workers, 0)):
            if value < least:
                raise ValueError(
                    f"VectorEnv: {name} must be at least {least}, got {value}; pass a whole number of {least} or more"
                )
        if not timeout > 0:
            raise ValueError(f"VectorEnv: timeout must be positive seconds, got {timeout}; 120 suits most environments")
        self.num_envs = num_envs
        self.timeout = timeout
        self.max_worker_rss_mb = max_worker_rss_mb
        self.workers_recycled = 0
        self._state = [SlotState.IDLE] * num_envs
        self._lost: dict[int, EnvFailure] = {}
        self._closed = False
        count = min(num_workers, num_envs)
        self._local = EnvSlots(make_env) if count == 0 else None
        job = factory_message(make_env) if count else ("", b"")
        self._workers = [WorkerProcess(job) for _ in range(count)]
        chunk = max(1, min(_CHUNK, num_envs // (2 * count))) if count else 1
        self._owner = [slot // chunk % count if count else 0 for slot in range(num_envs)]
        self._finalizer = weakref.finalize(self, _stop_all, os.getpid(), self._workers, self._local)

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers and close the environments. Calling it twice is harmless."""
        self._closed = True
        self._finalizer()

    def reset(self, tasks: Mapping[int, str]) -> dict[int, Observation | EnvFailure]:
        """Start an episode in each given slot, whatever was in it before.

        Args:
            tasks: task id by slot.

        Returns:
            By slot, in the order given: the first observation, or why there is none.

        Raises:
            ValueError: the runner is closed, or there is no such slot.
        """
        self._check("reset", tasks)
        for slot in tasks:
            self._state[slot] = SlotState.IDLE
            self._lost.pop(slot, None)
        if self._workers:
            for index in dict.fromkeys(self._owner[slot] for slot in tasks):
                self._make_ready(index)
        answers = self._ask("reset", tasks)
        for slot, answer in answers.items():
            self._state[slot] = SlotState.FAILED if isinstance(answer, EnvFailure) else SlotState.RUNNING
        return answers

    def step(self, actions: Mapping[int, str]) -> dict[int, StepResult | EnvFailure]:
        """Take one action in each given slot.

        Args:
            actions: action by slot.

        Returns:
            By slot, in the order given: the result, or why there is none.

        Raises:
            ValueError: the runner is closed, or a slot has no episode to go on with.
        """
        self._check("step", actions)
        for slot in actions:
            if self._state[slot] not in (SlotState.RUNNING, SlotState.LOST):
                raise ValueError(
                    f"VectorEnv.step: slot must have a running episode, got slot {slot}, whose episode "
                    f"{self._state[slot].value}; call reset({{{slot}: task_id}}) first"
                )
        told = {slot: self._lost.pop(slot) for slot in actions if slot in self._lost}
        answers = self._ask("step", {slot: action for slot, action in actions.items() if slot not in told})
        for slot, answer in (answers := {**answers, **told}).items():
            if isinstance(answer, EnvFailure):
                self._state[slot] = SlotState.FAILED
            elif answer.done:
                self._state[slot] = SlotState.DONE
        return {slot: answers[slot] for slot in actions}

    def release(self, slots: Iterable[int]) -> None:
        """Give up the episodes in `slots` that go on, at a turn limit, say; nothing is sent.

        A worker none of whose episodes goes on can be recycled; a slot that is not reset again would hold it for ever.

        Raises:
            ValueError: the runner is closed, or there is no such slot.
        """
        slots = dict.fromkeys(slots)
        self._check("release", slots)
        for slot in slots:
            self._lost.pop(slot, None)
            if self._state[slot] in (SlotState.RUNNING, SlotState.LOST):
                self._state[slot] = SlotState.RELEASED

    @property
    def workers_replaced(self) -> int:
        """How many workers have been started in place of one that died or hung."""
        return sum(max(0, worker.starts - 1) for worker in self._workers) - self.workers_recycled

    @property
    def worker_pids(self) -> list[int | None]:
        """Process id per worker; None for one that is not running now."""
        return [worker.pid for worker in self._workers]

    def _check(self, name: str, requests: Mapping[int, Any]) -> None:
        if self._closed:
            raise ValueError(f"VectorEnv.{name}: runner must be open, got a closed one; make a new VectorEnv")
        unknown = [slot for slot in requests if slot not in range(self.num_envs)]
        if unknown:
            raise ValueError(
                f"VectorEnv.{name}: slot must be in 0..{self.num_envs - 1}, got {unknown[0]!r}; raise num_envs for more"
            )

    def _ask(self, kind: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        if self._local is not None:
            return self._local.handle(kind, requests)
        by_worker: dict[int, dict[int, Any]] = {}
        for slot, argument in requests.items():
            by_worker.setdefault(self._owner[slot], {})[slot] = argument
        replies: dict[int, Any] = {}
        waiting: dict[Connection, int] = {}
        deadline = time.monotonic() + self.timeout
        try:
            for index, part in by_worker.items():
                connection = self._workers[index].send(kind, part)
                if connection is None:
                    replies |= self._lose(index, by_worker[index], "worker_died", "the process ended between two calls")
                else:
                    waiting[connection] = index
            while waiting:
                ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
                for connection in ready:
                    index = waiting.pop(connection)  # type: ignore[arg-type]
                    answer = self._workers[index].receive()
                    replies |= answer or self._lose(index, by_worker[index], "worker_died", "the process ended")
                if not ready:
                    for index in waiting.values():
                        replies |= self._lose(index, by_worker[index], "timeout", f"no answer in {self.timeout:g} s")
                    break
        except BaseException:
            for index in waiting.values():
                self._lose(index, {}, "worker_died", "stopped because the call was interrupted")
            raise
        return {slot: replies[slot] for slot in requests}

    def _lose(self, index: int, asked: Mapping[int, Any], cause: str, message: str) -> dict[int, EnvFailure]:
        """End worker `index` and every running episode on it; the failures of the slots asked now are returned."""
        worker = self._workers[index]
        failure = EnvFailure(cause, f"environment worker {index} (process {worker.pid}): {message}")
        worker.stop(patience=0.0)
        for slot, owner in enumerate(self._owner):
            if owner == index and slot not in asked and self._state[slot] is SlotState.RUNNING:
                self._state[slot] = SlotState.LOST
                self._lost[slot] = failure
        return dict.fromkeys(asked, failure)

    def _make_ready(self, index: int) -> None:
        """Bury a worker that died unnoticed, and recycle one that has grown too large and has nothing to lose."""
        worker = self._workers[index]
        if worker.has_died:
            self._lose(index, {}, "worker_died", "the process ended between two calls")
        busy = any(
            owner == index and state is SlotState.RUNNING for owner, state in zip(self._owner, self._state, strict=True)
        )
        if self.max_worker_rss_mb is not None and worker.rss_mb > self.max_worker_rss_mb and not busy:
            worker.ask_to_leave()
            worker.stop(patience=2.0)
            worker.rss_mb = 0.0
            self.workers_recycled += 1


def _stop_all(owner: int, workers: list[WorkerProcess], local: EnvSlots | None) -> None:
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.ask_to_leave()
    for worker in workers:
        worker.stop(patience=2.0)
    if local is not None:
        local.close()
