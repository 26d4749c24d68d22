"""Seconds of an update by phase, and what AgentOPSD's teacher pass adds to GRPO's update; one run, alternating.

    python benchmarks/update.py [--updates 3] [--methods grpo agent_opsd] [--plain]

The embedded policy on generated games, with the settings of examples/train_alfworld.py. ``--plain`` adds every method
without shared prefixes and continuous batching, and the ratios of the two. All take turns, so that a busy machine slows
them alike; the first round only warms up. All start from the same weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld.compact import BUDGETS, compact_suite
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.launch import EMBEDDED_SETTINGS, load_policy, make_config, make_parser

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
PHASES = ("generation", "environment", "scoring", "training", "total")


PLAIN = {"share_prefixes": False, "continuous_batching": False}


def make_trainer(folder: Path, method: str, games: Path, plain: bool) -> GRPOTrainer:
    settings = {**EMBEDDED_SETTINGS, **BUDGETS, "output_dir": str(folder / f"{method}_{plain}"), "credit": method}
    config = make_config(make_parser().parse_args([]), settings | {"log_completions": 0} | (PLAIN if plain else {}))
    return GRPOTrainer(*load_policy(str(EMBEDDED)), compact_suite(games, ["train", "eval"]), config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["grpo", "agent_opsd"])
    parser.add_argument("--plain", action="store_true", help="old and new, alternating")
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
    for name in args.methods:
        print(f"{name}: scoring is {mean[name][2] / base:.1%} of an update of {args.methods[0]}")


if __name__ == "__main__":
    main()
