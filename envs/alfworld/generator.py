"""New ALFWorld games from nothing but the installed wheel: seeded, all different, each played to its end before use."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from .data import _INNER, GAME_FILE, TASK_TYPES, Game
from .houses import SIZES, wheel_facts
from .layout import Layout, draw_layout
from .problem import game_content, trajectory_content

_ENGINE = []


def generate_games(
    folder: str | os.PathLike[str],
    num_games: int,
    seed: int = 0,
    *,
    split: str = "train",
    house_size: str = "small",
    task_types: Sequence[str] = tuple(TASK_TYPES),
    exclude: Iterable[str | os.PathLike[str]] = (),
    verify: bool = True,
    num_workers: int = 0,
) -> list[Game]:
    """Write `num_games` new games below ``folder/json_2.1.1/split`` in the official layout.

    Game number i has task type ``task_types[i % len(task_types)]`` and depends on (split, seed, i), never on the
    process, the number of workers or the hash seed. No game equals another of this folder (any split) or of the
    folders in `exclude`, where equal means the same task and the same kinds of things in the same kinds of furniture;
    so a train and an eval split written into one folder are disjoint. With the same arguments and an empty folder the
    files are identical byte for byte.

    Args:
        folder: data root, usable as ``ALFWORLD_DATA``; created if absent.
        num_games: how many games to add.
        seed: any integer.
        split: name of the split.
        house_size: ``"small"`` (6-8 receptacles, 5-8 things), ``"medium"`` (11-15, 12-18) or ``"large"`` (20-28,
            22-34).
        task_types: a non-empty selection of `TASK_TYPES`, in any order.
        exclude: further data roots whose games must not come again.
        verify: play each game's walkthrough through the engine; a game that is not won is drawn anew. The translation
            that this needs is kept beside the game, so that loading it later is fast.
        num_workers: processes that verify; 0 verifies in this one.

    Returns:
        The new games in order of their number.

    Raises:
        ValueError: an argument is out of range, or the split already holds a game of that seed.
        ImportError: the alfworld wheel is not installed.
    """
    _check(num_games, house_size, task_types, num_workers)
    root = Path(folder).expanduser().resolve() / _INNER
    seen = _signatures([root, *(Path(other).expanduser().resolve() for other in exclude)])
    names = [_trial_name(split, seed, number) for number in range(num_games)]
    taken = {path.name for path in (root / split).glob("*/*")}
    if taken & set(names):
        raise ValueError(
            f"generate_games: seed must be new to split {split!r}, got {seed}, whose games are there already; "
            "choose another seed or an empty folder"
        )
    games: dict[int, Game] = {}
    attempts = dict.fromkeys(range(num_games), 0)
    while attempts:
        layouts: dict[int, Layout] = {}
        for number, attempt in attempts.items():
            layouts[number], attempts[number] = _draw_new(
                task_types[number % len(task_types)], house_size, (split, seed, number), attempt, seen
            )
        write = partial(_write, root / split, house_size, verify)
        jobs = [(layouts[number], names[number]) for number in layouts]
        for number, path in zip(layouts, _map(write, jobs, num_workers if verify else 0), strict=True):
            if path is not None:
                games[number] = Game(path.parent.relative_to(root).as_posix(), layouts[number].task_type, split, path)
                del attempts[number]
    return [games[number] for number in range(num_games)]


def _check(num_games: int, house_size: str, task_types: Sequence[str], num_workers: int) -> None:
    if num_games < 1 or num_workers < 0:
        raise ValueError(
            f"generate_games: num_games must be at least 1 and num_workers at least 0, got {num_games} and "
            f"{num_workers}; ask for one game and no workers or more"
        )
    if house_size not in SIZES:
        raise ValueError(
            f"generate_games: house_size must be one of {sorted(SIZES)}, got {house_size!r}; choose one of them"
        )
    unknown = [name for name in task_types if name not in TASK_TYPES]
    if unknown or not task_types:
        raise ValueError(
            f"generate_games: task_types must be among {list(TASK_TYPES)}, got {list(task_types)!r}; "
            "leave it out for all six"
        )


def _draw_new(
    task_type: str, house_size: str, key: tuple[str, int, int], attempt: int, seen: set[str]
) -> tuple[Layout, int]:
    wheel = wheel_facts()
    for trial in range(attempt, attempt + 1000):
        digest = hashlib.sha256(json.dumps([*key, house_size, task_type, trial]).encode()).digest()
        layout = draw_layout(task_type, house_size, random.Random(int.from_bytes(digest[:8], "big")), wheel)
        if layout.signature not in seen:
            seen.add(layout.signature)
            return layout, trial + 1
    raise RuntimeError(
        f"generate_games: num_games must leave room for new games, got no new {task_type!r} game in 1000 draws; "
        "use a larger house_size"
    )


def _trial_name(split: str, seed: int, number: int) -> str:
    digest = hashlib.sha256(json.dumps([split, seed, number]).encode()).hexdigest()
    return f"trial_G{number:05d}_{digest[:8]}"


def _signatures(roots: list[Path]) -> set[str]:
    seen = set()
    for root in roots:
        for path in root.rglob("traj_data.json"):
            data = json.loads(path.read_text(encoding="utf-8"))
            seen.add(data.get("generated", {}).get("signature", ""))
    return seen - {""}


def _map(function, jobs: list, num_workers: int) -> list:
    if num_workers == 0 or len(jobs) < 2:
        return [function(job) for job in jobs]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        return list(pool.map(function, jobs, chunksize=max(1, len(jobs) // (8 * num_workers))))


def _write(folder: Path, house_size: str, verify: bool, job: tuple[Layout, str]) -> Path | None:
    """Write one game, or nothing when its walkthrough does not win."""
    layout, name = job
    content = game_content(layout, name, wheel_facts())
    if verify and not is_won(content):
        return None
    task = "-".join((layout.task_type, layout.target, "None", layout.destination or layout.lamp, str(layout.scene)))
    path = folder / task / name / GAME_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    trajectory = trajectory_content(layout, name, house_size)
    if verify:
        from .translation import TRANSLATION_FILE, save_translation

        save_translation(path.with_name(TRANSLATION_FILE), content["pddl_domain"], content["pddl_problem"])
    path.with_name("traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def is_won(game: dict) -> bool:
    """Whether the game's own walkthrough, played through the engine, wins with its last command and not before."""
    from .engine import FastPddlEnv

    if not _ENGINE:
        _ENGINE.append(FastPddlEnv())
    engine = _ENGINE[0]
    engine.load(game)
    state = engine.reset()
    won = [bool(state["won"])]
    for command in game["walkthrough"]:
        if command not in state["admissible_commands"]:
            return False
        state, _, _ = engine.step(command)
        won.append(bool(state["won"]))
    return won[-1] and not any(won[:-1])
