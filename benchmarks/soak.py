"""A long run of the embedded ALFWorld default: does memory stay flat, do descriptors leak, does it slow down?

    python benchmarks/soak.py --minutes 30

The learning rate is as good as 0, so that every update has the same work to do and the first and the last tenth can be
compared; everything else, also checkpoints and evaluation, is as in training. Linux only.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np

from turncredit.envs.alfworld.compact import BUDGETS, compact_suite, generate_once
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.launch import EMBEDDED_SETTINGS, load_policy, make_config, make_parser

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
GAMES = "outputs/alfworld_games"
_TICK = os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS"))) / 1024


def cpu_seconds(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def descriptors(pid: int) -> int:
    """Open files, pipes and sockets of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--credit", default="agent_opsd")
    arguments = parser.parse_args()
    args = make_parser().parse_args(["--credit", arguments.credit, "--output-dir", "outputs/soak"])
    config = make_config(args, {**EMBEDDED_SETTINGS, **BUDGETS, "learning_rate": 1e-12, "max_steps": 10**6})
    generate_once(GAMES, {"train": 192, "eval": 64})
    suite = compact_suite(GAMES, ["train", "eval"])
    model, tokenizer = load_policy(str(EMBEDDED))
    rows: list[dict[str, float]] = []
    not_finite = 0
    with GRPOTrainer(model, tokenizer, suite, config) as trainer:
        trainer.evaluate()
        began = time.monotonic()
        while time.monotonic() - began < 60 * arguments.minutes:
            pids = [os.getpid(), *(pid for pid in trainer.collector.envs.worker_pids if pid is not None)]
            wall, cpu = time.monotonic(), sum(map(cpu_seconds, pids))
            metrics = trainer.train_step()
            workers = [pid for pid in trainer.collector.envs.worker_pids if pid is not None]
            turns = metrics["rollout/turns"] * metrics["rollout/episodes"]
            rows.append(
                {
                    "turns_per_second": turns / (time.monotonic() - wall),
                    "turns_per_cpu_second": turns / (sum(map(cpu_seconds, [os.getpid(), *workers])) - cpu),
                    "trainer_mb": rss_mb(os.getpid()),
                    "workers_mb": sum(map(rss_mb, workers)),
                    "descriptors": descriptors(os.getpid()),
                }
            )
            not_finite += sum(not math.isfinite(value) for value in metrics.values())
            if trainer.step % 10 == 0:
                trainer.save()
            if trainer.step % 50 == 0:
                trainer.evaluate()
                print(trainer.step, {name: round(value, 1) for name, value in rows[-1].items()}, flush=True)
    report(rows, not_finite)


def report(rows: list[dict[str, float]], not_finite: int) -> None:
    """The first and the last tenth beside each other; the very first updates warm up and are left out."""
    rows = rows[min(5, len(rows) // 10) :]
    tenth = max(len(rows) // 10, 1)
    print(f"\n{len(rows)} updates, {not_finite} metrics that were not finite")
    print("| | first tenth | last tenth | ratio |\n|---|---|---|---|")
    for name in rows[0]:
        first = float(np.median([row[name] for row in rows[:tenth]]))
        last = float(np.median([row[name] for row in rows[-tenth:]]))
        print(f"| {name} | {first:.1f} | {last:.1f} | {last / first:.3f} |")


if __name__ == "__main__":
    main()
