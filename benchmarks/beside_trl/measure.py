"""What a child process reports of its updates: seconds, seconds by phase, memory, and how much work it had."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def memory_mb(field: str) -> float:
    """Resident memory of this process, now (``VmRSS``) or at its peak (``VmHWM``); Linux only."""
    text = Path("/proc/self/status").read_text()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(field))) / 1024


class Meter:
    """Laps of updates, of which the first warms up; made when everything is imported and nothing is loaded."""

    def __init__(self) -> None:
        self.imports = memory_mb("VmRSS")
        self.laps: list[tuple[float, float]] = []
        self.phases: dict[str, list[float]] = defaultdict(list)
        self.work: dict[str, list[float]] = defaultdict(list)
        self._running: dict[str, float] = defaultdict(float)
        self.start()

    def start(self) -> None:
        """The next lap begins."""
        self._began = time.perf_counter(), time.process_time()

    @property
    def elapsed(self) -> float:
        """Seconds of the lap so far."""
        return time.perf_counter() - self._began[0]

    def lap(self, phases: dict[str, float], work: dict[str, float]) -> None:
        """An update ended: its seconds by phase, and its work (tokens, loss, gradient norm...)."""
        self.laps.append((self.elapsed, time.process_time() - self._began[1]))
        for kind, values in ((self.phases, phases), (self.work, work)):
            for name, value in values.items():
                kind[name].append(value)
        self.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds up until `take`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._running[name] += time.perf_counter() - began

    def timed(self, name: str | Callable[[], str], function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added to the phase of that name."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name if isinstance(name, str) else name()):
                return function(*args, **kwargs)

        return run

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken, self._running = dict(self._running), defaultdict(float)
        return taken

    def report(self, versions: dict[str, str]) -> None:
        """The last line that a child prints: medians of the updates after the first (of it, if alone), peak memory."""
        measured = {"wall seconds": [wall for wall, _ in self.laps], "CPU seconds": [cpu for _, cpu in self.laps]}
        rows = {**measured, **self.phases, **self.work}
        result = {name: statistics.median(values[1:] or values) for name, values in rows.items()}
        result["gradient norm of the first update"] = self.work["gradient norm"][0]
        peak = memory_mb("VmHWM")
        result |= {"peak memory, MB": peak, "above imports, MB": peak - self.imports}
        print(json.dumps({"result": result, "versions": versions}))


def read_job() -> dict[str, Any]:
    """What the parent wants: the first argument, in JSON."""
    return json.loads(sys.argv[1])
