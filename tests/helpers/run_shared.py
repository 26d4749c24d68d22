"""One of two processes whose rows share prefixes: python run_shared.py STAGE FOLDER.

STAGE is a ZeRO stage, or -1 for plain data parallelism. Three optimiser steps of every case, with sharing and without,
and the scores of each process's rows in between; process 0 writes down both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from helpers.gradient_cases import VALUE, config, heads
from helpers.prefix_cases import Rows, chains, mixed, siblings
from helpers.run_distributed import make_accelerator
from helpers.shared_prefixes import train_rows
from helpers.tiny import tiny_model
from helpers.update_cases import ADAM_EPS
from turncredit.rollout import score_responses
from turncredit.trainers.attached import attached_state
from turncredit.trainers.distributed import agree_max, full_weights
from turncredit.trainers.optimization import MicroBatchLimits, accumulate_gradients, apply_gradients
from turncredit.trainers.policy import make_policy
from turncredit.trainers.terms import SDARTerm, objective

CASES = {
    "alike": lambda seed: mixed(seed),
    "uneven": lambda seed: chains(seed, 5, 6) + siblings(seed),
    "one without rows": lambda seed: mixed(seed + 1),
    "cut small": lambda seed: mixed(seed + 2),
}
STEPS = 3


def share_of(case: str, rows: Rows, rank: int, world: int) -> torch.Tensor:
    """Index of the rows of one of the processes; trajectories stay whole."""
    slots = torch.tensor(rows.slots)
    mine = {
        "uneven": slots >= 5 if rank else slots < 5,
        "one without rows": slots < 0 if rank else slots >= 0,
    }.get(case, slots % world == rank)
    return (mine if world > 1 else slots >= 0).nonzero().flatten()


def settings_of(case: str, share: bool) -> Any:
    small = {"micro_batch_tokens": 50, "per_device_train_batch_size": 3} if case == "cut small" else {}
    return config(share_prefixes=share, learning_rate=1e-3, **small)


def train(accelerator: Any, case: str, share: bool) -> dict[str, Any]:
    """Metrics, scores and weights of one case."""
    settings, terms = settings_of(case, share), [SDARTerm(coef=0.3), VALUE]
    policy = make_policy(accelerator, tiny_model(), settings, None, None, heads())
    for group in policy.optimizer.param_groups:
        group["eps"] = ADAM_EPS
    rank, world = accelerator.process_index, accelerator.num_processes
    lines, scores = [], []
    for step in range(STEPS):
        rows = CASES[case](step)
        mine = train_rows(rows, step, dead_slots=(1,)).select(share_of(case, rows, rank, world))
        options: dict[str, Any] = {"share_prefixes": share, "entropy": True, "modules": ("value",)}
        if policy.scoring is policy.scorer:
            options["agree"] = lambda counts: agree_max(accelerator, counts)
        found = score_responses(policy.scoring, mine.prompts, mine.responses, pad_token_id=0, max_tokens=300, **options)
        scores.append((found.logprobs, found.entropy, found.outputs["value"]))
        metrics = accumulate_gradients(
            accelerator,
            policy.scorer,
            mine,
            settings,
            pad_token_id=0,
            terms=objective(settings, terms),
            limits=MicroBatchLimits.of(settings),
        )
        assert metrics is not None
        metrics["grad_norm"] = apply_gradients(
            accelerator, policy.scorer, policy.optimizer, 1e-3, 1.0, loss=metrics["loss"]
        )
        lines.append(metrics)
    return {
        "lines": lines,
        "scores": scores,
        "weights": {**full_weights(policy.model), **attached_state(policy.scorer)},
    }


def main(stage: int, folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator(stage)
    assert accelerator.num_processes == 2
    results = {}
    for case in CASES:
        for share in (True, False):
            results[case, share] = train(accelerator, case, share)
            # DeepSpeed prepares one policy at a time
            accelerator.free_memory()
    torch.save(results, folder / f"{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
