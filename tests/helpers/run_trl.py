"""One of two processes that train TRL with turn credit; a group of rollouts lies on both. ``run_trl.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from helpers.trl_runs import make_trainer
from turncredit.trainers.adapters import TurnCredit


def main() -> None:
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    options = {"per_device_train_batch_size": 2, "max_steps": 1}
    # a completion of the second process is short in every turn, so that the processes' widths differ
    options["generation_kwargs"] = {"max_new_tokens": 4 if rank == "0" else 2}
    plan = TurnCredit(privileged="hint", signals={}, options={"evidence_centering": "group"})
    trainer = make_trainer(folder / rank, plan, options=options)
    kept = []
    score = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *arguments: kept.append(score(*arguments)) or kept[-1]
    from turncredit.trainers.adapters import trl

    privileged = trl.privileged_logprobs

    def keep(*arguments: object) -> torch.Tensor:
        kept.append(privileged(*arguments))  # type: ignore[arg-type]
        return kept[-1]

    trl.privileged_logprobs = keep
    student = trl.student_logprobs
    trl.student_logprobs = lambda *arguments: kept.append(student(*arguments)) or kept[-1]  # type: ignore[func-returns-value]
    trainer.train()
    rewards, own, teacher = kept
    found = {**trainer.batches[0], "rewards": rewards, "student": own, "teacher": teacher}
    torch.save(found, folder / f"{rank}.pt")
    print("finished", list(trainer._logs["advantages"]))


if __name__ == "__main__":
    main()
