"""Is the credit right on real tasks? Turns of embedded policies against advantages measured by playing on.

    python examples/compare_credit.py --real alfworld
    python examples/compare_credit.py --real webshop --groups 12
    python examples/compare_credit.py --real search_qa --groups 24 --methods agent_opsd gigpo posterior

Groups of 8 rollouts of the embedded policy as it is before training; every turn of those whose returns differ is played
on 8 times from before and behind it. Every registered method gives credit to the same turns. *pairs*: of the pairs of
turns that the measurement tells apart (two standard errors), the share in the right order; *correlation*: within
trajectories, corrected for the noise of the measurement; *sign errors*: of the turns whose advantage is clear of 0. The
ceiling is the same measure of one half of the continuations against the other. A seed is a line of the output; a killed
run does what is missing. Two to five minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from turncredit.credit import list_credits
from turncredit.credit.lab.fidelity import turn_credit
from turncredit.credit.lab.measured import MEASURES, measured_fidelity
from turncredit.rollout.branching import TurnValues, turn_values
from turncredit.rollout.types import Trajectory
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.batch import TurnBatch, make_batch, usable
from turncredit.trainers.launch import get_benchmark, load_policy, make_config, make_parser
from turncredit.trainers.methods import get_method
from turncredit.trainers.phase import CreditPhase
from turncredit.trainers.teacher import make_teacher

ENVIRONMENTS = ("alfworld", "webshop", "search_qa")
CEILING = "half of the continuations"
GROUP_SIZE = 8


def make_trainer(environment: str, seed: int, groups: int, folder: str) -> GRPOTrainer:
    """The embedded policy with its script's settings; only what it samples is used."""
    benchmark = get_benchmark(environment)
    parser = make_parser()
    benchmark.add_flags(parser)
    args = parser.parse_args([])
    args.embedded = True
    settings = {**benchmark.settings_for(args), "output_dir": folder, "seed": seed, "credit": "grpo"}
    settings |= {"num_tasks": groups, "num_generations": GROUP_SIZE, "num_envs": 128, "preflight": False}
    config = make_config(args, settings)
    model, tokenizer = load_policy(str(benchmark.embedded))
    return GRPOTrainer(model, tokenizer, benchmark.make_suite(args), config)


def credits_of(trainer: GRPOTrainer, batch: TurnBatch, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """What every method gives to the same turns, ``[M]`` each, and why the others cannot."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            method = get_method(name)
            if method.rollouts is not None:
                raise ValueError("it plays rollouts of its own")
            if "encoder" in method.options:
                method = get_method(name, encoder="hashing")
            teacher = make_teacher(trainer.accelerator, trainer.policy, method, None, trainer.config)
            run = replace(trainer.run, method=method, teacher=teacher)
            result = CreditPhase(run, method, frozenset(), False)(batch, 0)
            if result.credit is None or result.inputs is None:
                raise ValueError("it gives no credit to turns")
            found[name] = turn_credit(result.credit, result.inputs)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            failed[name] = str(error).split(";")[0]
    return found, failed


def mixed(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those of groups whose returns differ."""
    returns: dict[int, set[float]] = defaultdict(set)
    for trajectory in trajectories:
        returns[trajectory.group_id].add(trajectory.reward)
    return [trajectory for trajectory in trajectories if len(returns[trajectory.group_id]) > 1]


def errors_of(values: TurnValues, continuations: int, spread: float) -> list[list[float]]:
    """Errors of the values around each turn; continuations that all came out alike leave a doubt of half a one."""
    floor = spread / (2 * continuations)
    errors = [max(error, floor) for error in values.value_errors[:-1]] + [0.0]
    return [[errors[k], errors[k + 1]] for k in range(len(errors) - 1)]


def judge_seed(environment: str, seed: int, groups: int, continuations: int, names: Sequence[str]) -> dict[str, Any]:
    """One line of the output."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, make_trainer(environment, seed, groups, folder) as trainer:
        trajectories = mixed(usable(trainer.rollout(trainer.tasks_of(0))))
        if not trajectories:
            raise SystemExit(f"--groups: no group of seed {seed} had different returns in {groups}; play more of them")
        measured = turn_values(
            trajectories, continuations, trainer.run.rollout, tasks=trainer.run.tasks, seed=("truth",), common=True
        )  # other seeds than VinePPO's own
        batch = make_batch(trajectories)
        trainer.run.begin(batch, 0)
        credits, failed = credits_of(trainer, batch, names)
    rewards = [trajectory.reward for trajectory in trajectories]
    spread = max(rewards) - min(rewards)
    flat = {
        name: torch.tensor([value for one in measured.trajectories for value in pick(one)], dtype=torch.float64)
        for name, pick in {
            "advantages": lambda one: one.advantages,
            "first": lambda one: one.halves[0],
            "second": lambda one: one.halves[1],
            "errors": lambda one: errors_of(one, continuations, spread),
        }.items()
    }
    half_errors = flat["errors"] * math.sqrt(2)
    places = batch.trajectory_ids, batch.turn_ids
    halves = flat["first"], flat["second"]
    scores = {
        name: asdict(measured_fidelity(credit, *places, flat["advantages"], flat["errors"], halves))
        for name, credit in credits.items()
    }
    finite = torch.where(flat["first"].isfinite(), flat["first"], 0.0)
    ceiling = measured_fidelity(finite, *places, flat["second"], half_errors, halves)
    reliability = _reliability(halves, batch.trajectory_ids)
    scores[CEILING] = {**asdict(ceiling), "correlation": reliability}
    return {
        "seed": seed,
        "groups": groups,
        "continuations": continuations,
        "success": sum(t.success for t in trajectories) / max(len(trajectories), 1),
        "trajectories": len(trajectories),
        "turns": len(batch.turns),
        "cost": asdict(measured.cost),
        "scores": scores,
        "failed": failed,
    }


def _reliability(halves: tuple[torch.Tensor, torch.Tensor], owners: torch.Tensor) -> float:
    """Correlation of both halves within trajectories: how well one predicts the other."""
    known = halves[0].isfinite() & halves[1].isfinite()
    one, two = (torch.where(known, half, 0.0) for half in halves)
    count = torch.zeros(int(owners.max()) + 1, dtype=torch.float64).index_add_(0, owners, known.double()).clamp(min=1)
    one, two = (
        torch.where(known, half - (torch.zeros_like(count).index_add_(0, owners, half) / count)[owners], 0.0)
        for half in (one, two)
    )
    norm = float(one.norm() * two.norm())
    return float((one * two).sum()) / norm if norm else math.nan


Cell = Callable[[list[float], list[float], str], str]


def table(lines: Sequence[dict[str, Any]], order: Sequence[str], cell: Cell) -> list[str]:
    """Methods by measures: `cell` of their values at the seeds, of grpo's, and the measure's name."""
    rows = ["| method | pairs | correlation | sign errors |", "| --- | ---: | ---: | ---: |"]
    names = [name for name in order if all(name in line["scores"] for line in lines)]
    for name in [*names, CEILING]:
        cells = []
        for measure in MEASURES:
            own, base = ([line["scores"][n][measure] for line in lines] for n in (name, "grpo"))
            cells.append(cell(own, base, measure))
        rows.append("| " + " | ".join([name, *cells]) + " |")
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of an earlier run; one that a killed run did not finish is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def unended(path: Path) -> bool:
    """Whether the last line was cut short."""
    return path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0


def load(modules: Sequence[str]) -> None:
    """In a worker: what registers methods."""
    for module in modules:
        importlib.import_module(module)


def main(options: argparse.Namespace, cell: Cell) -> None:
    """See the module; `options` are those of compare_credit.py, which also says how a cell is written."""
    names = options.methods or [name for name in list_credits() if not name.endswith(("_3b", "_7b"))]
    names = list(dict.fromkeys(["grpo", *names]))
    path = options.output / f"{options.real}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read(path)
    wanted = range(options.first_seed, options.first_seed + options.seeds)
    same = {"groups": options.groups, "continuations": options.continuations}
    known = [
        line
        for line in known
        if all(line[key] == value for key, value in same.items())
        and set(names) <= line["scores"].keys() | line["failed"].keys()
    ]
    missing = [seed for seed in wanted if seed not in [line["seed"] for line in known]]
    arguments = [(options.real, seed, options.groups, options.continuations, names) for seed in missing]
    context = get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, load, (options.modules,)) as pool:
        for line in pool.map(judge_seed, *zip(*arguments, strict=True)) if arguments else ():
            known.append(line)
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" * unended(path) + json.dumps(line) + "\n")
            print(f"seed {line['seed']}: {line['turns']} turns of {line['trajectories']} trajectories", flush=True)
    newest = {line["seed"]: line for line in known}  # a seed may stand there with few methods, and later with all
    lines = [newest[seed] for seed in wanted]
    text = report(options.real, lines, names, cell)
    (options.output / f"{options.real}.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def report(environment: str, lines: Sequence[dict[str, Any]], names: Sequence[str], cell: Cell) -> list[str]:
    """The page of one environment."""
    cost = {key: sum(line["cost"][key] for line in lines) for key in lines[0]["cost"]}
    pairs = sum(line["scores"]["grpo"]["pairs"] for line in lines)
    about = (
        f"{environment}: seeds {', '.join(str(line['seed']) for line in lines)}; {sum(line['turns'] for line in lines)}"
        f" turns of {sum(line['trajectories'] for line in lines)} trajectories in groups with different returns, "
        f"{lines[0]['continuations']} continuations before and behind each: {cost['continuations']} episodes from "
        f"{cost['states']} states, {cost['environment_steps']} environment steps, {cost['replayed_steps']} replayed "
        f"ones and {cost['generated_tokens']} tokens; {cost['failed']} failed. {pairs} pairs are told apart."
    )
    failed = {name: why for line in lines for name, why in line["failed"].items()}
    left_out = [f"Left out: {name}: {why}" for name, why in failed.items()]
    return [about, "", *table(lines, names, cell), *([""] if left_out else []), *left_out]
