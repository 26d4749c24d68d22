"""An update beside TRL's: seconds, CPU seconds, phases and memory, alternating processes in one run.

    python benchmarks/trl.py [--tables policy vocabulary turns-4 turns-8] [--rounds 2] [--updates 3] [--threads 2]

Needs `pip install turncredit[trl]`, ALFWorld's engine for the first table, Linux, and Python 3.11. Prints a table in
markdown for each workload (benchmarks/beside_trl/workloads.py): the embedded policy, a vocabulary of 151,936, and
append-only episodes of 4 and 8 turns through TRL's own environment loop. A round starts one process for each column;
medians of the updates after the first, then of the rounds. docs/speed.md says what is alike on both sides, and what is
not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from beside_trl.workloads import WORKLOADS

CHILDREN = Path(__file__).parent / "beside_trl"
OFF = {"share_prefixes": False, "continuous_batching": False}
# name -> script, options of its GRPOConfig
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "TRL": ("theirs.py", {}),
    "TRL, compact head": ("theirs.py", {"compact_head": True}),
    "turncredit": ("ours.py", {}),
    "both off": ("ours.py", OFF),
    "only sharing": ("ours.py", {**OFF, "share_prefixes": True}),
    "only continuous": ("ours.py", {**OFF, "continuous_batching": True}),
}
USUAL = ["turncredit", "TRL", "both off"]
MEASURES = (
    *("wall seconds", "CPU seconds", "generation", "scoring", "training", "peak memory, MB", "above imports, MB"),
    *(
        "trajectories",
        "prompt tokens",
        "sampled tokens",
        "tokens of whole trajectories",
        "mean reward",
        "gradient norm",
    ),
    *("gradient norm of the first update", "padding share", "shared share"),
)
RATIOS = MEASURES[:7]


def start(script: str, job: dict[str, Any], threads: int) -> str:
    """What a child prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, str(CHILDREN / script), json.dumps(job)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{script} ended with {ended.returncode}:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    return ended.stdout


def measure(name: str, columns: list[str], args: argparse.Namespace, folder: str) -> tuple[list[str], dict[str, str]]:
    """The table of one workload, and the versions that its children named."""
    found: dict[str, list[dict[str, float]]] = {column: [] for column in columns}
    versions: dict[str, str] = {}
    cold = WORKLOADS[name].cold
    for _ in range(1 if cold else args.rounds):
        for column in columns:
            script, options = COLUMNS[column]
            job = {"folder": folder, "workload": name, "options": options, "entropy_coef": args.entropy_coef}
            job |= {"updates": 0 if cold else args.updates, "threads": args.threads}
            last = json.loads(start(script, job, args.threads).splitlines()[-1])
            found[column].append(last["result"])
            versions |= last["versions"]
    medians = {
        column: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for column, runs in found.items()
    }
    return table(medians), versions


def table(medians: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: a row a measure, a column a trainer, and each of ours over TRL's."""
    own = [column for column in medians if not column.startswith("TRL")] if "TRL" in medians else []
    head = ["", *medians, *(f"{column} / TRL" for column in own)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in MEASURES:
        cells = [_shown(run.get(name)) for run in medians.values()]
        known = name in RATIOS and all(run.get(name) for run in medians.values())
        cells += [f"{medians[column][name] / medians['TRL'][name]:.2f}" if known else "" for column in own]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine(threads: int) -> str:
    """What it ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, {threads} threads, load {load:.1f} at the end, {time.strftime('%Y-%m-%d')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    told = "in this order; TRL's first update replays what one of ours before it sampled"
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, help=told)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each column")
    parser.add_argument("--updates", type=int, default=3, help="measured updates of a process; one more warms up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--entropy-coef", type=float, default=0.0, help="of an entropy bonus, on both sides")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = {"folder": folder, "names": args.tables, "prompts": args.updates + 1}
        start("workloads.py", job, args.threads)
        versions: dict[str, str] = {}
        for name in args.tables:
            began = time.monotonic()
            usual = [*USUAL, "TRL, compact head"] if WORKLOADS[name].cold else USUAL
            lines, found = measure(name, args.columns or usual, args, folder)
            versions |= found
            print(
                f"\n### {WORKLOADS[name].title}\n", *lines, f"\n{time.monotonic() - began:.0f} s", sep="\n", flush=True
            )
    print("\n" + ", ".join(f"{package} {version}" for package, version in sorted(versions.items())))
    print(machine(args.threads))


if __name__ == "__main__":
    main()
