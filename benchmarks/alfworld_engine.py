"""How fast ALFWorld runs here: stock TextWorld beside this library's engine, the vector runner, generated houses.

    python benchmarks/alfworld_engine.py --data FOLDER_OF_OFFICIAL_GAMES [--games 4] [--out FILE.json]

Both engines play the same games with the same commands in one run, so that the ratio holds on a busy machine too; the
transcripts are compared on the way. Without --data only generated games are measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs import PddlEnv

from turncredit.envs import VectorEnv
from turncredit.envs.alfworld import AlfWorldEnv, AlfWorldSuite, find_games, generate_games, read_game
from turncredit.envs.alfworld.engine import FastPddlEnv

INFOS = textworld.EnvInfos(won=True, admissible_commands=True)


class Clock:
    """Seconds per call, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name, function, *arguments):
        start = time.perf_counter()
        result = function(*arguments)
        self.seconds[name].append(time.perf_counter() - start)
        return result

    def milliseconds(self) -> dict[str, float]:
        return {name: round(1000 * statistics.mean(times), 2) for name, times in self.seconds.items()}


def sample(folder: Path, split: str, count: int) -> list:
    """`count` games, one task type after the other."""
    games = find_games(folder, [split])
    random.Random(0).shuffle(games)
    by_type = defaultdict(list)
    for game in games:
        by_type[game.task_type].append(game)
    return [group[i] for i in range(count) for group in by_type.values() if i < len(group)][:count]


def compare_engines(folder: Path, split: str, count: int, steps: int) -> dict:
    """Load, reset twice and play `steps` random admissible commands with both engines."""
    clock = Clock()
    engines = {"stock": AlfredDemangler(PddlEnv(INFOS), shuffle=False), "ours": FastPddlEnv(INFOS)}
    for game in sample(folder, split, count):
        states = {}
        for name, engine in engines.items():
            clock(f"{name} load", engine.load, str(game.path))
            clock(f"{name} first reset", engine.reset)
            states[name] = clock(f"{name} reset again", engine.reset)
        rng = random.Random(game.id)
        for _ in range(steps):
            command = rng.choice(states["stock"]["admissible_commands"])
            states = {name: clock(f"{name} step", engine.step, command)[0] for name, engine in engines.items()}
            for key in ("feedback", "admissible_commands", "won"):
                assert states["stock"][key] == states["ours"][key], (game.id, command, key)
    result = clock.milliseconds()
    for name in engines:
        result[f"{name} steps/s"] = round(1000 / result[f"{name} step"], 1)
    result["steps ratio"] = round(result["stock step"] / result["ours step"], 1)
    return result


def vector_speed(folder: Path, split: str, num_workers: int, num_envs: int, steps: int) -> dict:
    """Random admissible actions in `num_envs` episodes at once, after every game was loaded once."""
    suite = AlfWorldSuite(folder, splits=[split], limits={split: num_envs})
    tasks = suite.tasks(split)
    rng = random.Random(0)
    start = time.perf_counter()
    with VectorEnv(suite.make_env(), num_envs, num_workers=num_workers) as envs:
        ids = {slot: tasks[slot % len(tasks)].id for slot in range(num_envs)}
        observations = envs.reset(ids)
        loaded = time.perf_counter()
        played = 0
        for _ in range(steps):
            actions = {slot: rng.choice(item.admissible_actions) for slot, item in observations.items()}
            results = envs.step(actions)
            played += len(actions)
            observations = {slot: result.observation for slot, result in results.items()}
            over = {slot: ids[slot] for slot, result in results.items() if result.done}
            observations |= envs.reset(over)
        seconds = time.perf_counter() - loaded
    return {"start and first reset s": round(loaded - start, 2), "steps/s": round(played / seconds, 1)}


def generated(size: str, count: int) -> dict:
    """Generation with verification, then load, reset and step in an environment that has seen none of the games."""
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        games = generate_games(name, count, seed=0, house_size=size)
        result = {"generate and verify ms": round(1000 * (time.perf_counter() - start) / count, 1)}
        env, clock, won = AlfWorldEnv(name), Clock(), 0
        env.reset(games[0].id)
        from turncredit.envs.alfworld import translation

        for game in games:
            translation._KNOWN.clear()
            clock("load and reset ms", env.reset, game.id)
            clock("reset again ms", env.reset, game.id)
            for command in read_game(game.path)["walkthrough"]:
                last = clock("step ms", env.step, command)
            won += last.success
        result |= clock.milliseconds()
        result["won by walkthrough"] = f"{won} of {count}"
        result |= {f"vector, {n} workers": vector_speed(Path(name), "train", n, 16, 25) for n in (1, 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--games", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sizes", nargs="*", default=["small", "medium", "large"])
    parser.add_argument("--generated", type=int, default=24)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict = {}
    if options.data:
        report["official games, one process"] = compare_engines(
            options.data, options.split, options.games, options.steps
        )
        for workers in (1, 2):
            report[f"official games, vector runner, {workers} workers"] = vector_speed(
                options.data, options.split, workers, 8, options.steps
            )
    for size in options.sizes:
        report[f"generated games, {size} houses"] = generated(size, options.generated)
    print(json.dumps(report, indent=2))
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
