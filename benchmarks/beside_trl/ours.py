"""A child of benchmarks/trl.py: updates of turncredit's trainer. ``ours.py JOB``."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from measure import Meter, read_job
from transformers import PreTrainedModel
from workloads import BETA, LEARNING_RATE, WORKLOADS, Workload, load, observation, reward_of

from turncredit.envs import HistoryEntry, Message, Observation, ParsedResponse, StepResult, Task
from turncredit.rollout.types import Trajectory
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer


class TextEnv:
    """Shows the prompt of its task, then one observation a turn; every turn's text has a reward."""

    def __init__(self, workload: Workload, prompts: list[str]):
        self.workload, self.prompts = workload, prompts

    def reset(self, task_id: str) -> Observation:
        self.task, self.turn = int(task_id), 0
        return Observation(self.prompts[self.task])

    def step(self, action: str) -> StepResult:
        self.turn += 1
        done = self.turn == self.workload.turns
        seen = Observation("" if done else observation(self.workload, self.task, self.turn))
        return StepResult(seen, reward_of(action) / self.workload.turns, done=done)

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class TextSuite:
    """Append-only episodes: a prompt holds the whole dialogue."""

    workload: Workload
    prompts: list[str]
    name: str = "text"
    stop_strings: tuple[str, ...] = ()

    @property
    def max_turns(self) -> int:
        return self.workload.turns

    @property
    def history_length(self) -> int:
        return self.workload.turns

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(str(index), "text", split) for index in range(len(self.prompts))] if split == "train" else []

    def make_env(self) -> Any:
        return functools.partial(TextEnv, self.workload, self.prompts)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        seen = [*(entry.observation for entry in history), observation.text]
        messages: list[Message] = [{"role": "user", "content": seen[0]}]
        for entry, text in zip(history, seen[1:], strict=True):
            messages.append({"role": "assistant", "content": entry.response})
            messages.append({"role": "tool", "name": "act", "content": text})
        return messages

    def parse(self, response: str) -> ParsedResponse:
        return ParsedResponse(thinking="", action=response, valid=True)

    def privileged_context(self, task: Task) -> str | None:
        return None


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
    with GRPOTrainer(model, tokenizer, TextSuite(workload, prompts), config, callbacks=[count]) as trainer:
        for _ in range(job["updates"] + 1):
            meter.start()
            metrics = trainer.train_step()
            phases = {name: metrics[f"time/{name}_seconds"] for name in ("generation", "scoring", "training")}
            work = {"loss": metrics["train/loss"], "gradient norm": metrics["train/grad_norm"]}
            saved = {f"{name} share": metrics.get(f"train/{name}_share", 0.0) for name in ("padding", "shared")}
            meter.lap(phases, {**count.work, **work, **saved})
    meter.report({"torch": torch.__version__, "transformers": transformers.__version__, "accelerate": accelerate.__version__})


if __name__ == "__main__":
    main()
