"""One of two processes: methods with one more signal and GSPO's trajectories. python run_learned.py STAGE FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from helpers.run_distributed import make_accelerator
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.distributed import full_weights

TRAJECTORY = {"importance_sampling_level": "trajectory", "epsilon": 0.02, "epsilon_high": 0.02}
CASES: dict[str, dict[str, Any]] = {
    "turn_ppo": {},
    "spa_rl": {},
    "empg": {},
    "igpo": {},
    "istar": {},
    "gspo": {"credit": "grpo", **TRAJECTORY, "num_iterations": 2},
    "sharded": {"credit": "turn_ppo", **TRAJECTORY, "num_tasks": 2, "num_generations": 3},
}


def names(stage: int) -> list[str]:
    """Those that a stage trains."""
    return [name for name in CASES if name != "sharded"] if stage < 0 else ["sharded"]


def settings(folder: Path, name: str) -> dict[str, Any]:
    return {
        "output_dir": str(folder / name),
        "max_steps": 2,
        "num_tasks": 4,
        "num_generations": 4,
        "num_workers": 0,
        "credit": name,
        "learning_rate": 1e-2,
        "beta": 0.01,
        "eval_steps": 0,
        "num_eval_tasks": 1,
        "save_steps": 1,
        "num_minibatches": 2,
        "preflight": False,
        "sampling": SamplingConfig(max_completion_length=6),
        **CASES[name],
    }


def main() -> None:
    torch.set_num_threads(1)
    stage, folder = int(sys.argv[1]), Path(sys.argv[2])
    accelerator = make_accelerator(stage)

    def trainer(name: str, changes: dict[str, Any]) -> GRPOTrainer:
        config = GRPOConfig(**{**settings(folder, name), **changes})
        suite = ToySuite(num_tasks=8, lenient=True)
        return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, accelerator=accelerator)

    for name in names(stage):
        with trainer(name, {"output_dir": str(folder / name / "whole")}) as run:
            run.train()
            whole = full_weights(run.model)
        parts = {"output_dir": str(folder / name / "parts")}
        with trainer(name, parts) as run:
            run.train_step()
            run.save()
        with trainer(name, parts) as run:
            run.train(resume_from=True)
            again = full_weights(run.model)
        assert all(torch.equal(whole[key], again[key]) for key in whole), name
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
