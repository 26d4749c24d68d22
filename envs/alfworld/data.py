"""Games on disk: the official ALFWorld layout, found, ordered and named the same way on every machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import Task

TASK_TYPES = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
"""The six task types, from the name in the folders to the short label that metrics use."""

SPLITS = ("train", "valid_seen", "valid_unseen")
GAME_FILE = "game.tw-pddl"
INNER_FOLDER = "json_2.1.1"


@dataclass(frozen=True)
class Game:
    """A game on disk.

    Args:
        id: its folder relative to the folder of splits, with forward slashes: ``valid_seen/<task>/<trial>``.
        task_type: one of the names in `TASK_TYPES`.
        split: the first part of the id.
        path: the game file.
    """

    id: str
    task_type: str
    split: str
    path: Path

    @property
    def task(self) -> Task:
        """The game as the rest of the library sees it; the type is the short label."""
        return Task(id=self.id, type=TASK_TYPES[self.task_type], split=self.split)


def data_root(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the splits: `data`, else ``$ALFWORLD_DATA``; either may be the folder above it.

    Raises:
        FileNotFoundError: nothing was named, or the named folder has no games.
    """
    named = data if data is not None else os.environ.get("ALFWORLD_DATA")
    if not named:
        raise FileNotFoundError(
            "data_root: data must name a folder of ALFWorld games, got None and ALFWORLD_DATA is not set; "
            "set ALFWORLD_DATA, pass data=.., or make games with generate_games(folder, ..)"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "data" if data is not None else "ALFWORLD_DATA"
        raise FileNotFoundError(
            f"data_root: {source} must be a folder, got {str(folder)!r}, which does not exist; "
            "download the games with alfworld-download or make some with generate_games(folder, ..)"
        )
    root = folder / INNER_FOLDER if (folder / INNER_FOLDER).is_dir() else folder
    return root.resolve()


def find_games(data: str | os.PathLike[str] | None = None, splits: Sequence[str] = SPLITS) -> list[Game]:
    """All playable games of `splits`, split by split and sorted by id within each.

    Left out, as in ALFWorld's own loader: games with movable receptacles or sliced objects, and games that are not
    marked as solvable.

    Args:
        data: see `data_root`.
        splits: folder names below the root; one that is absent is an error, because its panel would be empty.

    Raises:
        FileNotFoundError: no data folder, a missing split, or no games at all.
    """
    root = data_root(data)
    games = []
    for split in splits:
        found = _games_of(root, split)
        if not found:
            present = sorted(item.name for item in root.iterdir() if item.is_dir())
            raise FileNotFoundError(
                f"find_games: split must hold games, got {split!r} with none below {str(root)!r} "
                f"(folders there: {present}); choose one of them or make games with generate_games(folder, ..)"
            )
        games += found
    return games


def _games_of(root: Path, split: str) -> list[Game]:
    games = []
    for path in (root / split).glob(f"*/*/{GAME_FILE}"):
        identifier = path.parent.relative_to(root).as_posix()
        task_type = path.parent.parent.name.partition("-")[0]
        if task_type not in TASK_TYPES or "movable" in identifier or "Sliced" in identifier:
            continue
        if _solvable(path):
            games.append(Game(identifier, task_type, split, path))
    return sorted(games, key=lambda game: game.id)


def _solvable(path: Path) -> bool:
    """The flag that ALFWorld's maintainers left in each file; read as text because a split holds hundreds of MB."""
    text = path.read_text(encoding="utf-8")
    position = text.rfind('"solvable"')
    return position >= 0 and text[position + len('"solvable"') :].lstrip(" :").startswith("true")


def game_path(root: Path, task_id: str) -> Path:
    """The game file of a task id.

    Raises:
        KeyError: there is no such game below `root`.
    """
    path = (root / task_id / GAME_FILE).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise KeyError(
            f"game_path: task_id must name a game below {str(root)!r}, got {task_id!r}; use an id from tasks(split)"
        )
    return path


def read_game(path: Path) -> dict[str, Any]:
    """The content of a game file: ``pddl_domain``, ``pddl_problem``, ``grammar``, ``walkthrough``, ``solvable``."""
    with path.open(encoding="utf-8") as stream:
        return json.load(stream)
