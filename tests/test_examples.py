"""The commands of the README, small: trained, resumed, evaluated, as a user would type them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from turncredit.rollout import load_trajectories

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("textworld") is None, reason='ALFWorld needs pip install "turncredit[alfworld]"'
)


def run(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / "train_alfworld.py"), *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
def test_train_resume_and_evaluate_the_embedded_default(tmp_path):
    small = ["--games-dir", str(tmp_path / "games"), "--num-games", "4", "--output-dir", str(tmp_path / "run")]
    for option in ("num_tasks=2", "num_generations=2", "num_eval_tasks=6", "eval_steps=1"):
        small += ["--set", option]
    said = run(*small, "--max-steps", "1")
    assert "success on 6 held-out tasks" in said
    said = run(*small, "--max-steps", "2", "--resume")
    assert "after 2 updates of agent_opsd" in said
    folder = tmp_path / "run"
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [0, 1, 2]
    assert log[1]["teacher/rows"] > 0
    assert len(load_trajectories(folder / "eval_trajectories.jsonl.gz")) == 6
    assert (folder / "checkpoints" / "step-000002" / "model" / "model.safetensors").is_file()
    if importlib.util.find_spec("matplotlib"):
        assert (folder / "learning_curve.png").stat().st_size > 5000
    said = run(*small, "--eval-only")
    assert '"eval/success"' in said
    assert '"eval_privileged/success"' in said


def test_a_wrong_option_lists_the_known_ones():
    command = [sys.executable, str(ROOT / "examples" / "train_alfworld.py"), "--set", "learning_rat=1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode != 0
    assert "did you mean 'learning_rate'?" in result.stderr
    assert "learning_rate" in result.stderr
