"""What a training script says at the end, and what it leaves in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...rollout import save_trajectories
from ..loggers import read_metrics

if TYPE_CHECKING:
    from ..grpo import GRPOTrainer


def summarize(trainer: GRPOTrainer, after: dict[str, float], say: Callable[..., None]) -> None:
    """Say success before and after; write the evaluation's trajectories and the learning curve."""
    config, folder = trainer.config, trainer.folder
    save_trajectories(trainer.eval_trajectories, folder / "eval_trajectories.jsonl.gz")
    log = read_metrics(folder / "metrics.jsonl")
    first = next((line for line in log if "eval/success" in line), {})
    for name, label in (("eval/success", "success"), ("eval/reward", "reward")):
        if name == "eval/success" or first.get(name) != first.get("eval/success"):
            say(
                f"{label} on {len(trainer.eval_tasks)} held-out tasks: {first.get(name, float('nan')):.3f} before, "
                f"{after.get(name, float('nan')):.3f} after {trainer.step} updates of {config.credit}"
            )
    if plot_learning_curve(log, folder / "learning_curve.png", f"{trainer.suite.name}, {config.credit}"):
        say(f"learning curve: {folder / 'learning_curve.png'}")
    say(f"metrics, completions, trajectories, checkpoints: {folder}")


def plot_learning_curve(log: list[dict[str, float]], path: Path, title: str) -> bool:
    """Success over updates, in training rollouts and on the held-out panel; False where matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(6, 3.6), constrained_layout=True)
    for name, label, style in (
        ("rollout/success", "training rollouts (temperature 1)", {"color": "#9aa5b1", "lw": 1.2}),
        ("eval/success", "held-out tasks", {"color": "#d1495b", "lw": 2, "marker": "o"}),
        ("eval/reward", "held-out tasks, mean reward", {"color": "#2e86ab", "lw": 1.5, "marker": "s", "ls": "--"}),
    ):
        points = [(line["step"], line[name]) for line in log if name in line]
        same = name == "eval/reward" and all(line[name] == line.get("eval/success") for line in log if name in line)
        if not points or same:
            continue
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="update", ylabel="success", ylim=(0, 1), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
