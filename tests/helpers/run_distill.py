"""One of two processes: distillation in several chunks, rows of different number. python run_distill.py STAGE FOLDER.

Every case trains two updates whole, and one and one with a resume between; the weights must be the same. Further
arguments choose cases.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from helpers.distill_runs import settings
from helpers.run_distributed import make_accelerator
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.distributed import full_weights

UNEVEN = {"num_tasks": 3, "num_generations": 3, "max_steps": 2, "num_minibatches": 2, "preflight": True}
CASES: dict[str, dict[str, Any]] = {
    "opd": {"wider": True},
    "lens_opd": {"wider": True, "options": {"cue": "privileged", "eta": 1.0, "horizon": 2, "k_start": 2}},
    "tcod_b2f": {"options": {"attempts": 2, "eta": 1}},
    "futurebridge": {"options": {"curriculum": False, "failed_only": False, "horizon": 2}},
}


def make(folder: Path, name: str, accelerator: Accelerator | None = None) -> GRPOTrainer:
    """A trainer of a case, whose heads see seven tokens at a time: processes have different numbers of such chunks."""
    case = CASES[name]
    config = settings(folder, name, case.get("options", {}), **UNEVEN)
    teacher = tiny_model(3, hidden_size=48) if case.get("wider") else None
    suite = ToySuite(num_tasks=8, lenient=True)
    run = GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, accelerator=accelerator, teacher_model=teacher)
    for scorer in (run.scorer, run.teacher.scorer):
        run.accelerator.unwrap_model(scorer).chunk_tokens = 7
    return run


def train(folder: Path, name: str, accelerator: Accelerator) -> None:
    with make(folder / name / "whole", name, accelerator) as run:
        run.train()
        whole = full_weights(run.model)
    with make(folder / name / "parts", name, accelerator) as run:
        run.train_step()
        run.save()
    torch.manual_seed(99 + accelerator.process_index)
    with make(folder / name / "parts", name, accelerator) as run:
        run.train(resume_from=True)
        again = full_weights(run.model)
    assert all(torch.equal(whole[key], again[key]) for key in whole), name


def main() -> None:
    torch.set_num_threads(1)
    stage, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or list(CASES)
    accelerator = make_accelerator(stage)
    assert accelerator.num_processes == 2
    for name in names:
        train(folder, name, accelerator)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
