"""Times of several functions that another load on the machine meets alike, and the memory of a process."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

RETURNING = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment of a process whose freed tensors go back to the system at once (glibc)."""


def in_turns(functions: dict[str, Callable[[], object]], clock: Callable[[], float], rounds: int) -> dict[str, float]:
    """Median milliseconds of each function over ``rounds`` rounds, each of which runs all of them once.

    A round to warm up comes first.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for count in range(rounds + 1):
        for name, function in functions.items():
            start = clock()
            result = function()
            if count:
                times[name].append(1e3 * (clock() - start))
            del result
    return {name: statistics.median(values) for name, values in times.items()}


def both_clocks(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median CPU seconds of all threads, and elapsed ones, of each function; taken in turns, none to warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            cpu, wall = time.process_time(), time.perf_counter()
            result = function()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            del result
    return {
        name: (statistics.median(cpu for cpu, _ in pairs), statistics.median(wall for _, wall in pairs))
        for name, pairs in times.items()
    }


def memory(field: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (peak) of this process; Linux alone has them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"memory: this system reports no {field}; run the benchmark on Linux")


def forget_peak() -> None:
    """``VmHWM`` counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def table(*cells: object) -> None:
    """One row of a Markdown table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
