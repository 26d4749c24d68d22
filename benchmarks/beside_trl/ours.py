"""A child of benchmarks/trl.py: updates of turncredit's trainer. ``ours.py JOB``."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from measure import Meter, read_job
from suite import TextSuite
from transformers import PreTrainedModel
from workloads import BETA, LEARNING_RATE, WORKLOADS, Workload, load, observation, reward_of

from turncredit.rollout.types import Trajectory
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer


class Count(GRPOCallback):
    """Tokens of the last rollouts; the first ones are recorded for the other side."""

    def __init__(self, record: Path):
        self.record = record

    def on_rollout(self, trainer: GRPOTrainer, trajectories: Sequence[Trajectory]) -> None:
        if trainer.step == 0:
            ordered = sorted(trajectories, key=lambda t: (t.group_id, t.rollout_index))
            self.record.write_text(json.dumps([[t.turns[0].prompt_ids, t.turns[0].response_ids] for t in ordered]))
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        self.work = {
            "trajectories": float(len(trajectories)),
            "prompt tokens": float(sum(len(t.turns[0].prompt_ids) for t in trajectories)),
            "sampled tokens": float(sum(len(turn.response_ids) for turn in turns)),
            "tokens of whole trajectories": float(
                sum(len(t.turns[-1].prompt_ids) + len(t.turns[-1].response_ids) for t in trajectories)
            ),
            "mean reward": sum(t.reward for t in trajectories) / len(trajectories),
        }


def config_of(workload: Workload, model: PreTrainedModel, job: dict[str, Any], folder: str) -> GRPOConfig:
    """TRL's settings under our names; every episode in play at once, in this process."""
    options: dict[str, Any] = {
        "max_steps": job["updates"] + 1,
        "num_tasks": workload.tasks,
        "num_generations": workload.rollouts,
        "max_completion_length": workload.new_tokens,
        "max_prompt_length": model.config.max_position_embeddings - workload.new_tokens,
        "num_envs": workload.rows,
        "num_workers": 0,
        "learning_rate": LEARNING_RATE,
        "beta": BETA,
        "epsilon_high": 0.2,
        "delta": None,
        "entropy_coef": job["entropy_coef"],
        "loss_type": "grpo",
        "log_completions": 0,
        "report_to": "none",
    }
    return GRPOConfig(folder, **options, **job["options"])


def main() -> None:
    meter, job = Meter(), read_job()
    torch.set_num_threads(job["threads"])
    workload = WORKLOADS[job["workload"]]
    model, tokenizer, prompts = load(Path(job["folder"]) / job["workload"])
    count = Count(Path(job["folder"]) / job["workload"] / "first.json")
    config = config_of(workload, model, job, str(Path(job["folder"]) / "run"))
    suite = TextSuite(prompts, workload.turns, functools.partial(observation, workload), reward_of)
    with GRPOTrainer(model, tokenizer, suite, config, callbacks=[count]) as trainer:
        for _ in range(job["updates"] + 1):
            meter.start()
            metrics = trainer.train_step()
            phases = {name: metrics[f"time/{name}_seconds"] for name in ("generation", "scoring", "training")}
            work = {"loss": metrics["train/loss"], "gradient norm": metrics["train/grad_norm"]}
            saved = {f"{name} share": metrics.get(f"train/{name}_share", 0.0) for name in ("padding", "shared")}
            meter.lap(phases, {**count.work, **work, **saved})
    meter.report(
        {"torch": torch.__version__, "transformers": transformers.__version__, "accelerate": accelerate.__version__}
    )


if __name__ == "__main__":
    main()
