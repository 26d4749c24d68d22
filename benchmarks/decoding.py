"""Decode steps and seconds of a rollout: a turn of all episodes together beside decoding that never waits.

    python benchmarks/decoding.py                        # both histories and the embedded ALFWorld default
    python benchmarks/decoding.py --parts whole          # prompts show the whole episode; or windowed, embedded
    python benchmarks/decoding.py --parts counted        # steps alone, from the drawn lengths, in a second

Responses are as long as those of real agents: log-normal, median 60, sigma 0.8, at most 512 tokens, a pure function of
each response's seed. 128 episodes of 4 to 12 turns are played in 64 slots by a small random model. Old
(`BatchGenerator`: every turn lasts until its longest response ends) and new (`ContinuousGenerator`) take turns in one
process. A decode step is a forward pass that adds one token to every row.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from timing import both_clocks, table
from workloads import (
    Meter,
    ScriptedSuite,
    Shape,
    agent_lengths,
    make_model,
    make_tokenizer,
    play,
    scripted_engine,
    turns_of,
)

from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld.compact import BUDGETS, compact_suite
from turncredit.rollout import RolloutCollector, SamplingConfig, Trajectory
from turncredit.trainers.launch import load_policy

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
MODES = {"old": False, "new": True}
WHOLE = 1000
WINDOW = 2
PARTS = ("counted", "whole", "windowed", "embedded")


def make_suite(options: argparse.Namespace, history: int) -> ScriptedSuite:
    turns = tuple(options.turns)
    return ScriptedSuite(options.observation, turns, options.episodes, options.vocabulary, history)


def show_counts(options: argparse.Namespace) -> dict[str, Any]:
    """Steps from the lengths alone: of batches in step, and of slots that are never empty while an episode waits."""
    suite = make_suite(options, WHOLE)
    length = agent_lengths(options.median, options.sigma, options.longest)
    episodes = [
        [length((0, 0, task.id, 0, turn)) for turn in range(turns_of(task.id, suite.turns))]
        for task in suite.tasks("train")
    ]
    table("slots", "tokens", "steps in step", "steps that never wait", "ratio")
    table(*["---"] * 5)
    total, found = sum(map(sum, episodes)), {}
    for slots in (max(options.slots // 4, 1), options.slots, 4 * options.slots):
        old, new = found[slots] = steps_together(episodes, slots), steps_apart(episodes, slots)
        table(slots, f"{total:,}", f"{old:,}", f"{new:,}", f"{old / new:.1f}")
    return found


def steps_together(episodes: list[list[int]], slots: int) -> int:
    """Free slots are filled at the start of every turn."""
    waiting, playing, steps = [list(e) for e in episodes], [], 0
    while waiting or playing:
        while waiting and len(playing) < slots:
            playing.append(waiting.pop(0))
        steps += max(episode.pop(0) for episode in playing) - 1  # the prefill gives the first token
        playing = [episode for episode in playing if episode]
    return steps


def steps_apart(episodes: list[list[int]], slots: int) -> int:
    """Every slot plays on by itself; the next episode goes to the one that is free first."""
    ends = [0] * slots
    for episode in episodes:
        first = min(range(slots), key=ends.__getitem__)
        ends[first] += sum(tokens - 1 for tokens in episode)
    return max(ends)


def show_scripted(options: argparse.Namespace, history: int) -> dict[str, Any]:
    """Old and new on episodes of scripted lengths."""
    shape = Shape(options.hidden, options.layers, options.vocabulary)
    model, tokenizer = make_model(shape), make_tokenizer(shape)
    length = agent_lengths(options.median, options.sigma, options.longest)
    sampling = SamplingConfig(max_completion_length=options.longest, max_prompt_length=1 << 16)
    engines = {mode: scripted_engine(model, tokenizer, new, length) for mode, new in MODES.items()}
    few = ScriptedSuite(4, (1, 1), 2, options.vocabulary)
    few_sampling = SamplingConfig(max_completion_length=4)

    def run(mode: str, suite: ScriptedSuite, sampling: SamplingConfig) -> list[Trajectory]:
        return play(model, tokenizer, suite, sampling, engines[mode], options.slots)

    for mode in MODES:  # to warm up: the first call tries the model out
        run(mode, few, few_sampling)
    meters: dict[str, Meter] = {}
    played: dict[str, list[Trajectory]] = {}

    def measured(mode: str) -> None:
        with Meter(model) as meters[mode]:
            played[mode] = run(mode, make_suite(options, history), sampling)

    times = both_clocks({mode: lambda mode=mode: measured(mode) for mode in MODES}, options.rounds)
    found = show_engines(times, meters)
    print(f"\n{tokens_alike(played)} of {options.episodes} episodes hold the same tokens")
    return found


def tokens_alike(played: dict[str, list[Trajectory]]) -> int:
    """Episodes whose sampled tokens are the same in both."""
    tokens = {mode: [[turn.response_ids for turn in t.turns] for t in found] for mode, found in played.items()}
    return sum(a == b for a, b in zip(*tokens.values(), strict=True))


def show_engines(times: dict[str, tuple[float, float]], meters: dict[str, Meter]) -> dict[str, list[float]]:
    """A row for each engine and their ratios; the rows."""
    columns = ("decode steps", "rows x steps", "decode CPU s", "prefill tokens", "prefill CPU s", "CPU s", "wall s")
    table("engine", *columns)
    table(*["---"] * 8)
    rows: dict[str, list[float]] = {}
    for mode, meter in meters.items():
        steps, wide = meter.steps, meter.wide
        rows[mode] = [steps.calls, steps.tokens, steps.cpu, wide.tokens, wide.cpu, *times[mode]]
        table(
            mode,
            *(f"{value:,.1f}" if index in (2, 4, 5, 6) else f"{value:,}" for index, value in enumerate(rows[mode])),
        )
    table("old / new", *(f"{old / max(new, 1e-9):.1f}" for old, new in zip(*rows.values(), strict=True)))
    return rows


def show_embedded(options: argparse.Namespace) -> dict[str, Any]:
    """The rollouts of an update of the embedded ALFWorld default: 8 tasks, 8 episodes each."""
    model, tokenizer = load_policy(str(EMBEDDED))
    sampling = SamplingConfig(**BUDGETS)
    with tempfile.TemporaryDirectory() as folder:
        generate_games(folder, 16, seed=0, split="train", house_size="small", num_workers=2)
        suite = compact_suite(folder, ["train"])
        tasks = suite.tasks("train")
        collectors = {
            mode: RolloutCollector(model, tokenizer, suite, sampling, continuous_batching=new)
            for mode, new in MODES.items()
        }
        meters: dict[str, Meter] = {}
        played: dict[str, list[Trajectory]] = {}
        inside: dict[str, list[float]] = {mode: [] for mode in MODES}
        for collector in collectors.values():
            collector.collect(tasks, 1)  # to warm up, and so that both have loaded every game

        def measured(mode: str) -> None:
            with Meter(model) as meters[mode]:
                played[mode] = collectors[mode].collect(tasks[:8], 8)
            inside[mode].append(collectors[mode].stats.generation_seconds)

        times = both_clocks({mode: lambda mode=mode: measured(mode) for mode in MODES}, options.embedded_rounds)
        for collector in collectors.values():
            collector.close()
    found = show_engines(times, meters)
    old, new = (sorted(seconds)[len(seconds) // 2] for seconds in inside.values())
    print(f"\ngeneration alone: {old:.2f} s and {new:.2f} s, ratio {old / new:.2f}")
    print(f"{tokens_alike(played)} of 64 episodes hold the same tokens")
    return found


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", nargs=2, type=int, default=[4, 12], help="fewest and most of an episode")
    parser.add_argument("--observation", type=int, default=30, help="tokens")
    parser.add_argument("--median", type=float, default=60, help="tokens of a response")
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="of scripted lengths")
    parser.add_argument("--embedded-rounds", type=int, default=5)
    return parser


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the tables; what they hold, by part."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    parts: dict[str, Any] = {
        "counted": lambda: show_counts(options),
        "whole": lambda: show_scripted(options, WHOLE),
        "windowed": lambda: show_scripted(options, WINDOW),
        "embedded": lambda: show_embedded(options),
    }
    found = {}
    for part in options.parts:
        print(f"\n{part}\n", flush=True)
        found[part] = parts[part]()
    return found


if __name__ == "__main__":
    main()
