"""One of two processes that train a policy with a value head: python run_attached.py STAGE FOLDER.

STAGE is a ZeRO stage, or -1 for plain data parallelism. Four steps at once, and two, a checkpoint in memory, and two
in a policy that began with other weights: the same bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from helpers.gradient_cases import VALUE, config, heads, make_rows
from helpers.run_distributed import make_accelerator
from helpers.tiny import tiny_model
from turncredit.trainers.attached import attached_state, load_attached
from turncredit.trainers.distributed import full_weights, load_full_weights
from turncredit.trainers.optimization import accumulate_gradients, apply_gradients
from turncredit.trainers.optimizer_state import collect_optimizer, restore_optimizer
from turncredit.trainers.policy import Policy, make_policy
from turncredit.trainers.terms import objective

SETTINGS = config(beta=0.0, learning_rate=1e-3, per_device_train_batch_size=16)


def make(accelerator, seed: int = 0) -> Policy:
    modules = heads()
    for module in modules.values():
        for parameter in module.parameters():
            parameter.data += seed
    return make_policy(accelerator, tiny_model(seed=seed), SETTINGS, None, None, modules)


def steps(accelerator, policy: Policy, numbers: range) -> list[dict[str, float]]:
    """Updates on this process's groups of rows that depend on the number of the step."""
    lines = []
    for number in numbers:
        rows, groups = make_rows(seed=number, dead_groups=(1,))
        mine = (groups % accelerator.num_processes == accelerator.process_index).nonzero().flatten()
        metrics = accumulate_gradients(
            accelerator,
            policy.scorer,
            rows.select(mine),
            SETTINGS,
            pad_token_id=0,
            terms=objective(SETTINGS, [VALUE]),
        )
        assert metrics is not None
        metrics["grad_norm"] = apply_gradients(
            accelerator, policy.scorer, policy.optimizer, 1e-3, 1.0, loss=metrics["loss"]
        )
        lines.append(metrics)
    return lines


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {**full_weights(policy.model), **attached_state(policy.scorer)}


def resumed(accelerator) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    first = make(accelerator)
    steps(accelerator, first, range(2))
    model, heads_state = full_weights(first.model), attached_state(first.scorer)
    saved = [collect_optimizer(accelerator, first.scorer, first.optimizer)]
    if accelerator.num_processes > 1:  # only process 0 has it under ZeRO; the others read its file
        torch.distributed.broadcast_object_list(saved)
    second = make(accelerator, seed=1)
    load_full_weights(second.model, model)
    load_attached(second.scorer, heads_state)
    restore_optimizer(accelerator, second.scorer, second.optimizer, saved[0])
    return steps(accelerator, second, range(2, 4)), weights(second)


def main(stage: int, folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator(stage)
    assert accelerator.num_processes == 2
    policy = make(accelerator)
    lines, whole = steps(accelerator, policy, range(4)), weights(policy)
    later, parts = resumed(accelerator)
    assert later == lines[2:]
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    if accelerator.is_main_process:
        torch.save((lines, whole), folder / "whole.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
