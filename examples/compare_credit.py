"""Is the credit right? Every registered method against the exact advantages of seven processes and five teachers.

    python examples/compare_credit.py --output outputs/fidelity

Claim: under a calibrated teacher the turn-level methods put about 85 in 100 pairs of turns in the right order (GRPO:
50). Under a strong, biased one AgentOPSD's belief saturates (51) and centring its evidence repairs it in part (70);
under a teacher that speaks about the wrong turn only AlignOPSD's rectification keeps the order (80, others below 62).
Under two minutes on two idle cores. A method of one's own takes part as soon as it is registered: here ``plain_gap``,
or those of any module given with --import.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from turncredit.credit import (
    Credit,
    CreditInputs,
    CreditMethod,
    get_credit,
    group_relative_advantages,
    list_credits,
    register_credit,
)
from turncredit.credit.lab.fidelity import MEASURES, confidence_interval, credit_fidelity, paired_interval
from turncredit.credit.lab.synthetic import PROCESSES, TEACHERS, synthetic_batch
from turncredit.credit.lab.viz import plot_fidelity

Cells = dict[tuple[str, str, str, str], list[float]]  # (method, teacher, process, measure) -> one value per seed
Names = list[str]
SATURATION = ("belief_saturated_share", "first_turn_revision_share")
LOWER_IS_BETTER = ("redundant_share", "sign_errors", "direction_errors", *SATURATION)
CALIBRATION = {
    f"center {center or 'none'}, scale {scale or 'none'}": {"evidence_centering": center, "evidence_scale": scale}
    for center in (None, "trajectory", "group")
    for scale in (None, 5.0, "group_std")
}


@register_credit("plain_gap", requires=("teacher_logprobs",))
def plain_gap(inputs: CreditInputs, *, band: float = 0.2) -> Credit:
    """The simplest use of a teacher: w_k = 1 + band * clip(z(sign(A) * mean gap of turn k)), z over the trajectory."""
    assert inputs.teacher_logprobs is not None
    gap = torch.where(inputs.response_mask, inputs.teacher_logprobs - inputs.student_logprobs, 0.0)
    score = gap.sum(-1) / inputs.token_counts
    owner, counts = inputs.trajectory_ids, inputs.turn_counts
    total = torch.zeros(inputs.num_trajectories, 2).index_add_(0, owner, torch.stack([score, score**2], -1))
    mean, square = (total / counts[:, None]).T
    z = (score - mean[owner]) / ((square - mean**2).clamp(min=0).sqrt() + 1e-4)[owner]
    advantages = group_relative_advantages(inputs.rewards, inputs.group_ids)[owner]
    weights = 1 + band * (advantages.sign() * z).clamp(-1, 1)
    return Credit(torch.where(inputs.response_mask, (advantages * weights)[:, None], 0.0), weights)


def methods_of(names: Names) -> dict[str, CreditMethod]:
    """Methods by label: the registered ones, then AgentOPSD's calibration options."""
    methods = {name: get_credit(name) for name in names or list_credits()}
    if not names:
        methods["step_opsd without step normalisation"] = get_credit("step_opsd", step_normalization=False)
        methods |= {label: get_credit("agent_opsd", **options) for label, options in CALIBRATION.items()}
    return methods


def run_seed(job: tuple[int, int, Names, Names]) -> tuple[Cells, dict[str, str]]:
    """All cells of one seed, and the methods that could not run with the reason."""
    seed, groups, names, modules = job
    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    cells: Cells = {}
    failed: dict[str, str] = {}
    for number, (process, make) in enumerate(PROCESSES.items()):
        for teacher, quality in TEACHERS.items():
            generator = torch.Generator().manual_seed(1000 * seed + number)
            batch = synthetic_batch(make(), quality, groups=groups, generator=generator)
            for label, method in methods_of(names).items():
                try:
                    credit = method(batch.inputs_for(method))
                except ValueError as error:
                    failed[label] = str(error)
                    continue
                found = credit_fidelity(credit, batch.inputs, batch.advantages)
                values = {measure: getattr(found, measure) for measure in MEASURES}
                if label in CALIBRATION:
                    values |= {key: credit.metrics[key] for key in SATURATION}
                for measure, value in values.items():
                    cells[label, teacher, process, measure] = [value]
    return cells, failed


def over(cells: Cells, method: str, measure: str, teachers: Names, processes: Names) -> list[float]:
    """One value per seed: the mean over teachers and processes."""
    columns = [cells[method, teacher, process, measure] for teacher in teachers for process in processes]
    return [sum(column) / len(column) for column in zip(*columns, strict=True)]


def cell(values: list[float], baseline: list[float], measure: str) -> str:
    """Mean and interval; ``*`` better than the baseline on the same seeds (95%), ``!`` worse."""
    mean, half = confidence_interval(values)
    gain, width = paired_interval(values, baseline)
    gain = -gain if measure in LOWER_IS_BETTER else gain
    sign = "*" if gain > width else "!" if gain < -width else ""
    return f"{mean:.2f}" + ("" if math.isnan(half) else f" ±{half:.2f}") + sign


def table(head: Names, rows: Iterator[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]


def merge(cells: Cells, methods: Names) -> dict[str, str]:
    """Methods that scored the same in every cell share a row: first name -> all names."""
    rows: dict[str, list[str]] = {}
    for method in methods:
        rows.setdefault(repr([value for key, value in cells.items() if key[0] == method]), []).append(method)
    return {names[0]: ", ".join(names) for names in rows.values()}


def report(cells: Cells, methods: Names, failed: dict[str, str], seeds: int, groups: int) -> str:
    teachers, processes = list(TEACHERS), list(PROCESSES)
    rows, lines = merge(cells, methods), []

    def section(title: str, columns: dict[str, tuple[str, Names, Names]], names: dict[str, str], base: str) -> None:
        """A table whose columns are (measure, teachers, processes); marks compare with ``base``."""
        body = (
            [label, *(cell(over(cells, name, *c), over(cells, base, *c), c[0]) for c in columns.values())]
            for name, label in names.items()
        )
        lines.extend(["", f"## {title}", "", *table(["method", *columns], body)])

    for measure in MEASURES:
        found = {str([over(cells, name, measure, [t], processes) for t in teachers]) for name in rows}
        if len(found) == 1 < len(rows):
            lines.extend(["", f"## {measure}", "", "The same for every method."])
            continue
        section(f"{measure}, mean over processes", {t: (measure, [t], processes) for t in teachers}, rows, "grpo")
    for t in teachers:
        title = f"rank_correlation by process, teacher: {t}"
        section(title, {p: ("rank_correlation", [t], [p]) for p in processes}, rows, "grpo")
    for t in ("calibrated", "overconfident", "strong") if any(key[0] in CALIBRATION for key in cells) else ():
        measures = ("pair_accuracy", "rank_correlation", "pivotal_recall", *SATURATION)
        options = {label: label for label in CALIBRATION}
        title = f"AgentOPSD's evidence options against the paper's setting, teacher: {t}"
        section(title, {m: (m, [t], processes) for m in measures}, options, next(iter(CALIBRATION)))
    if "plain_gap" in rows:
        body = (
            [label, *("{:+.3f} ±{:.3f}".format(*paired_interval(*(
                over(cells, m, "pair_accuracy", [t], processes) for m in (name, "plain_gap")
            ))) for t in teachers)]
            for name, label in rows.items()
        )  # fmt: skip
        lines += ["", "## pair_accuracy minus that of plain_gap", "", *table(["method", *teachers], body)]
    head = (
        f"{seeds} seeds, {groups} groups of 8 rollouts a process; mean ± half-width of the 95% interval over seeds. "
        "`*`: better than the baseline (GRPO unless said otherwise) on the same seeds, `!`: worse. Methods that scored "
        "alike everywhere share a row."
    )
    return "\n".join([head, *lines, "", *(f"Left out: {name}: {why}" for name, why in failed.items())]).rstrip() + "\n"


def plot(cells: Cells, methods: Names, path: Path) -> None:
    """Pair accuracy by teacher with intervals, and by process."""
    teachers, processes, measure = list(TEACHERS), list(PROCESSES), "pair_accuracy"
    rows = merge(cells, methods)
    points = {
        label: {t: confidence_interval(over(cells, name, measure, [t], processes)) for t in teachers}
        for name, label in rows.items()
    }
    means = {
        label: {p: confidence_interval(over(cells, name, measure, teachers, [p]))[0] for p in processes}
        for name, label in rows.items()
    }
    plot_fidelity(points, means).savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=8, help="groups of 8 rollouts per process, teacher and seed")
    parser.add_argument("--methods", nargs="*", default=[], help="registered names; all if left out; grpo is added")
    parser.add_argument("--import", dest="modules", nargs="*", default=[], help="modules that register methods")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("outputs/fidelity"))
    options = parser.parse_args()
    names = ["grpo", *(n for n in options.methods if n != "grpo")] if options.methods else []
    began = time.perf_counter()
    jobs = [(seed, options.groups, names, options.modules) for seed in range(options.seeds)]
    cells: Cells = {}
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for part, problems in pool.map(run_seed, jobs):
            failed |= problems
            for key, values in part.items():
                cells.setdefault(key, []).extend(values)
    cells = {key: values for key, values in cells.items() if key[0] not in failed}
    methods = [name for name in dict.fromkeys(key[0] for key in cells) if name not in CALIBRATION]
    text = report(cells, methods, failed, options.seeds, options.groups)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "fidelity_tables.md").write_text("# Credit fidelity: all tables\n\n" + text, encoding="utf-8")
    plot(cells, methods, options.output / "fidelity.png")
    print(text)
    spent = os.times()
    print(
        f"{time.perf_counter() - began:.0f} s, {spent.children_user + spent.user:.0f} s of CPU time; "
        f"tables and plot in {options.output}"
    )


if __name__ == "__main__":
    main()
