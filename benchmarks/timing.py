"""Times of several functions that another load on the machine meets alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable


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
