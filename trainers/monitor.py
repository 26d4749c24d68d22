"""What a person sees of a run while it goes on: a bar over all updates, a line an update, a warning on a collapse."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .collapse import CollapseWatch

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)

_SHOWN = {  # short name -> metric, format
    "success": ("rollout/success", ".3f"),
    "reward": ("rollout/reward", ".3g"),
    "loss": ("train/loss", ".2e"),
    "grad": ("train/grad_norm", ".2g"),
}


def bars_shown(disable_tqdm: bool | None) -> bool:
    """Whether progress bars are drawn: never with True, always with False, with None where a terminal reads them."""
    if disable_tqdm is None:
        return sys.stderr is not None and sys.stderr.isatty()
    return not disable_tqdm


class Monitor:
    """Follows a run on its main process.

    Args:
        trainer: before its first update of this session.
        lines: of ``metrics.jsonl`` so far; what they say of a collapse counts.
    """

    def __init__(self, trainer: GRPOTrainer, lines: Iterable[Mapping[str, Any]] = ()):
        config = trainer.config
        self._total, self._every = config.max_steps, config.logging_steps
        self._first = self._last = trainer.step
        self._begun = self._said = time.perf_counter()
        self._since: list[Mapping[str, float]] = []
        self._watch = CollapseWatch(config.collapse_patience)
        for line in lines:
            self._watch.see(line.get("rollout/success"))
        shown = bars_shown(config.disable_tqdm)
        self._bar: Any = tqdm(
            total=self._total,
            initial=trainer.step,
            desc=config.credit,
            unit="update",
            disable=not shown,
            dynamic_ncols=True,
            smoothing=0.1,
        )

    def after_update(self, trainer: GRPOTrainer, line: Mapping[str, float]) -> None:
        """Say what an update and its evaluation brought.

        Args:
            trainer: after the update.
            line: what ``metrics.jsonl`` holds of it.
        """
        made = trainer.step > self._last
        if made:
            self._last = trainer.step
            self._since.append(line)
            self._bar.update(trainer.step - self._bar.n)
            if self._every and (trainer.step % self._every == 0 or trainer.step == self._total):
                self._say(self._update_line())
        if "eval/success" in line and self._every and (made or self._last == self._first):
            self._say(evaluation_line(trainer.step, self._total, line, trainer.best))
        if not made:
            self._begun = self._said = time.perf_counter()  # the evaluation before the first update is no update
        elif (warning := self._watch.see(line.get("rollout/success"))) is not None:
            logger.warning("update %d: %s", trainer.step, warning)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _update_line(self) -> str:
        now = time.perf_counter()
        seconds, self._said = (now - self._said) / len(self._since), now
        left = (now - self._begun) / (self._last - self._first) * (self._total - self._last)
        means = {name: _mean(line.get(name) for line in self._since) for name, _ in _SHOWN.values()}
        self._since = []
        return update_line(self._last, self._total, means, seconds, left)

    def _say(self, text: str) -> None:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()


def update_line(step: int, total: int, metrics: Mapping[str, float | None], seconds: float, left: float) -> str:
    """A line of at most 100 columns about an update.

    Args:
        step, total: its number, and how many there will be.
        metrics: as in ``metrics.jsonl``; what is missing or None is left out.
        seconds: of an update.
        left: expected until the last update, seconds.
    """
    found = {short: (metrics.get(name), form) for short, (name, form) in _SHOWN.items()}
    shown = [f"{short} {value:{form}}" for short, (value, form) in found.items() if value is not None]
    last = [f"{seconds:.1f} s", f"ETA {tqdm.format_interval(math.ceil(left))}" if step < total else "done"]
    return "  ".join([_place(step, total), *shown, *last])


def evaluation_line(step: int, total: int, metrics: Mapping[str, float], best: Mapping[str, float]) -> str:
    """A line about the panel after an update, and about the best one so far."""
    parts = [f"eval success {metrics['eval/success']:.3f}"]
    if "eval/reward" in metrics:
        parts.append(f"reward {metrics['eval/reward']:.3g}")
    if best:
        parts.append(f"best {best['success']:.3f} after update {int(best['step'])}")
    return "  ".join([_place(step, total), *parts])


def _place(step: int, total: int) -> str:
    width = len(str(total))
    return f"update {step:>{width}}/{total}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
