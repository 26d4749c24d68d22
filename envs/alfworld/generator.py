"""New ALFWorld games from nothing but the installed wheel: seeded, all different, each played to its end before use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..base import EnvFailure, Observation, StepResult
from ..vector import VectorEnv
from .data import GAME_FILE, INNER_FOLDER, TASK_TYPES, Game, read_game
from .houses import SIZES, wheel_facts
from .layout import Layout, draw_layout
from .problem import game_content, trajectory_content

_ENGINE = []
Verified = Callable[[list[Path]], list[bool]]


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
    with _verifying(num_workers if verify else 0) as verified:
        return _generate(
            folder,
            range(num_games),
            seed,
            split=split,
            house_size=house_size,
            task_types=task_types,
            exclude=exclude,
            verified=verified if verify else None,
        )


def generate_splits(
    folder: str | os.PathLike[str],
    counts: Mapping[str, int],
    seed: int = 0,
    *,
    house_size: str = "small",
    num_workers: int = 0,
) -> list[Game]:
    """`generate_games` for several splits with the same processes for all of them.

    Args:
        folder, seed, house_size, num_workers: see `generate_games`.
        counts: split name -> number of games it shall hold; those it holds already are kept. A folder that lacks none
            is only read.
    """
    for count in counts.values():
        _check(count, house_size, tuple(TASK_TYPES), num_workers)
    root = _root(folder)
    games: list[Game] = []
    if not any(_missing(root, split, seed, count) for split, count in counts.items()):
        return games
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".generating.lock"):  # runs that are started side by side share a folder
        missing = {split: numbers for split, count in counts.items() if (numbers := _missing(root, split, seed, count))}
        with _verifying(num_workers if missing else 0) as verified:
            for split, numbers in missing.items():
                games += _generate(folder, numbers, seed, split=split, house_size=house_size, verified=verified)
    return games


def _missing(root: Path, split: str, seed: int, count: int) -> list[int]:
    """Numbers of the games that bring a split to `count`; what a killed run left out comes first."""
    held = {path.parent.name for path in (root / split).glob(f"*/*/{GAME_FILE}")}
    absent = [number for number in range(count) if _trial_name(split, seed, number) not in held]
    return absent[: max(count - len(held), 0)]


def _root(folder: str | os.PathLike[str]) -> Path:
    return Path(folder).expanduser().resolve() / INNER_FOLDER


def _generate(
    folder: str | os.PathLike[str],
    numbers: Sequence[int],
    seed: int,
    *,
    split: str,
    house_size: str,
    task_types: Sequence[str] = tuple(TASK_TYPES),
    exclude: Iterable[str | os.PathLike[str]] = (),
    verified: Verified | None,
) -> list[Game]:
    root = _root(folder)
    seen = _signatures([root, *(Path(other).expanduser().resolve() for other in exclude)])
    names = {number: _trial_name(split, seed, number) for number in numbers}
    taken = {path.name for path in (root / split).glob("*/*")}
    if taken & set(names.values()):
        raise ValueError(
            f"generate_games: seed must be new to split {split!r}, got {seed}, whose games are there already; "
            "choose another seed or an empty folder"
        )
    games: dict[int, Game] = {}
    attempts = dict.fromkeys(names, 0)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=root) as staging:
        while attempts:
            drawn: dict[int, tuple[Layout, Path]] = {}
            for number, attempt in attempts.items():
                kind = task_types[number % len(task_types)]
                layout, attempts[number] = _draw_new(kind, house_size, (split, seed, number), attempt, seen)
                drawn[number] = layout, _write(Path(staging), layout, names[number], house_size)
            won = verified([path for _, path in drawn.values()]) if verified else [True] * len(drawn)
            for (number, (layout, path)), is_good in zip(drawn.items(), won, strict=True):
                if not is_good:
                    shutil.rmtree(path.parent)
                    continue
                target = root / split / path.parent.relative_to(staging)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.parent.rename(target)
                games[number] = Game(target.relative_to(root).as_posix(), layout.task_type, split, target / GAME_FILE)
                del attempts[number]
    return [games[number] for number in numbers]


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


def _write(folder: Path, layout: Layout, name: str, house_size: str) -> Path:
    task = "-".join((layout.task_type, layout.target, "None", layout.destination or layout.lamp, str(layout.scene)))
    path = folder / task / name / GAME_FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(game_content(layout, name, wheel_facts())), encoding="utf-8")
    path.with_name("traj_data.json").write_text(
        json.dumps(trajectory_content(layout, name, house_size)), encoding="utf-8"
    )
    return path


@contextlib.contextmanager
def _verifying(num_workers: int) -> Iterator[Verified]:
    """`verify_game` of many games, here or in processes that end afterwards."""
    if num_workers == 0:
        yield lambda paths: [verify_game(path) for path in paths]
        return
    with VectorEnv(GameVerifier, 8 * num_workers, num_workers=num_workers, timeout=600.0) as verifiers:
        yield lambda paths: _verify_all(verifiers, paths)


def _verify_all(verifiers: VectorEnv, paths: list[Path]) -> list[bool]:
    won: list[bool] = []
    for first in range(0, len(paths), verifiers.num_envs):
        batch = {slot: str(path) for slot, path in enumerate(paths[first : first + verifiers.num_envs])}
        for slot, answer in verifiers.reset(batch).items():
            if isinstance(answer, EnvFailure):
                raise RuntimeError(f"generate_games: {batch[slot]} could not be verified: {answer.message}")
            won.append(answer.text == "won")
    return won


class GameVerifier:
    """An environment whose reset plays a whole game file by its walkthrough; for `VectorEnv`."""

    def reset(self, task_id: str) -> Observation:
        """Verify the game file `task_id`; the observation says "won" or "lost"."""
        return Observation("won" if verify_game(Path(task_id)) else "lost")

    def step(self, action: str) -> StepResult:
        """There is nothing to step."""
        raise NotImplementedError(f"GameVerifier.step: only reset is of use here, got {action!r}; call reset(path)")

    def close(self) -> None:
        """There is nothing to close."""


def verify_game(path: Path) -> bool:
    """Whether the game at `path` is won by its walkthrough; keeps the translation beside it."""
    from .translation import TRANSLATION_FILE, save_translation

    game = read_game(path)
    if not is_won(game):
        return False
    save_translation(path.with_name(TRANSLATION_FILE), game["pddl_domain"], game["pddl_problem"])
    return True


def is_won(game: dict[str, Any]) -> bool:
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
