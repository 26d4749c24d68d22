"""A child of benchmarks/trl.py: updates of TRL's GRPOTrainer. ``theirs.py JOB``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset
from measure import Meter, read_job
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]
from workloads import BETA, LEARNING_RATE, WORKLOADS, Workload, load, observation, reward_of

# any text is a call of the environment's one tool: random weights write no JSON
EVERYTHING_IS_A_CALL = {
    "defaults": {"role": "assistant", "content": ""},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "close": "<end>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
        }
    },
}


def environment(workload: Workload) -> type:
    """The environment as TRL takes it: public methods are tools."""

    class TextEnvironment:
        def reset(self, index: int, **columns: Any) -> None:
            self.task, self.actions = index, []

        def act(self, action: str) -> str:
            """Take an action.

            Args:
                action: what to do.
            """
            self.actions.append(action)
            return observation(workload, self.task, len(self.actions))

    return TextEnvironment


class Rewards:
    """The reward function; it also counts, because it sees every completion."""

    __name__ = "reward"

    def __init__(self) -> None:
        self.work: dict[str, float] = {}

    def __call__(self, prompts: list, completions: list, completion_ids: list, **columns: Any) -> list[float]:
        if columns.get("environments"):
            texts = [env.actions for env in columns["environments"]]
        else:
            texts = [[message["content"] for message in completion] for completion in completions]
        rewards = [sum(map(reward_of, said)) / max(len(said), 1) for said in texts]
        self.work = {
            "trajectories": float(len(prompts)),
            "completion tokens": float(sum(map(len, completion_ids))),
            "mean reward": sum(rewards) / len(rewards),
        }
        return rewards


class Laps(TrainerCallback):
    """An update ends when its line is logged; `num_tokens` counts prompts and sampled tokens so far."""

    def __init__(self, meter: Meter, rewards: Rewards):
        self.meter, self.rewards, self.tokens = meter, rewards, 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.meter.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" not in logs:  # the run's last line
            return
        phases, counted = self.meter.take(), dict(self.rewards.work)
        phases["training"] = self.meter.elapsed - phases.pop("rollouts")
        sampled = logs["completions/mean_length"] * counted["trajectories"]
        prompts = logs["num_tokens"] - self.tokens - sampled
        self.tokens = logs["num_tokens"]
        work = {"prompt tokens": prompts, "sampled tokens": sampled}
        work["tokens of whole trajectories"] = prompts + counted.pop("completion tokens")
        work |= counted | {"loss": logs["loss"], "gradient norm": logs["grad_norm"]}
        self.meter.lap(phases, work)


def config_of(workload: Workload, job: dict[str, Any], folder: str) -> GRPOConfig:
    """All rows in one batch and one optimiser step; float32, no gradient checkpointing, nothing written."""
    options: dict[str, Any] = {
        "max_steps": job["updates"] + 1,
        "per_device_train_batch_size": workload.rows,
        "gradient_accumulation_steps": 1,
        "num_generations": workload.rollouts,
        # of the whole episode where there are several turns; each turn's own limit is below
        "max_completion_length": workload.new_tokens if workload.turns == 1 else 4000,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "beta": BETA,
        "entropy_coef": job["entropy_coef"],
        "loss_type": "grpo",
        "temperature": 1.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "seed": 0,
    }
    if workload.turns > 1:
        options["max_tool_calling_iterations"] = workload.turns - 1
        options["generation_kwargs"] = {"max_new_tokens": workload.new_tokens}
    return GRPOConfig(folder, **options, **job["options"])


class FirstReplayed:
    """`_generate_single_turn` whose first answer is what our side sampled: the gradients then must be the same."""

    def __init__(self, function: Any, record: Path):
        self.function, self.record = function, record

    def __call__(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        answer = self.function(prompt_ids, *args, **kwargs)
        if self.record.exists():
            first = json.loads(self.record.read_text())
            assert [ids for ids, _ in first] == prompt_ids, "both sides must be asked the same"
            answer = [ids for _, ids in first], None
            self.record.unlink()
        return answer


def main() -> None:
    meter, job = Meter(), read_job()
    if job["options"].pop("compact_head", False):
        # what TRL does where Triton runs: the head meets the positions of the completion alone
        trl.trainer.utils._use_triton = lambda device: True
    torch.set_num_threads(job["threads"])
    workload = WORKLOADS[job["workload"]]
    model, tokenizer, prompts = load(Path(job["folder"]) / job["workload"])
    # the order in which our trainer takes tasks, so that updates have the same prompts
    order = np.random.default_rng([0, 0]).permutation(len(prompts)).tolist()
    rows = [{"prompt": [{"role": "user", "content": prompts[task]}], "index": task} for task in order]
    episodes: dict[str, Any] = {}
    if workload.turns > 1:
        tokenizer.response_template = EVERYTHING_IS_A_CALL
        episodes["environment_factory"] = environment(workload)
    rewards = Rewards()
    trainer = GRPOTrainer(
        model,
        rewards,
        config_of(workload, job, str(Path(job["folder"]) / "run")),
        Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Laps(meter, rewards)],
        **episodes,
    )
    if workload.turns == 1:
        record = Path(job["folder"]) / job["workload"] / "first.json"
        trainer._generate_single_turn = FirstReplayed(trainer._generate_single_turn, record)
    trainer._generate = meter.timed("generation", trainer._generate)
    trainer._generate_and_score_completions = meter.timed("rollouts", trainer._generate_and_score_completions)
    # without gradients it is the reference's pass
    name = "_get_per_token_logps_and_entropies"
    phase = lambda: "within training" if torch.is_grad_enabled() else "scoring"  # noqa: E731
    setattr(trainer, name, meter.timed(phase, getattr(trainer, name)))
    trainer.train()
    meter.report({"trl": trl.__version__})


if __name__ == "__main__":
    main()
