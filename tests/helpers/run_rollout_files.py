"""One of two processes for tests: python run_rollout_files.py FOLDER OPTIONS; of each method two updates are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from helpers.recorder import Thinking
from helpers.tiny import tiny_model, tiny_tokenizer
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer
from turncredit.trainers.encoder import HashingEncoder


class Keep(GRPOCallback):
    """What credit was on this process, update by update."""

    def __init__(self):
        self.seen = []

    def on_credit(self, trainer, inputs, credit):
        self.seen.append((inputs, credit))


def config(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "num_tasks": 4,
        "num_generations": 4,
        "sampling": SamplingConfig(max_completion_length=6),
        "num_workers": 0,
        "learning_rate": 1e-2,
        "eval_steps": 0,
        "num_eval_tasks": 1,
        "save_steps": 0,
        "save_rollouts": 1,
        "preflight": False,
    }
    return GRPOConfig(**{**settings, **changes})


def play(folder, accelerator=None, suite=None, **changes):
    """Train; what credit was."""
    kept, suite = Keep(), suite or Thinking(num_tasks=8, lenient=True)
    options = {"callbacks": [kept], "accelerator": accelerator, "encoder": HashingEncoder()}
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config(folder, **changes), **options) as run:
        run.train()
    return kept.seen


def main(folder: Path, methods: dict[str, dict[str, float]]) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    for name, options in methods.items():
        seen = play(folder / name, accelerator, credit=name, credit_options=options)
        mine = [(credit.advantages, credit.turn_weights) for _, credit in seen]
        torch.save(mine, folder / name / f"seen-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
