"""Runs of the methods in `user_code`: two updates at once, and one, a checkpoint and another; on one process or two.

python user_runs.py STAGE FOLDER NAME,NAME     one of two processes; STAGE is a ZeRO stage or -1
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from helpers.processes import TESTS
from helpers.run_distributed import make_accelerator
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.envs import ParsedResponse
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.distributed import full_weights
from turncredit.trainers.encoder import HashingEncoder


class Thinking(ToySuite):
    """Whatever was said is the thinking, so that AlignOPSD's provider finds texts to compare."""

    def parse(self, response: str) -> ParsedResponse:
        return replace(super().parse(response), thinking=response)


RUNS: dict[str, dict[str, Any]] = {
    "own signal": {"credit": "surprising_turns", "credit_options": {"strength": 0.8, "floor": 0.1}},
    "own correspondence": {"credit": "sibling_support", "credit_options": {"bonus": 0.7, "top_k": 2}},
    "own losses": {"credit": "brief_and_likely", "credit_options": {"brevity_coef": 0.05}},
    "context per turn": {"credit": "foresight"},
    "context function": {"credit": "agent_opsd"},
    "averaged teacher": {"credit": "foresight", "credit_options": {"teacher": "ema", "ema_rate": 0.5}},
    "other teacher": {"credit": "foresight", "credit_options": {"teacher_context": None}, "teacher_model": True},
    "value head": {"credit": "value_head"},
    "hint rollouts": {"credit": "hint_rollouts"},
    "state": {"credit": "running_baseline"},
}


def register() -> None:
    """Import everything in `user_code`, as a user's script would."""
    for file in sorted((Path(TESTS) / "user_code").glob("*.py")):
        importlib.import_module(f"user_code.{file.stem}")


def trainer(accelerator: Accelerator, folder: Path, name: str, **changes: Any) -> GRPOTrainer:
    options = {**RUNS[name], **changes}
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 2,
        "num_tasks": 4,
        "num_generations": 3,
        "num_workers": 0,
        "learning_rate": 1e-2,
        "sampling": SamplingConfig(max_completion_length=6),
        "eval_steps": 0,
        "num_eval_tasks": 1,
        "save_steps": 0,
        "preflight": False,
    }
    if name == "context function":
        context = sys.modules["user_code.own_teacher"].what_came_next
        options["credit_options"] = {"teacher_context": context}
    other = tiny_model(5) if options.pop("teacher_model", False) else None
    return GRPOTrainer(
        tiny_model(),
        tiny_tokenizer(),
        Thinking(num_tasks=8, lenient=True),
        GRPOConfig(**{**settings, **options}),
        accelerator=accelerator,
        encoder=HashingEncoder(),
        teacher_model=other,
    )


def state_of(run: GRPOTrainer) -> dict[str, torch.Tensor]:
    """Every tensor that a checkpoint holds; collective."""
    found = {f"model.{name}": value for name, value in full_weights(run.model).items()}
    for part, saved in ((name, part.state_dict()) for name, part in sorted(run.parts.items())):
        found |= {f"{part}.{name}": torch.as_tensor(value).clone() for name, value in saved.items()}
    return found


def whole_and_in_parts(accelerator: Accelerator, folder: Path, name: str) -> tuple[dict[str, float], GRPOTrainer]:
    """Two updates, and the same in two trainers; raises unless they end alike, bit for bit."""
    with trainer(accelerator, folder / "whole", name) as run:
        start = state_of(run)
        lines = [run.train_step() for _ in range(2)]
        whole = state_of(run)
    assert any(not torch.equal(start[key], whole[key]) for key in start if key.startswith("model.")), name
    with trainer(accelerator, folder / "parts", name) as first:
        first.train_step()
        first.save()
    torch.manual_seed(99 + accelerator.process_index)
    with trainer(accelerator, folder / "parts", name) as second:
        second.resume(True)
        last = second.train_step()
        parts = state_of(second)
    assert whole.keys() == parts.keys(), name
    assert all(torch.equal(whole[key], parts[key]) for key in whole), name
    told = {key: value for key, value in lines[1].items() if not key.startswith(("time/", "rollout/workers"))}
    assert told == {key: last[key] for key in told}, name
    return lines[0], run


def main() -> None:
    torch.set_num_threads(1)
    register()
    accelerator = make_accelerator(int(sys.argv[1]))
    assert accelerator.num_processes == 2
    for name in sys.argv[3].split(","):
        whole_and_in_parts(accelerator, Path(sys.argv[2]) / name, name)
        print(f"done {name}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
