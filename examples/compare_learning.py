"""Does better credit make learning faster? Tabular policies trained with each method's credit, exact success.

    python examples/compare_learning.py --output outputs/learning

Claim (docs/lab/tabular.md): of the area between GRPO's learning curve and that of exact advantages, posterior credit
closes four fifths, GiGPO and an outcome faded by 0.95 a turn two fifths each, AgentOPSD a tenth. Softmax policies
with shared features start uniform and take 40 updates of 2 groups of 8 rollouts on every process, under the teacher of
the current policy. Learning rates (docs/lab/learning_rates.json) were chosen by --sweep on development seeds, by one
rule for all. Five minutes on two idle cores (the page: --seeds 20 --teachers noisy strong adversarial, 14); a killed
run goes on where it was. A method of one's own, registered by a module given with --import, is swept, then compared:

    python examples/compare_learning.py --import mine --methods mine --sweep
    python examples/compare_learning.py --import mine --methods mine
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean, stdev
from threading import Thread
from typing import Any, NamedTuple

import compare_credit  # noqa: F401  registers plain_gap
import torch
from filelock import FileLock, Timeout

from turncredit.credit import CreditMethod, get_credit
from turncredit.credit.lab.fidelity import confidence_interval, paired_interval
from turncredit.credit.lab.learning import EXACT, learn
from turncredit.credit.lab.synthetic import EXACT_PROCESSES, PROCESSES, TEACHERS
from turncredit.credit.lab.viz import plot_learning

ARMS: dict[str, tuple[str, dict[str, Any]]] = {  # others are registered names with their defaults
    "faded_gigpo": ("gigpo", {"outcome_discount": 0.95}),
    "posterior_undiscounted": ("posterior", {"discount": 1.0}),
}
DEFAULT = (
    "exact", "grpo", "dr_grpo", "faded_grpo", "gigpo", "faded_gigpo", "rlsd", "step_opsd", "agent_opsd",
    "agent_opsd_calibrated", "align_opsd_turn", "plain_gap", "posterior_anchors", "posterior", "posterior_undiscounted",
)  # fmt: skip
BASES = ("faded_grpo", "gigpo", "faded_gigpo", "posterior_anchors")
UNDER_EVERY_TEACHER = ("agent_opsd", "align_opsd_turn", "plain_gap", "posterior")
CURVES = ("exact", "posterior", "posterior_anchors", "gigpo", "faded_grpo", "agent_opsd", "align_opsd_turn", "grpo")
GRID, SWEEP_SEEDS, EVERY = (0.5, 1.0, 2.0, 4.0), tuple(range(10)), 4  # every fourth point of a curve is kept
RULE = (
    "the rate whose AUC, mean over the development seeds minus their standard deviation, averaged over the processes, "
    "is largest; of equal ones the smaller"
)
SHIPPED = Path(__file__).resolve().parents[1] / "docs" / "lab" / "learning_rates.json"


class Cell(NamedTuple):
    method: str
    teacher: str  # "-" where the method reads none
    rate: float
    process: str
    seed: int


Job = tuple[Cell, dict[str, Any]]
Results = dict[Cell, dict[str, Any]]  # auc, final and curve of a cell


def resolve(label: str) -> CreditMethod | str:
    name, options = ARMS.get(label, (label, {}))
    return EXACT if label == EXACT else get_credit(name, **options)


def teacher_of(label: str, teacher: str = "calibrated") -> str:
    """The teacher a method is run under: "-" if it reads none, and so does the same under all."""
    method = resolve(label)
    reads = isinstance(method, CreditMethod) and {"teacher_logprobs", "correspondence"} & method.requires
    return teacher if reads else "-"


def run_cell(job: Job) -> tuple[Cell, dict[str, Any] | str]:
    """The result of a cell, or why the method cannot run."""
    cell, settings = job
    seed = 1000 * cell.seed + list(PROCESSES).index(cell.process)
    teacher = TEACHERS["calibrated" if cell.teacher == "-" else cell.teacher]
    try:
        curve = learn(
            PROCESSES[cell.process](), resolve(cell.method), teacher, seed=seed, learning_rate=cell.rate, **settings
        )
    except ValueError as error:
        return cell, str(error)
    kept = [round(value, 3) for value in curve[::EVERY]]
    return cell, {"auc": round(fmean(curve), 5), "final": round(curve[-1], 5), "curve": kept}


def start_worker(modules: list[str]) -> None:
    """One thread each, and no worker outlives its parent."""
    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    if (parent := parent_process()) is not None:
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder of results: a second run would throw away what the first appends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise SystemExit(f"compare_learning: another run is at work in {folder}; give another --output") from None


def load(path: Path, settings: dict[str, int], redo: tuple[str, ...] = ()) -> Results:
    """Finished cells but those of ``redo``; the file is left with these alone, without a line cut short by a kill."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    head, *rows = [json.loads(line) for line in lines if line.endswith("\n")] or [settings]
    if head != settings:
        raise SystemExit(f"compare_learning: {path} must hold runs with {settings}, got {head}; give another --output")
    cells = {Cell(*(row.pop(name) for name in Cell._fields)): row for row in rows}
    cells = {cell: row for cell, row in cells.items() if cell.method not in redo}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(map(line_of, [settings, *({**c._asdict(), **row} for c, row in cells.items())])), "utf-8")
    part.replace(path)
    return cells


def line_of(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def run(cells: Iterable[Cell], path: Path, options: argparse.Namespace) -> tuple[Results, dict[str, str]]:
    """Results of all cells, and the methods that could not run with the reason; what is missing in the file is run."""
    settings = {"updates": options.updates, "groups": options.groups, "group_size": 8}
    done, failed = load(path, settings, tuple(options.redo)), {}
    wanted = list(dict.fromkeys(cells))
    missing = [(cell, settings) for cell in wanted if cell not in done]
    print(f"{len(missing)} of {len(wanted)} cells to run; results go to {path}", flush=True)
    with path.open("a", encoding="utf-8") as file:
        for count, (cell, result) in enumerate(found(missing, options), 1):
            if count % 200 == 0:
                print(f"{count} of {len(missing)}", flush=True)
            if isinstance(result, str):
                failed[cell.method] = result
                continue
            done[cell] = result
            file.write(line_of({**cell._asdict(), **result}))
            file.flush()
    return {cell: done[cell] for cell in wanted if cell in done and cell.method not in failed}, failed


def found(jobs: list[Job], options: argparse.Namespace) -> Iterator[tuple[Cell, dict[str, Any] | str]]:
    """What :func:`run_cell` returns for each job, in order."""
    if options.workers == 1:
        yield from map(run_cell, jobs)
        return
    with ProcessPoolExecutor(options.workers, get_context("spawn"), start_worker, (options.modules,)) as pool:
        yield from pool.map(run_cell, jobs)


def sweep(options: argparse.Namespace, methods: list[str], known: dict[str, Any]) -> dict[str, Any]:
    """Learning rates of methods that have none yet, by the rule; what was known is kept."""
    methods = [name for name in methods if name not in known.get("rates", {}) or name in options.redo]
    processes = [process for process in EXACT_PROCESSES if process in options.processes]
    cells = [
        Cell(name, teacher_of(name), rate, process, seed)
        for seed in SWEEP_SEEDS
        for name in methods
        for rate in GRID
        for process in processes
    ]
    results, failed = run(cells, options.output / "learning_sweep.jsonl", options)
    tried: dict[str, Any] = {}
    for name in (name for name in methods if name not in failed):
        for rate in GRID:
            areas = [
                [results[Cell(name, teacher_of(name), rate, process, seed)]["auc"] for seed in SWEEP_SEEDS]
                for process in processes
            ]
            score = fmean(fmean(area) - stdev(area) for area in areas)
            tried.setdefault(name, {})[f"{rate:g}"] = [round(fmean(map(fmean, areas)), 4), round(score, 4)]
    best = {name: max(GRID, key=lambda rate: (tries[f"{rate:g}"][1], -rate)) for name, tries in tried.items()}
    for name, why in failed.items():
        print(f"Left out: {name}: {why}")
    head = {"rule": RULE, "seeds": SWEEP_SEEDS, "processes": processes, "updates": options.updates}
    return {**head, "rates": known.get("rates", {}) | best, "auc_and_score": known.get("auc_and_score", {}) | tried}


@dataclass(frozen=True)
class Report:
    """Tables of a run: means over processes, one value a seed; intervals are 95% over seeds, differences paired."""

    results: Results
    methods: list[str]
    rates: dict[str, float]
    seeds: Sequence[int]
    processes: list[str]

    def of(
        self, what: str, name: str, processes: Sequence[str], teacher: str = "calibrated", rate: float = 0
    ) -> list[Any]:
        """One value (of a curve: one list) per seed; the method's own learning rate if none is given."""
        teacher, rate = teacher_of(name, teacher), rate or self.rates[name]
        found = [[self.results[Cell(name, teacher, rate, p, seed)][what] for p in processes] for seed in self.seeds]
        return [[fmean(at) for at in zip(*row, strict=True)] if what == "curve" else fmean(row) for row in found]

    def gain(self, what: str, name: str, processes: Sequence[str], base: str = "grpo", **where: Any) -> str:
        """Over another method, at ``where``; ``*`` better by more than the interval, ``!`` worse."""
        mean, half = paired_interval(*(self.of(what, n, processes, **where) for n in (name, base)))
        sign = "*" if mean > half else "!" if mean < -half else ""
        return f"{mean:+.3f}" + ("" if math.isnan(half) else f" ±{half:.3f}") + sign

    def share(self, name: str, rate: float = 0) -> str:
        """Of the gap between GRPO and exact advantages."""
        area, low, high = (fmean(self.of("auc", n, self.main, rate=rate)) for n in (name, "grpo", EXACT))
        return f"{(area - low) / (high - low):.0%}" if high != low else "-"

    @property
    def main(self) -> list[str]:
        """The processes of the means: those with exact observations that were run."""
        return [process for process in EXACT_PROCESSES if process in self.processes] or self.processes

    @property
    def order(self) -> list[str]:
        return sorted(self.methods, key=lambda name: -fmean(self.of("auc", name, self.main)))

    def row(self, name: str, common: float) -> list[str]:
        area, half = confidence_interval(self.of("auc", name, self.main))
        final = fmean(self.of("final", name, self.main))
        own = [self.gain("auc", name, self.main), self.share(name), f"{final:.3f}", self.gain("final", name, self.main)]
        same = [self.gain("auc", name, self.main, rate=common), self.share(name, common)]
        return [name, f"{self.rates[name]:g}", f"{area:.3f} ±{half:.3f}", *own, *same]

    def text(self, teachers: list[str]) -> str:
        common, shown = self.rates["grpo"], self.processes
        head = ["method", "rate", "AUC", "minus GRPO", "of the gap", "final", "final minus GRPO"]
        same = [f"AUC minus GRPO, all at rate {common:g}", "of the gap"]
        if {self.rates[name] for name in self.methods} == {common}:
            same = []  # the same numbers
        rows = [self.row(name, common)[: len(head + same)] for name in self.order]
        by_process = [[name, *(self.gain("auc", name, [process]) for process in shown)] for name in self.order]
        bases = [name for name in BASES if name in self.methods]
        against = [[name, *(self.gain("auc", name, self.main, base) for base in bases)] for name in self.order]
        sections = {
            "Learning, calibrated teacher": (head + same, rows),
            "AUC minus GRPO, by process": (["method", *shown], by_process),
        }
        if bases:
            sections["AUC minus that of other methods"] = (["method", *(f"minus {base}" for base in bases)], against)
        if len(teachers) > 1:
            known = {(cell.method, cell.teacher) for cell in self.results}
            asked = [name for name in self.order if all((name, teacher) in known for teacher in teachers)]
            by_teacher = [[name, *(self.gain("auc", name, self.main, teacher=t) for t in teachers)] for name in asked]
            sections["AUC minus GRPO, by teacher"] = (["method", *teachers], by_teacher)
        about = (
            f"{len(self.seeds)} seeds from {self.seeds[0]} on; means over {len(self.main)} processes unless said. AUC: "
            "mean chance of success over the updates. ±: half of the 95% interval over seeds, differences paired. "
            "`*`: better by more than the interval, `!`: worse. Of the gap: of that between GRPO and exact advantages."
        )
        lines = [line for title, (top, rows) in sections.items() for line in ("", f"## {title}", "", *table(top, rows))]
        return "\n".join([about, *lines]) + "\n"

    def plot(self, path: Path, updates: int) -> None:
        others = [name for name in self.methods if name not in DEFAULT]
        shown = [name for name in CURVES if name in self.methods] + others
        curves = {
            name: [confidence_interval(at) for at in zip(*self.of("curve", name, self.main), strict=True)]
            for name in shown[:8]
        }
        gains = {
            name: paired_interval(self.of("auc", name, self.main), self.of("auc", "grpo", self.main))
            for name in self.methods
        }
        plot_learning(curves, gains, updates=range(0, updates + 1, EVERY)).savefig(path, dpi=100)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]


def compare(options: argparse.Namespace, methods: list[str], known: dict[str, Any]) -> None:
    rates = known.get("rates", {})
    for name in methods:
        if name not in rates:
            raise SystemExit(
                f"compare_learning: methods must have a swept learning rate, got {name!r} without; "
                f"run once with --sweep --methods {name} --output {options.output}"
            )
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    main = [process for process in EXACT_PROCESSES if process in options.processes] or options.processes
    cells = [
        Cell(name, teacher_of(name), rate, process, seed)
        for seed in seeds
        for name in methods
        for rate, processes in ((rates[name], options.processes), (rates["grpo"], main))
        for process in processes
    ] + [
        Cell(name, teacher, rates[name], process, seed)
        for teacher in options.teachers
        for seed in seeds
        for name in (options.methods or UNDER_EVERY_TEACHER)
        if teacher_of(name, teacher) == teacher
        for process in main
    ]
    results, failed = run(cells, options.output / "learning.jsonl", options)
    methods = [name for name in methods if name not in failed]
    report = Report(results, methods, rates, seeds, options.processes)
    text = report.text(options.teachers) + "".join(f"\nLeft out: {name}: {why}\n" for name, why in failed.items())
    (options.output / "learning_tables.md").write_text("# Tabular learning: all tables\n\n" + text, encoding="utf-8")
    report.plot(options.output / "learning.png", options.updates)
    print(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--methods", nargs="*", default=[], help="names below or registered ones; exact, grpo are added"
    )
    parser.add_argument("--import", dest="modules", nargs="*", default=[], help="modules that register methods")
    parser.add_argument("--teachers", nargs="+", default=["calibrated"], choices=TEACHERS, help="calibrated is added")
    parser.add_argument("--processes", nargs="+", default=list(PROCESSES), choices=PROCESSES)
    parser.add_argument("--seeds", type=positive, default=10)
    parser.add_argument("--first-seed", type=int, default=320)
    parser.add_argument("--updates", type=positive, default=40)
    parser.add_argument("--groups", type=positive, default=2, help="groups of 8 rollouts an update")
    parser.add_argument(
        "--sweep", action="store_true", help="choose learning rates of methods that have none, then stop"
    )
    parser.add_argument("--redo", nargs="*", default=[], help="methods to run (or sweep) anew: results are thrown away")
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--output", type=Path, default=Path("outputs/learning"))
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    start_worker(options.modules)
    methods = list(dict.fromkeys([EXACT, "grpo", *(options.methods or DEFAULT)]))
    for name in {*methods, *options.redo}:
        resolve(name)
    options.teachers = list(dict.fromkeys(["calibrated", *options.teachers]))
    rates = options.output / "learning_rates.json"
    source = next((path for path in (rates, SHIPPED) if path.is_file()), None)
    known = json.loads(source.read_text(encoding="utf-8")) if source else {}
    with alone(options.output):
        if options.sweep:
            chosen = sweep(options, methods, known)
            rates.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
            (options.output / "learning_sweep.jsonl").unlink()  # the rates hold what it says
            print("\n".join(f"{name}: {rate:g}" for name, rate in chosen["rates"].items()))
        else:
            compare(options, methods, known)
    spent = os.times()
    cpu = spent.children_user + spent.children_system + spent.user + spent.system
    print(f"{time.perf_counter() - began:.0f} s, {cpu:.0f} s of CPU time; results in {options.output}")


if __name__ == "__main__":
    main()
