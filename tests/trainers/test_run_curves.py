"""Curves of runs are read from their folders: one label for its seeds, x in updates, environment steps or hours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turncredit.trainers.launch import plot_runs

pytest.importorskip("matplotlib")


def write(folder: Path, successes: list[float], **extra: float) -> Path:
    """A run of as many updates; 10 turns an episode, 4 episodes of which 1 failed, half an hour an update."""
    folder.mkdir(parents=True)
    lines = [{"step": 0, "eval/success": 0.1}]
    for step, success in enumerate(successes, 1):
        rollout = {"rollout/success": success, "rollout/episodes": 4.0, "rollout/failed": 1.0, "rollout/turns": 10.0}
        lines.append({"step": step, **rollout, "time/total_seconds": 1800.0, **extra})
    lines[-1]["eval/success"] = 0.7
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def thick(figure) -> dict[str, list[list[float]]]:
    return {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_linewidth() == 2}


def test_seeds_of_a_label_are_averaged(tmp_path: Path) -> None:
    paths = [write(tmp_path / "grpo" / f"seed_{seed}", [0.1 * seed, 0.5]) for seed in (1, 3)]
    write(tmp_path / "agent_opsd-seed3", [0.2, 0.4])
    for runs in (
        [tmp_path / "grpo", tmp_path / "agent_opsd-seed3"],
        [*map(str, paths), tmp_path / "agent_opsd-seed3" / "metrics.jsonl"],
    ):
        found = thick(plot_runs(runs))
        assert list(found) == ["grpo (2 seeds)", "agent_opsd (1 run, no band)"]
        assert found["grpo (2 seeds)"] == [[1, pytest.approx(0.2)], [2, 0.5]]
    named = thick(plot_runs({"mine": paths, "other": tmp_path / "agent_opsd-seed3"}, title="x"))
    assert list(named) == ["mine (2 seeds)", "other (1 run, no band)"]


@pytest.mark.parametrize(
    ("axis", "xs", "said"),
    [
        ("updates", [0, 2], "updates"),
        ("environment steps", [0, 60], "environment steps (turns of the training rollouts)"),  # 2 x (4 - 1) x 10
        ("hours", [0, 1], "hours (updates, without evaluations)"),
    ],
)
def test_x_is_what_was_asked_for(tmp_path: Path, axis: str, xs: list[float], said: str) -> None:
    figure = plot_runs(write(tmp_path / "a", [0.1, 0.2]), "eval/success", axis=axis)  # type: ignore[arg-type]
    assert thick(figure) == {"a (1 run, no band)": [[xs[0], 0.1], [xs[1], 0.7]]}
    assert figure.axes[0].get_xlabel() == said
    assert figure.axes[0].get_ylabel() == "eval/success"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = write(tmp_path / "a", [0.1, 0.2])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"plot_runs: runs must hold metrics\.jsonl, got .*empty"):
        plot_runs(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"runs must name each run once, got .*metrics\.jsonl twice"):
        plot_runs({"a": run, "b": [run / "metrics.jsonl"]})
    with pytest.raises(ValueError, match=r"got 'rollout/sucess', which .* lacks; did you mean 'rollout/success'\?"):
        plot_runs(run, "rollout/sucess")
    with pytest.raises(ValueError, match="runs must name at least one run, got none"):
        plot_runs([])
    with pytest.raises(ValueError, match="plot_runs: axis must be one of 'updates', 'environment steps', 'hours'"):
        plot_runs(run, axis="days")  # type: ignore[arg-type]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").write_text('{"step": 1, "rollout/success": 0.5}\n')
    with pytest.raises(ValueError, match="axis 'hours' must find time/total_seconds in every run, got none in"):
        plot_runs(tmp_path / "bare", axis="hours")
