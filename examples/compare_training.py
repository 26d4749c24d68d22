"""Does better credit make agents learn faster? Methods by seeds on the three embedded environments.

    python examples/compare_training.py --methods grpo agent_opsd posterior --seeds 5
    python examples/compare_training.py --environments webshop search_qa --methods grpo "gigpo:outcome_discount=0.95"
    python examples/compare_training.py --methods grpo mine --import my_method.py
    python examples/compare_training.py --results docs/lab/agents_alfworld.jsonl          # tables of what was run

Every run is the command of a training script (train_alfworld.py, train_webshop.py, train_search_qa.py) in a process of
its own, with the script's settings for the embedded policy: learning rate, KL and all else are the same for every
method. Two run side by side with one thread each. A run leaves one line in results.jsonl; a killed panel, started
again, does what is missing and goes on with a run from its last checkpoint. Every method has the same seeds, and so the
same tasks in the same order; it is evaluated on --num-eval held-out tasks before and after. Training area: mean success
of the training rollouts over the updates. Intervals: 95%, Student's t, over seeds; a difference is taken seed by seed;
* better, ! worse than the baseline, each comparison for itself. A record made by an older commit counts as done; its
"commit" tells. A method of one's own is run again when its file has changed. About two minutes of a core a run.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turncredit.trainers.launch.options import import_own
from turncredit.trainers.launch.panel import RESULTS, Arm, Job, Panel, jobs_of, newest, read_results
from turncredit.trainers.launch.panel_report import by_method, panel_table, plot_panel

HERE = Path(__file__).resolve().parent
PANEL_FLAG = {"alfworld": "--num-eval-games", "webshop": "--num-eval-goals", "search_qa": "--num-eval-questions"}
NEEDS = {  # extra -> modules
    "alfworld": ("alfworld", ("alfworld", "textworld")),
    "webshop": ("webshop", ("bm25s", "Stemmer")),
    "search_qa": ("search", ("bm25s", "Stemmer")),
}
MAIN = (
    "grpo", "dr_grpo", "faded_grpo", "gigpo", "rlsd", "step_opsd", "agent_opsd", "agent_opsd_calibrated", "align_opsd",
    "align_opsd_turn", "sdar", "posterior_anchors", "posterior",
)  # fmt: skip


def commit() -> str:
    """The commit that makes the results, with a + where files were changed since."""
    try:
        said = [
            subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said[0] + ("+" if said[1] else "")


def problem(args: argparse.Namespace, jobs: list[Job], known: list[dict[str, Any]]) -> str:
    """What would come to nothing after hours, or ""; a method's own errors end the program."""
    kinds = [(job.environment, list(job.flags)) for job in jobs]
    for environment in args.environments:
        extra, modules = NEEDS[environment]
        if not all(find_spec(module) for module in modules):
            return f'--environments: {environment} must be installed; run: pip install "turncredit[{extra}]"'
        records = newest([*known, *(job.key for job in jobs)])
        try:
            runs = by_method([r for r in records if (environment, r["flags"]) in kinds], environment)
        except ValueError as error:
            return str(error)
        if args.baseline not in runs:
            return f"--baseline must be among the methods ({', '.join(runs)}), got {args.baseline!r}; name it too"
    for job in jobs:
        if job.seed == jobs[0].seed:
            job.check()
    return ""


def report(paths: list[Path], baseline: str, output: Path) -> None:
    """Print the tables of results and plot them; runs with other flags are in tables of their own."""
    records = newest(read_results(paths))
    kinds = list(dict.fromkeys((record["environment"], tuple(record["flags"])) for record in records))
    for number, (environment, flags) in enumerate(kinds):
        several = sum(environment == name for name, _ in kinds) > 1
        runs = by_method([record for record in records if tuple(record["flags"]) == flags], environment)
        title = f"{environment} with {' '.join(flags)}" if several else environment
        if baseline not in runs:
            print(f"\n{title}: no run of {baseline!r} to compare with")
            continue
        for curve in ("success",) if environment == "alfworld" else ("success", "reward"):
            print(f"\n{title}, {curve}\n")
            print("\n".join(panel_table(runs, baseline, curve)))
        picture = output / (f"{environment}-{number}.png" if several else f"{environment}.png")
        if plot_panel(runs, picture, environment, baseline):
            print(f"\ncurves: {picture}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(MAIN), help="NAME, or LABEL=NAME:OPTION=VALUE,..")
    parser.add_argument("--environments", nargs="+", choices=list(PANEL_FLAG), default=["alfworld"])
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-eval", type=positive, default=256, help="held-out tasks of the evaluation")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="module or FILE.py of methods")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="last: flags for every training script")
    parser.add_argument("--baseline", default="grpo")
    parser.add_argument("--workers", type=positive, default=2, help="runs side by side")
    parser.add_argument("--threads", type=positive, default=1, help="threads of each")
    parser.add_argument("--results", nargs="+", type=Path, help="only print and plot these files of results")
    parser.add_argument("--output", type=Path, default=Path("outputs/compare_training"))
    args = parser.parse_args()
    if absent := [str(path) for path in args.results or () if not path.is_file()]:
        parser.error(f"--results must be files, but there is no {', '.join(absent)}")
    args.output.mkdir(parents=True, exist_ok=True)
    if args.results:
        report(args.results, args.baseline, args.output)
        return
    own = import_own(args.imports)
    shared = ["--set", "eval_steps=0", "--set", "save_steps=5", "--set", "log_completions=0"]
    scripts = {name: str(HERE / f"train_{name}.py") for name in args.environments}
    flags = {name: [*shared, PANEL_FLAG[name], str(args.num_eval), *args.flags] for name in args.environments}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    try:
        arms = [Arm.parse(text) for text in args.methods]
        arms = [replace(arm, source=own.get(arm.credit, "")) for arm in arms]
    except ValueError as error:
        parser.error(str(error))
    jobs = list(jobs_of(scripts, arms, seeds, flags, args.imports))
    if why := problem(args, jobs, read_results([args.output / RESULTS])):
        parser.error(why)
    panel = Panel(args.output, {"commit": commit()}, args.workers, args.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the runs end with it
    try:
        failed = panel.run(jobs, lambda text: print(text, flush=True))
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
    report([args.output / RESULTS], args.baseline, args.output)
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} runs failed:", *failed]))


if __name__ == "__main__":
    main()
