"""Is the credit right? Every registered method against the exact advantages of nine processes and eight teachers.

    python examples/compare_credit.py --output outputs/fidelity
    python examples/compare_credit.py --real alfworld       # against measured advantages, see compare_real.py

Claim: with a good teacher the published turn-level methods put 84 to 88 in 100 pairs of turns in the right order (GRPO:
50), with a strong, shifted or noisy one most put 51 to 79, with an adversarial one 11 to 13; ``posterior``, which reads
siblings too, 89 to 93 with all of them, and less where states only look alike. Methods come in families: what they
read and how they use it. Under three minutes on two idle cores. A method of one's own takes part, as the family
"yours", as soon as it is registered: here ``plain_gap``, or those of any module given with --import.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

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
from turncredit.credit.lab.fidelity import (
    MEASURES,
    confidence_interval,
    credit_fidelity,
    gradient_cosine,
    paired_interval,
)
from turncredit.credit.lab.synthetic import (
    EXACT_PROCESSES,
    PROCESSES,
    PUBLISHED_TEACHERS,
    TEACHERS,
    SyntheticBatch,
    synthetic_batch,
)
from turncredit.credit.lab.viz import plot_fidelity

Cells = dict[tuple[str, str, str, str], list[float]]  # (method, teacher, process, measure) -> one value per seed
Names = list[str]
TEACHER_NAMES, PROCESS_NAMES = list(TEACHERS), list(EXACT_PROCESSES)
OBSERVATION_NAMES = [name for name in PROCESSES if name not in EXACT_PROCESSES]
ALL_MEASURES = ("pair_accuracy", "gradient_cosine", *(name for name in MEASURES if name != "pair_accuracy"))
SATURATION = ("belief_saturated_share", "first_turn_revision_share")
LOWER_IS_BETTER = ("redundant_share", "sign_errors", "direction_errors", *SATURATION)
EXACT = "exact advantages"
FAMILIES = {
    "outcome only": ("grpo", "dr_grpo", "faded_grpo", "rloo", "mt_grpo"),
    "anchors": ("gigpo", "hgpo", "graphgpo", "g2po", "gagpo", "rewardflow", "posterior_anchors"),
    "teacher within a turn": ("rlsd", "step_opsd", "hcapo"),
    "AgentOPSD": ("agent_opsd",),
    "AlignOPSD": ("align_opsd",),
    "posterior": ("posterior",),
    "ours": ("plain_gap",),
    "yours": ("",),
    "the truth": (EXACT,),
}
MAIN = (
    "grpo", "faded_grpo", "gigpo", "hgpo", "graphgpo", "g2po", "gagpo", "rewardflow", "posterior_anchors", "rlsd",
    "step_opsd", "hcapo", "agent_opsd", "agent_opsd_calibrated",
    "align_opsd", "align_opsd_turn", "posterior", "posterior_teacher", "posterior_all", "plain_gap",
)  # fmt: skip
CALIBRATION = {
    f"center {center or 'none'}, scale {scale or 'none'}": {"evidence_centering": center, "evidence_scale": scale}
    for center in (None, "trajectory", "group")
    for scale in (None, 5.0, "group_std")
}
CALIBRATION_TEACHERS = ("calibrated", "overconfident", "strong")


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


def family_of(method: str) -> str:
    """The family with the longest prefix of the name; a method that is not the library's is yours."""
    library = "turncredit.", plain_gap.__module__
    if method in list_credits() and not get_credit(method).function.__module__.startswith(library):
        return "yours"
    found = {
        prefix: family for family, prefixes in FAMILIES.items() for prefix in prefixes if method.startswith(prefix)
    }
    return found[max(found, key=len)]


def methods_of(names: Names, *, options: bool) -> dict[str, CreditMethod]:
    """Methods by label: the registered ones, and AgentOPSD's calibration ``options``."""
    judged = [name for name in list_credits() if not get_credit(name).extras]  # the others read what only a model says
    methods = {name: get_credit(name) for name in names or judged}
    if not names:
        methods["step_opsd without step normalisation"] = get_credit("step_opsd", step_normalization=False)
        if options:
            methods |= {label: get_credit("agent_opsd", **option) for label, option in CALIBRATION.items()}
    return methods


def judge(credit: Credit | torch.Tensor, batch: SyntheticBatch) -> dict[str, float]:
    found = credit_fidelity(credit, batch.inputs, batch.advantages)
    return {"gradient_cosine": gradient_cosine(credit, batch), **{name: getattr(found, name) for name in MEASURES}}


def load(modules: Names) -> None:
    """Import what registers methods."""
    for module in modules:
        importlib.import_module(module)


class Job(NamedTuple):
    """A process at one seed, under all teachers."""

    seed: int
    process: str
    groups: int
    names: Names
    modules: Names


def run(job: Job) -> tuple[Cells, dict[str, str]]:
    """The cells of a job, and the methods that could not run with the reason."""
    torch.set_num_threads(1)
    load(job.modules)
    cells: Cells = {}
    failed: dict[str, str] = {}
    process, number = PROCESSES[job.process](), list(PROCESSES).index(job.process)
    for teacher, quality in TEACHERS.items():
        generator = torch.Generator().manual_seed(1000 * job.seed + number)
        batch = synthetic_batch(process, quality, groups=job.groups, generator=generator)
        found = {EXACT: judge(batch.advantages, batch)}
        options = teacher in CALIBRATION_TEACHERS and job.process in EXACT_PROCESSES
        for label, method in methods_of(job.names, options=options).items():
            try:
                credit = method(batch.inputs_for(method))
            except ValueError as error:
                failed[label] = str(error)
                continue
            found[label] = judge(credit, batch)
            if label in CALIBRATION:
                found[label] |= {key: credit.metrics[key] for key in SATURATION}
        cells |= {
            (label, teacher, job.process, measure): [value]
            for label, values in found.items()
            for measure, value in values.items()
        }
    return cells, failed


def over(cells: Cells, method: str, measure: str, teachers: Iterable[str], processes: Iterable[str]) -> list[float]:
    """One value per seed: the mean over teachers and processes where the measure is defined."""
    columns = [cells[method, teacher, process, measure] for teacher in teachers for process in processes]
    seeds = [[value for value in column if not math.isnan(value)] for column in zip(*columns, strict=True)]
    return [sum(values) / len(values) if values else math.nan for values in seeds]


def cell(values: list[float], baseline: list[float], measure: str) -> str:
    """Mean and interval; ``*`` better than the baseline on the same seeds (95%), ``!`` worse."""
    mean, half = confidence_interval(values)
    gain, width = paired_interval(values, baseline)
    gain = -gain if measure in LOWER_IS_BETTER else gain
    sign = "*" if gain > width else "!" if gain < -width else ""
    return f"{mean:.2f}" + ("" if math.isnan(half) else f" ±{half:.2f}") + sign


def over_seeds(values: list[float], baseline: list[float], measure: str) -> str:
    """`cell` over the seeds at which both are defined."""
    both = [pair for pair in zip(values, baseline, strict=True) if not any(map(math.isnan, pair))]
    if not both:
        return "-"
    return cell([value for value, _ in both], [base for _, base in both], measure)


class Column(NamedTuple):
    """What a column averages."""

    measure: str
    teachers: Names
    processes: Names


class Report:
    """Tables of a run; rows are methods in blocks by family, those that scored alike everywhere share one."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.rows = merge(cells)
        self.seeds = len(next(iter(cells.values())))

    def table(self, columns: dict[str, Column], names: Names | None = None, base: str = "grpo") -> list[str]:
        """Lines of a table; marks compare with ``base``. Without names all methods, in blocks."""
        lines = [["method", *columns], ["---", *["---:"] * len(columns)]]
        blocks = [("", names)] if names else by_family(list(self.rows)).items()
        for family, members in blocks:
            lines += [[f"**{family}**", *[""] * len(columns)]] if family else []
            for name in members:
                cells = (
                    cell(over(self.cells, name, *c), over(self.cells, base, *c), c.measure) for c in columns.values()
                )
                lines.append([self.rows.get(name, name), *cells])
        return ["| " + " | ".join(line) + " |" for line in lines]

    def main(self) -> list[str]:
        """The main methods, and yours, under every teacher, and the direction of their gradient."""
        columns = {t: Column("pair_accuracy", [t], PROCESS_NAMES) for t in TEACHER_NAMES}
        columns["gradient cosine"] = Column("gradient_cosine", list(PUBLISHED_TEACHERS), PROCESS_NAMES)
        yours = [name for name in self.rows if family_of(name) == "yours"]
        return self.table(columns, [name for name in (*MAIN, *yours, EXACT) if name in self.rows])

    def text(self) -> str:
        published = list(PUBLISHED_TEACHERS)
        sections = {"Main methods: pair_accuracy by teacher, gradient_cosine over the published teachers": self.main()}
        for measure in ALL_MEASURES:
            columns = {t: Column(measure, [t], PROCESS_NAMES) for t in TEACHER_NAMES}
            found = {str(over(self.cells, name, *columns[t])) for name in self.rows if name != EXACT for t in columns}
            alike = ["The same for every method."] if len(found) == 1 < len(self.rows) - 1 else self.table(columns)
            sections[f"{measure} by teacher, mean over processes"] = alike
        for measure in ("pair_accuracy", "gradient_cosine"):
            columns = {p: Column(measure, published, [p]) for p in PROCESS_NAMES}
            sections[f"{measure} by process, mean over the published teachers"] = self.table(columns)
        for process in OBSERVATION_NAMES:
            columns = {t: Column("pair_accuracy", [t], [process]) for t in TEACHER_NAMES}
            columns["gradient cosine"] = Column("gradient_cosine", published, [process])
            sections[f"{process}: pair_accuracy by teacher, gradient_cosine over the published ones"] = self.table(
                columns
            )
        options = [label for label in CALIBRATION if any(key[0] == label for key in self.cells)]
        for teacher in CALIBRATION_TEACHERS if options else ():
            measures = ("pair_accuracy", "gradient_cosine", "pivotal_recall", *SATURATION)
            columns = {measure: Column(measure, [teacher], PROCESS_NAMES) for measure in measures}
            title = f"AgentOPSD's evidence options against the paper's setting, teacher: {teacher}"
            sections[title] = self.table(columns, options, options[0])
        return "\n".join(f"\n## {title}\n\n" + "\n".join(lines) for title, lines in sections.items())

    def plot(self, path: Path, caption: str) -> None:
        """Pair accuracy by teacher with intervals, without the settings of one environment and size."""
        shown = [name for name in self.rows if name != EXACT and not name.endswith(("_3b", "_7b"))]
        points = {
            self.rows[name]: {
                t: confidence_interval(over(self.cells, name, "pair_accuracy", [t], PROCESS_NAMES))
                for t in TEACHER_NAMES
            }
            for name in shown
        }
        families = {family: [self.rows[name] for name in shown if family_of(name) == family] for family in FAMILIES}
        intervals = f"95% interval over {self.seeds} seeds (Student's t)"
        plot_fidelity(points, families=families, intervals=intervals, note=caption).savefig(path, dpi=90)


def by_family(names: Names) -> dict[str, Names]:
    """Names in blocks, families in their order."""
    blocks = {family: [name for name in names if family_of(name) == family] for family in FAMILIES}
    return {family: members for family, members in blocks.items() if members}


def merge(cells: Cells) -> dict[str, str]:
    """Methods of a family that scored the same in every cell share a row: first name -> all names."""
    rows: dict[tuple[str, str], Names] = {}
    for method in dict.fromkeys(key[0] for key in cells if key[0] not in CALIBRATION):
        scores = repr([value for key, value in cells.items() if key[0] == method])
        rows.setdefault((family_of(method), scores), []).append(method)
    return {names[0]: ", ".join(names) for names in rows.values()}


def update(page: Path, lines: Names) -> None:
    """Replace the first table of methods of a page."""
    before, _, after = page.read_text(encoding="utf-8").partition("\n| method |")
    tail = after[after.index("|\n\n") + 1 :]
    page.write_text(before + "\n" + "\n".join(lines) + tail, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--groups", type=int, help="groups of 8 rollouts per process, teacher and seed: 8; --real: 6")
    parser.add_argument("--methods", nargs="*", default=[], help="registered names; all if left out; grpo is added")
    parser.add_argument("--import", dest="modules", nargs="*", default=[], help="modules that register methods")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="outputs/fidelity, or outputs/real")
    parser.add_argument(
        "--real", choices=("alfworld", "webshop", "search_qa"), help="against measured advantages there"
    )
    parser.add_argument("--continuations", type=int, default=8, help="with --real: from every state")
    parser.add_argument("--page", type=Path, help="page whose first table of methods is brought up to date")
    options = parser.parse_args()
    if options.page and "\n| method |" not in options.page.read_text(encoding="utf-8"):
        parser.error(f"--page must name a page with a table of methods, got {options.page}; leave it out")
    load(options.modules)
    if options.seeds < 1 or options.workers < 1:
        parser.error(f"--seeds and --workers must be at least 1, got {options.seeds} and {options.workers}")
    names = ["grpo", *(n for n in options.methods if n != "grpo")] if options.methods else []
    for name in names:
        get_credit(name)  # unknown ones fail here
    options.groups = options.groups or (6 if options.real else 8)
    options.output = options.output or Path("outputs/real" if options.real else "outputs/fidelity")
    if options.real:
        import compare_real

        return compare_real.main(options, over_seeds)
    began = time.perf_counter()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [Job(seed, process, options.groups, names, options.modules) for seed in seeds for process in PROCESSES]
    cells: Cells = {}
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for part, problems in pool.map(run, jobs):
            failed |= problems
            for key, values in part.items():
                cells.setdefault(key, []).extend(values)
    report = Report({key: values for key, values in cells.items() if key[0] not in failed})
    caption = (
        f"Seeds {', '.join(map(str, seeds))}; {options.groups} groups of 8 rollouts a process; means over the "
        f"{len(PROCESS_NAMES)} processes with exact observations, with 95% intervals over seeds."
    )
    text = "\n".join([
        "# Credit fidelity: all tables", "",
        f"{caption} `*`: better than the baseline (GRPO unless said otherwise) on the same seeds, `!`: worse. Methods "
        "of a family that scored alike everywhere share a row.",
        report.text(), "", *(f"Left out: {name}: {why}" for name, why in failed.items()),
    ])  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "fidelity_tables.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    report.plot(options.output / "fidelity.png", caption)
    if options.page:
        update(options.page, report.main())
    print(text)
    spent = os.times()
    print(
        f"{time.perf_counter() - began:.0f} s, {spent.children_user + spent.user:.0f} s of CPU time; "
        f"tables and plot in {options.output}"
    )


if __name__ == "__main__":
    main()
