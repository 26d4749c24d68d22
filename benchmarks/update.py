"""Seconds of an update by phase, and what AgentOPSD's teacher pass adds to GRPO's update; one run, alternating.

    python benchmarks/update.py [--updates 3] [--methods grpo agent_opsd] [--plain] [--profile]

The embedded policy on generated games, with the settings of examples/train_alfworld.py. ``--plain`` adds every method
without shared prefixes and continuous batching, and the ratios of the two. All take turns, so that a busy machine slows
them alike; the first round only warms up. All start from the same weights. ``--profile`` adds an update of each under
torch's profiler: what kinds of kernels its seconds go to, and how much lies between them (Python).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld.compact import BUDGETS, compact_suite
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.launch import EMBEDDED_SETTINGS, load_policy, make_config, make_parser

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
PHASES = ("generation", "environment", "scoring", "training", "total")


KERNELS = {
    "matrix products": ("mm", "linear"),
    "attention": ("attention", "dot_product"),
    "softmax, log-probs": ("softmax", "logsumexp", "gather"),
    "copies, indexing": ("copy", "cat", "index", "scatter", "embedding", "clone"),
}
PLAIN = {"share_prefixes": False, "continuous_batching": False}


def make_trainer(folder: Path, method: str, games: Path, plain: bool) -> GRPOTrainer:
    settings = {**EMBEDDED_SETTINGS, **BUDGETS, "output_dir": str(folder / f"{method}_{plain}"), "credit": method}
    config = make_config(make_parser().parse_args([]), settings | {"log_completions": 0} | (PLAIN if plain else {}))
    return GRPOTrainer(*load_policy(str(EMBEDDED)), compact_suite(games, ["train", "eval"]), config)


def profile(trainer: GRPOTrainer) -> dict[str, float]:
    """Seconds of an update by kind of kernel; the rest lies between kernels, in Python and environments."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        trainer.train_step()
        total = time.perf_counter() - began
    seconds = dict.fromkeys((*KERNELS, "elementwise and other"), 0.0)
    for event in found.key_averages():
        kind = next((k for k, parts in KERNELS.items() if any(p in event.key for p in parts)), "elementwise and other")
        seconds[kind] += event.self_cpu_time_total / 1e6
    return seconds | {"between kernels": max(total - sum(seconds.values()), 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["grpo", "agent_opsd"])
    parser.add_argument("--plain", action="store_true", help="old and new, alternating")
    parser.add_argument("--profile", action="store_true", help="an update of each under torch's profiler")
    args = parser.parse_args()
    runs = {name: (name, False) for name in args.methods}
    if args.plain:
        runs |= {f"{name}, plain": (name, True) for name in args.methods}
    with tempfile.TemporaryDirectory() as folder:
        games = Path(folder) / "games"
        generate_games(games, 32, seed=0, split="train", num_workers=2)
        generate_games(games, 2, seed=0, split="eval")
        trainers = {name: make_trainer(Path(folder), method, games, plain) for name, (method, plain) in runs.items()}
        times: dict[str, list[list[float]]] = {name: [] for name in runs}
        for update in range(args.updates + 1):
            for name, trainer in trainers.items():
                metrics = trainer.train_step()
                if update:
                    times[name].append([metrics[f"time/{phase}_seconds"] for phase in PHASES])
        profiles = {name: profile(trainer) for name, trainer in trainers.items()} if args.profile else {}
        for trainer in trainers.values():
            trainer.close()
    mean = {name: np.mean(rows, axis=0) for name, rows in times.items()}
    base = mean[args.methods[0]][-1]
    print(f"{'seconds an update':<20}" + "".join(f"{phase:>13}" for phase in PHASES) + f"{'of ' + args.methods[0]:>13}")
    for name, row in mean.items():
        print(f"{name:<20}" + "".join(f"{value:13.2f}" for value in row) + f"{row[-1] / base:13.2f}")
    for name in args.methods if args.plain else ():
        ratios = mean[f"{name}, plain"] / np.maximum(mean[name], 1e-9)
        print(f"{name + ', plain / new':<20}" + "".join(f"{ratio:13.2f}" for ratio in ratios))
    for name, seconds in profiles.items():
        total = sum(seconds.values())
        print(f"{name}: " + ", ".join(f"{kind} {value / total:.0%}" for kind, value in seconds.items()))
    for name in args.methods:
        print(f"{name}: scoring is {mean[name][2] / base:.1%} of an update of {args.methods[0]}")


if __name__ == "__main__":
    main()
