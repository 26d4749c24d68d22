"""What a preflight found: named checks with their figures, readable, and one error for all that refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK, WARNING, REFUSED, SKIPPED = "ok", "warning", "refused", "skipped"


@dataclass(frozen=True)
class Check:
    """One comparison of a preflight.

    Args:
        name: what was compared.
        status: ``"ok"``, ``"warning"``, ``"refused"`` or ``"skipped"``.
        got: the figure or the fact that was found.
        expected: the tolerance, or what it must be.
        fix: what to do; empty where nothing is to be done.
    """

    name: str
    status: str
    got: str
    expected: str = ""
    fix: str = ""


@dataclass(frozen=True)
class PreflightReport:
    """The outcome of `preflight`; ``str(report)`` is a table.

    Args:
        subject: class of the model.
        precision: in which the forward passes ran.
        checks: in the order they were made.
        stop_ids: ids that end a response.
    """

    subject: str
    precision: str
    checks: tuple[Check, ...]
    stop_ids: tuple[int, ...] = ()

    def having(self, status: str) -> list[Check]:
        """The checks of one status."""
        return [check for check in self.checks if check.status == status]

    @property
    def ok(self) -> bool:
        """Whether nothing refuses; warnings do not."""
        return not self.having(REFUSED)

    def __getitem__(self, name: str) -> Check:
        """The check of that name."""
        return next(check for check in self.checks if check.name == name)

    def summary(self) -> str:
        """One line."""
        parts = [f"{len(self.having(status))} {status}" for status in (OK, WARNING, REFUSED, SKIPPED)]
        figures = ", ".join(f"{check.name} {check.got}" for check in self.checks if check.status in (WARNING, REFUSED))
        shown = ", ".join(part for part in parts if not part.startswith("0 "))
        return f"preflight of {self.subject} in {self.precision}: {shown}" + (f" ({figures})" if figures else "")

    def __str__(self) -> str:
        lines = [f"preflight of {self.subject} in {self.precision}"]
        widths = [max([len(getattr(check, column)) for check in self.checks] or [0]) for column in ("name", "status")]
        for check in self.checks:
            expected = f" ({check.expected})" if check.expected else ""
            lines.append(f"{check.name:<{widths[0]}}  {check.status:<{widths[1]}}  {check.got}{expected}")
            if check.fix:
                lines.append(f"{'':<{sum(widths) + 4}}-> {check.fix}")
        return "\n".join(lines)

    def raise_if_refused(self) -> None:
        """Raise one error that names every refusal.

        Raises:
            ValueError: the model's class, each figure with what it must be, and what to do.
        """
        refused = self.having(REFUSED)
        if not refused:
            return
        told = "; ".join(
            f"{check.name} must be {check.expected}, got {check.got}" + (f"; {check.fix}" if check.fix else "")
            for check in refused
        )
        raise ValueError(f"preflight: {self.subject} in {self.precision} would train wrongly: {told}")


def attempt(name: str, run: Callable[[], Any], fix: str) -> Check:
    """The check that `run` returns, or a refusal that says what it raised; running out of memory is not caught."""
    try:
        return run()
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a model's own code raises what it likes
        if "out of memory" in str(error):
            raise
        first = str(error).strip().split("\n")[0][:200]
        return Check(name, REFUSED, f"{type(error).__name__}: {first}", "possible to compute", fix)
