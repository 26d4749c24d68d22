"""Seconds of an update by phase, and what AgentOPSD's teacher pass adds to GRPO's update; one run, alternating.

    python benchmarks/update.py [--updates 3] [--methods grpo agent_opsd]

The embedded policy on generated games, with the settings of examples/train_alfworld.py. Methods take turns, so that a
busy machine slows all of them alike; the first round only warms up. All start from the same weights.
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


def make_trainer(folder: Path, method: str, games: Path) -> GRPOTrainer:
    settings = {**EMBEDDED_SETTINGS, **BUDGETS, "output_dir": str(folder / method), "credit": method}
    config = make_config(make_parser().parse_args([]), settings | {"log_completions": 0})
    return GRPOTrainer(*load_policy(str(EMBEDDED)), compact_suite(games, ["train", "eval"]), config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["grpo", "agent_opsd"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        games = Path(folder) / "games"
        generate_games(games, 32, seed=0, split="train", num_workers=2)
        generate_games(games, 2, seed=0, split="eval")
        trainers = {method: make_trainer(Path(folder), method, games) for method in args.methods}
        times: dict[str, list[list[float]]] = {method: [] for method in args.methods}
        for update in range(args.updates + 1):
            for method, trainer in trainers.items():
                metrics = trainer.train_step()
                if update:
                    times[method].append([metrics[f"time/{phase}_seconds"] for phase in PHASES])
        for trainer in trainers.values():
            trainer.close()
    mean = {method: np.mean(rows, axis=0) for method, rows in times.items()}
    base = mean[args.methods[0]][-1]
    print(f"{'seconds an update':<18}" + "".join(f"{phase:>13}" for phase in PHASES) + f"{'of ' + args.methods[0]:>13}")
    for method, row in mean.items():
        print(f"{method:<18}" + "".join(f"{value:13.2f}" for value in row) + f"{row[-1] / base:13.2f}")
    for method, row in mean.items():
        print(f"{method}: scoring is {row[2] / base:.1%} of an update of {args.methods[0]}")


if __name__ == "__main__":
    main()
