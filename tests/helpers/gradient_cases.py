"""Rows of turns for gradient tests, and one rank of a two-process run (spawn imports this module by name)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from helpers.tiny import tiny_model
from turncredit.rollout import PolicyScorer
from turncredit.trainers import GRPOConfig
from turncredit.trainers.distributed import without_buffer_broadcasts
from turncredit.trainers.optimization import TrainRows, accumulate_gradients
from turncredit.trainers.terms import LossTerm, SDARTerm, TokenBatch, objective

GROUPS, TURNS = 8, (3, 1, 4, 2)


def make_rows(seed=0, dead_groups=()):
    """8 groups of 4 trajectories of 3, 1, 4 and 2 turns, with rows of 1-5 response tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    prompts, responses, trajectories, groups = [], [], [], []
    for group in range(GROUPS):
        for rollout, turns in enumerate(TURNS):
            for _ in range(turns):
                prompts.append(tuple(draw(2, 22) for _ in range(draw(2, 9))))
                responses.append(tuple(draw(2, 22) for _ in range(draw(1, 6))))
                trajectories.append(group * len(TURNS) + rollout)
                groups.append(group)
    lengths = torch.tensor([len(r) for r in responses])
    mask = torch.arange(5)[None] < lengths[:, None]
    noise = torch.randn(4, *mask.shape, generator=generator)
    active = torch.tensor([g not in dead_groups for g in groups])
    rows = TrainRows(
        prompts,
        responses,
        mask,
        torch.tensor(trajectories),
        active,
        noise[0] * mask * active[:, None],
        (noise[1] * 0.3 - 3.0) * mask,
        {
            "ref_logprobs": (noise[2] * 0.3 - 3.0) * mask,
            "teacher_logprobs": (noise[3] * 0.3 - 3.0) * mask,
            "target": (noise[2] - noise[3]) * mask,
            "strength": noise[3, :, 0].exp(),
        },
    )
    return rows, torch.tensor(groups)


def config(**changes):
    return GRPOConfig(**{"beta": 0.05, "entropy_coef": 0.01, **changes})


def learned(metrics):
    """Metrics that do not depend on how rows were cut into micro-batches."""
    return {name: value for name, value in metrics.items() if name not in ("padding_share", "shared_share")}


class Cramped(PolicyScorer):
    """Runs out of memory while training on more than `max_rows` rows."""

    def __init__(self, model, max_rows):
        super().__init__(model)
        self.max_rows = max_rows
        self.failures = 0

    def forward(self, input_ids, *arguments):
        if len(input_ids) > self.max_rows:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(input_ids, *arguments)


@dataclass(frozen=True)
class Pull(LossTerm):
    """A user's term: towards a target of every token, by the strength of its row."""

    name: str = "pull"
    coef: float = 0.2
    average: str = "seq-mean-token-sum-norm"
    reads: tuple[str, ...] = ("target", "strength")

    def per_token(self, batch: TokenBatch):
        gap = batch.logprobs - batch.signals["target"]
        return batch.signals["strength"] * gap.square(), {"pull_gap": gap.abs()}


BOUND = LossTerm("bound", 0.5, "seq-mean-token-mean", "all", function=lambda batch: (batch.logprobs + 1).square())


def value_loss(batch: TokenBatch):
    return (batch.outputs["value"].squeeze(-1) - batch.signals["target"]).square()


VALUE = LossTerm("value", 0.5, "token-mean", "all", ("target",), ("value",), function=value_loss)


class Fast(nn.Sequential):
    lr_scale = 10.0


def heads() -> dict[str, nn.Module]:
    """A value head that learns ten times as fast, and a module that no term reads."""
    torch.manual_seed(5)
    return {"value": Fast(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 1)), "spare": nn.Linear(32, 3)}


@dataclass(frozen=True)
class Case:
    """Loss type, groups without advantage, terms beside the policy, first group of the second rank, modules."""

    loss_type: str
    dead_groups: tuple[int, ...] = ()
    terms: tuple[LossTerm, ...] = ()
    split: int = 4
    modules: Callable[[], dict[str, nn.Module]] | None = None

    def scorer(self) -> PolicyScorer:
        return PolicyScorer(tiny_model(), self.modules() if self.modules else None)


CASES = {
    "4 + 4 groups": Case("seq-mean-token-mean"),
    "6 + 2 groups": Case("token-mean", split=6),
    "one rank without variance": Case("seq-mean-token-sum-norm", (0, 1, 2, 3)),
    "one rank without a row": Case("token-mean", terms=(Pull(),), split=0),
    "auxiliary term": Case("token-mean", (1,), (SDARTerm(coef=0.3),), 3),
    "two terms of a user's": Case("grpo", (1, 6), (Pull(), BOUND), 3),
    "a value head": Case("token-mean", (1,), (VALUE,), 3, heads),
    "one rank out of memory": Case("token-mean"),
}


def run_rank(rank: int, world: int, port: int, folder: str) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == world
    results = {}
    for name, case in CASES.items():
        rows, groups = make_rows(dead_groups=case.dead_groups)
        mine = (groups < case.split if rank == 0 else groups >= case.split).nonzero().flatten()
        # 3 rows a micro-batch: rank 1 cannot hold them in this case, and both begin again with 2
        cramping = name == "one rank out of memory"
        bare = Cramped(tiny_model(), 2) if cramping and rank == 1 else case.scorer()
        scorer = without_buffer_broadcasts(accelerator.prepare(bare))
        settings = config(loss_type=case.loss_type, per_device_train_batch_size=3, share_prefixes=not cramping)
        metrics = accumulate_gradients(
            accelerator,
            scorer,
            rows.select(mine),
            settings,
            pad_token_id=0,
            terms=objective(settings, case.terms),
        )
        module: Any = accelerator.unwrap_model(scorer)
        results[name] = ({n: p.grad for n, p in module.named_parameters()}, metrics)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
