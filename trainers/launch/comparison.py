"""Training runs compared: methods by seeds on environments, with tables and pictures; see docs/lab.md."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .benchmark import NO_POLICY, get_benchmark
from .options import import_own
from .panel import RESULTS, Arm, Job, Panel, jobs_of, newest, read_results
from .panel_report import by_method, panel_table, plot_panel


def compare(args: argparse.Namespace) -> None:
    """Run what is missing of the panel that the flags ask for, print its tables and plot it.

    Args:
        args: of `make_compare_parser`.

    Raises:
        SystemExit: the panel would come to nothing, or runs failed.
    """
    if absent := [str(path) for path in args.results or () if not path.is_file()]:
        raise SystemExit(f"--results must be files, but there is no {', '.join(absent)}")
    args.output.mkdir(parents=True, exist_ok=True)
    if args.results:
        report(args.results, args.baseline, args.output)
        return
    own = import_own(args.imports)
    try:
        jobs = _jobs(args, own)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if why := problem(args, jobs, read_results([args.output / RESULTS])):
        raise SystemExit(why)
    panel = Panel(args.output, {"commit": commit()}, args.workers, args.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the runs end with it
    try:
        failed = panel.run(jobs, lambda text: print(text, flush=True))
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
    report([args.output / RESULTS], args.baseline, args.output)
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} runs failed:", *failed]))


def _jobs(args: argparse.Namespace, own: Mapping[str, str]) -> list[Job]:
    shared = ["--set", "eval_steps=0", "--set", "save_steps=5", "--set", "log_completions=0"]
    command = ("-m", f"{__name__.partition('.launch')[0]}.cli", "train")
    scripts = {name: (*command, name) for name in args.environments}
    flags = {
        name: [*shared, get_benchmark(name).panel_flag, str(args.num_eval), *args.flags] for name in args.environments
    }
    arms = [Arm.parse(text) for text in args.methods]
    arms = [replace(arm, source=own.get(arm.credit, "")) for arm in arms]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    return list(jobs_of(scripts, arms, seeds, flags, args.imports))


def commit() -> str:
    """The commit that makes the results, with a + where files were changed since."""
    here = Path(__file__).resolve().parents[2]
    if not (here / "examples").is_dir():
        return "installed"
    try:
        said = [
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said[0] + ("+" if said[1] else "")


def problem(args: argparse.Namespace, jobs: list[Job], known: list[dict[str, Any]]) -> str:
    """What would come to nothing after hours, or ""; a method's own errors end the program."""
    kinds = [(job.environment, list(job.flags)) for job in jobs]
    for environment in args.environments:
        benchmark = get_benchmark(environment)
        if not all(importlib.util.find_spec(module) for module in benchmark.modules):
            return f'--environments: {environment} must be installed; run: pip install "turncredit[{benchmark.extra}]"'
        if benchmark.embedded is None and "--model" not in args.flags:
            return f"--flags must hold --model: {NO_POLICY}"
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
