"""What a turn costs where a prompt goes on with the tokens before it: separate rows beside shared prefixes.

    python benchmarks/append_only.py                          # every part, for a quarter of an hour
    python benchmarks/append_only.py --parts training         # or scoring, prefill, memory, attention, padding
    python benchmarks/append_only.py --parts memory --memory-of training
    python benchmarks/append_only.py --plot docs/append_only.png        # draws what --out holds

Each prompt is the previous prompt, its response and 500 tokens of an observation. Old (``share_prefixes=False``,
``continuous_batching=False``) and new take turns in one process: CPU seconds of all threads, elapsed ones, and tokens
that the model's decoder was given. Separate rows cost a trajectory of K turns the square of K, so they stop at
``--old-limit`` turns. Peak memory is that of a fresh process above what it had before the pass (Linux). Results of
several runs are gathered in ``--out``.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timing import RETURNING, both_clocks, forget_peak, memory, table
from workloads import (
    Meter,
    Rows,
    ScriptedSuite,
    Shape,
    histories,
    make_model,
    make_tokenizer,
    play,
    scripted_engine,
    uniform_lengths,
)

from turncredit.envs import TaskSuite
from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld.compact import BUDGETS as ALFWORLD
from turncredit.envs.alfworld.compact import compact_suite as alfworld
from turncredit.envs.webshop.compact import BUDGETS as WEBSHOP
from turncredit.envs.webshop.compact import compact_suite as webshop
from turncredit.rollout import RolloutCollector, SamplingConfig, score_responses
from turncredit.trainers import GRPOConfig
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.launch import load_policy
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.policy import make_policy
from turncredit.trainers.rows import TrainRows

MODES = {"old": False, "new": True}
TIMED = ("training", "scoring", "prefill")
PARTS = (*TIMED, "memory", "attention", "padding")
MIB = 2**20
ASSETS = Path(__file__).resolve().parents[1] / "examples" / "assets"


class Passes:
    """A model and what is done with rows of turns."""

    def __init__(self, model: Any):
        self.model = model
        self.accelerator = Accelerator(cpu=True)
        self.scorer = make_policy(self.accelerator, model, self.config(True), None, None).scorer

    def config(self, share: bool) -> GRPOConfig:
        return GRPOConfig(beta=0.0, share_prefixes=share)

    def training(self, rows: Rows, share: bool) -> None:
        """Forward and backward passes of one optimiser step, with the loss of GRPO."""
        width = max(map(len, rows.responses))
        mask = torch.arange(width)[None] < torch.tensor([len(r) for r in rows.responses])[:, None]
        logprobs = -math.log(self.model.config.vocab_size) * mask
        slots = torch.tensor(rows.trajectories)
        advantages = (1.0 - 2.0 * (slots % 2))[:, None] * mask
        active = torch.ones(len(slots), dtype=torch.bool)
        batch = TrainRows(rows.prompts, rows.responses, mask, slots, active, advantages, logprobs)
        self.scorer.zero_grad(set_to_none=True)
        accumulate_gradients(self.accelerator, self.scorer, batch, self.config(share), pad_token_id=0)

    def scoring(self, rows: Rows, share: bool, pad: int = 0) -> None:
        """Log-probs of every response."""
        score_responses(self.scorer, rows.prompts, rows.responses, pad_token_id=pad, share_prefixes=share)


class Workload(Passes):
    """A random model and append-only episodes."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.shape = Shape(options.hidden, options.layers, options.vocabulary)
        self.tokenizer = make_tokenizer(self.shape)
        super().__init__(make_model(self.shape))
        length = uniform_lengths(*options.response)
        self.engines = {new: scripted_engine(self.model, self.tokenizer, new, length) for new in MODES.values()}

    def rows(self, turns: int, count: int | None = None) -> Rows:
        asked = self.options
        return histories(count or asked.trajectories, turns, asked.observation, asked.response, self.shape.vocabulary)

    def rollout(self, turns: int, new: bool) -> None:
        """Episodes of so many turns, each response as long as its seed says."""
        asked = self.options
        suite = ScriptedSuite(asked.observation, (turns, turns), asked.slots, self.shape.vocabulary)
        longest = (turns + 1) * (asked.observation + asked.response[1] + 8)
        sampling = SamplingConfig(max_completion_length=asked.response[1], max_prompt_length=longest)
        play(self.model, self.tokenizer, suite, sampling, self.engines[new], asked.slots)

    def passes(self, part: str, turns: int) -> dict[str, Callable[[], Meter]]:
        """The old and the new way of a part, each returning what it had computed; old only within its limit."""
        rows = self.rows(turns)

        def measured(new: bool) -> Meter:
            with Meter(self.model) as meter:
                if part == "prefill":
                    self.rollout(turns, new)
                else:
                    getattr(self, part)(rows, new)
            return meter

        return {
            mode: functools.partial(measured, new)
            for mode, new in MODES.items()
            if new or turns <= self.options.old_limit
        }

    def time(self, part: str, turns: int) -> dict[str, dict[str, float]]:
        """Medians of every mode, and the tokens that the decoder was given."""
        meters: dict[str, list[Meter]] = {}

        def kept(mode: str, function: Callable[[], Meter]) -> Callable[[], None]:
            return lambda: meters.setdefault(mode, []).append(function())

        passes = {mode: kept(mode, function) for mode, function in self.passes(part, turns).items()}
        rounds = self.options.rounds if turns <= self.options.old_limit else 1
        times = both_clocks(passes, rounds)
        found = {}
        for mode, (cpu, wall) in times.items():
            wide, steps = meters[mode][-1].wide, meters[mode][-1].steps
            found[mode] = {"cpu": cpu, "wall": wall, "tokens": wide.tokens, "steps": steps.calls}
            if part == "prefill":
                inside = sorted((m.wide.cpu, m.wide.wall) for m in meters[mode])[rounds // 2]
                found[mode] |= {"rollout_cpu": cpu, "rollout_wall": wall, "cpu": inside[0], "wall": inside[1]}
        return found

    def attention(self, turns: int) -> dict[str, float]:
        """Seconds of a training pass of the new way, by torch's profiler, and the attention kernels' share of them."""
        rows = self.rows(turns)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self.training(rows, True)
        kernels = {event.key: event.self_cpu_time_total / 1e6 for event in profile.key_averages()}
        inside = sum(seconds for name, seconds in kernels.items() if "attention" in name or "dot_product" in name)
        return {"seconds": sum(kernels.values()), "attention": inside}


def time_part(work: Workload, part: str) -> dict[str, Any]:
    """A table over turns, with ratios old / new."""
    for turns in (1, 2):  # to warm up: the first calls try the model out
        for function in work.passes(part, turns).values():
            function()
    more = ("rollout CPU s", "rollout ratio") if part == "prefill" else ()
    columns = ("rows' tokens", "tokens old", "tokens new", "CPU s old", "CPU s new", "CPU ratio", "wall ratio")
    table("turns", *columns, "new, CPU ms a turn", *more)
    table(*["---"] * (9 + len(more)))
    found: dict[str, Any] = {}
    for turns in work.options.turns:
        cells = found[str(turns)] = work.time(part, turns)
        new, old = cells["new"], cells.get("old", {})

        def ratio(key: str, old: dict[str, float] = old, new: dict[str, float] = new) -> str:
            return f"{old[key] / new[key]:.1f}" if old else "-"

        episodes = work.options.slots if part == "prefill" else work.options.trajectories
        row = [f"{work.rows(turns, episodes).tokens:,}", f"{old['tokens']:,}" if old else "-", f"{new['tokens']:,}"]
        row += [f"{old['cpu']:.2f}" if old else "-", f"{new['cpu']:.2f}", ratio("cpu"), ratio("wall")]
        row += [f"{1e3 * new['cpu'] / turns:.0f}"]
        if part == "prefill":
            row += [f"{new['rollout_cpu']:.2f}", ratio("rollout_cpu")]
        table(turns, *row)
    return found


def show_attention(work: Workload) -> dict[str, Any]:
    """What grows with the square of the turns."""
    work.training(work.rows(1), True)
    table("turns", "training s (elapsed, profiled)", "attention s", "share", "rest, ms a turn")
    table(*["---"] * 5)
    found = {}
    for turns in work.options.turns:
        cells = found[str(turns)] = work.attention(turns)
        rest = cells["seconds"] - cells["attention"]
        share = f"{cells['attention'] / cells['seconds']:.0%}"
        table(turns, f"{cells['seconds']:.2f}", f"{cells['attention']:.2f}", share, f"{1e3 * rest / turns:.0f}")
    return found


def child(options: argparse.Namespace) -> None:
    """Print the peak of one pass above what the process held before it, MiB."""
    part, turns, mode = options.child
    work = Workload(options)
    for function in work.passes(part, 1).values():
        function()
    function = work.passes(part, int(turns))[mode]
    forget_peak()
    before = memory("VmRSS")
    function()
    print((memory("VmHWM") - before) / MIB)


def show_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peaks of all parts and modes, each in a process of its own."""
    parts = options.memory_of
    table("turns", *(f"{part} {mode}, MiB" for part in parts for mode in MODES))
    table(*["---"] * (1 + 2 * len(parts)))
    given = [f"--{name}={getattr(options, name)}" for name in ("threads", "hidden", "layers", "vocabulary", "slots")]
    given += [f"--trajectories={options.trajectories}", f"--observation={options.observation}", "--response"]
    given += map(str, options.response)
    found: dict[str, Any] = {part: {} for part in parts}
    for turns in options.turns:
        cells = []
        for part in parts:
            peaks = found[part].setdefault(str(turns), {})
            for mode in MODES:
                if mode == "new" or turns <= options.old_limit:
                    command = [sys.executable, __file__, *given, "--child", part, str(turns), mode]
                    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=RETURNING)
                    peaks[mode] = float(answer.stdout.splitlines()[-1])
                cells.append(f"{peaks[mode]:.0f}" if mode in peaks else "-")
        table(turns, *cells)
    return found


def played(folder: Path, suite: TaskSuite, budgets: dict[str, int]) -> tuple[Passes, Rows]:
    """The turns that an embedded policy plays in eight tasks, eight times each."""
    model, tokenizer = load_policy(str(folder))
    with RolloutCollector(model, tokenizer, suite, SamplingConfig(**budgets), num_workers=0) as collector:
        batch = make_batch(usable(collector.collect(suite.tasks("train")[:8], 8)))
    return Passes(model), Rows(batch.prompts, batch.responses, batch.trajectory_ids.tolist())


def show_padding(work: Workload) -> dict[str, Any]:
    """What share of a scoring pass's tokens are pads, and what sharing saves; training cuts rows by the same plan."""
    cases: dict[str, tuple[Passes, Rows]] = {}
    with tempfile.TemporaryDirectory() as games:
        generate_games(games, 8, seed=0, split="train", house_size="small")
        cases["ALFWorld, embedded policy"] = played(ASSETS / "alfworld_tiny", alfworld(games, ["train"]), ALFWORLD)
    cases["WebShop, embedded policy"] = played(ASSETS / "webshop_tiny", webshop(), WEBSHOP)
    for turns in (2, 4, 8):
        cases[f"append-only, {turns} turns"] = work, work.rows(turns, 4)
    columns = (f"{name} {mode}" for name in ("computed", "pads") for mode in MODES)
    table("scoring", "rows", "rows' tokens", *columns, "saved by sharing")
    table(*["---"] * 8)
    found: dict[str, Any] = {}
    for name, (passes, rows) in cases.items():
        seen = {token for row in (*rows.prompts, *rows.responses) for token in row}
        pad = next(token for token in range(passes.model.config.vocab_size) if token not in seen)
        few, meters = Rows(rows.prompts[:2], rows.responses[:2], rows.trajectories[:2]), {}
        for mode, share in MODES.items():
            passes.scoring(few, share)  # the first call tries the model out
            with Meter(passes.model, pad) as meters[mode]:
                passes.scoring(rows, share, pad)
        counts = {mode: {"tokens": meter.wide.tokens, "pads": meter.wide.pads} for mode, meter in meters.items()}
        saved = 1 - (counts["new"]["tokens"] - counts["new"]["pads"]) / rows.tokens
        found[name] = {**counts, "rows": rows.tokens, "saved": saved}
        computed = [f"{count['tokens']:,}" for count in counts.values()]
        pads = [f"{count['pads'] / count['tokens']:.1%}" for count in counts.values()]
        table(name, len(rows.prompts), f"{rows.tokens:,}", *computed, *pads, f"{saved:.0%}")
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Cost and memory over turns, old and new, with a line of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = {f"{part}, CPU s": (found.get(part), "cpu") for part in TIMED}
    panels["training, tokens computed"] = found.get("training"), "tokens"
    panels |= {f"{part}, peak MiB": (found.get("memory", {}).get(part), None) for part in ("training", "scoring")}
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.2), sharex=True, layout="constrained")
    for axis, (title, (rows, key)) in zip(axes.flat, panels.items(), strict=True):
        if rows is None:  # not measured
            axis.set_axis_off()
            continue
        for mode, colour in (("old", "#b5533c"), ("new", "#2a6f97")):
            points = [(int(k), cells[mode][key] if key else cells[mode]) for k, cells in rows.items() if mode in cells]
            label = {"old": "a row a turn", "new": "shared prefixes"}[mode]
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=label, markersize=4)
        if title == "training, CPU s" and "attention" in found:
            shares = {k: cells["attention"] / cells["seconds"] for k, cells in found["attention"].items()}
            rest = [(int(k), rows[k]["new"]["cpu"] * (1 - share)) for k, share in shares.items() if k in rows]
            axis.plot(*zip(*rest, strict=True), "--", color=colour, label="the same without attention")
        turns, values = zip(*points, strict=True)
        axis.plot(turns, [values[0] * k / turns[0] for k in turns], ":", color="grey", label="in proportion to turns")
        axis.set(title=title, xscale="log", yscale="log")
        axis.set_xticks(turns, turns)
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("turns")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--turns", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--old-limit", type=int, default=16, help="turns up to which separate rows are measured")
    parser.add_argument("--trajectories", type=int, default=1, help="episodes of a training or scoring pass")
    parser.add_argument("--slots", type=int, default=2, help="episodes of a rollout, all in play at once")
    parser.add_argument("--observation", type=int, default=500, help="tokens")
    parser.add_argument("--response", nargs=2, type=int, default=[20, 60], help="fewest and most tokens")
    parser.add_argument("--memory-of", nargs="+", choices=TIMED, default=TIMED)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("outputs/append_only.json"), help="results of all runs")
    parser.add_argument("--plot", type=Path, help="draw what --out holds and leave")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the tables; what --out holds."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.child:
        child(options)
        return {}
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    if options.plot:
        draw(found, options.plot)
        return found
    work = Workload(options)
    for part in options.parts:
        print(f"\n{part}\n")
        if part == "memory":
            found[part] = found.get(part, {}) | show_memory(options)
        elif part == "attention":
            found[part] = show_attention(work)
        elif part == "padding":
            found[part] = show_padding(work)
        else:
            found[part] = time_part(work, part)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
