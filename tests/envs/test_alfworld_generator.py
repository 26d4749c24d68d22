"""Generated ALFWorld games: the same everywhere, all different, winnable, and as large as asked."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from turncredit.envs.alfworld import (
    TASK_TYPES,
    AlfWorldEnv,
    AlfWorldSuite,
    find_games,
    generate_games,
    generator,
    hint_from_walkthrough,
    read_game,
)
from turncredit.envs.alfworld.compact import generate_once
from turncredit.envs.alfworld.generator import generate_splits

if importlib.util.find_spec("textworld") is None or importlib.util.find_spec("alfworld") is None:
    pytest.skip('the engine is not installed: pip install "turncredit[alfworld]"', allow_module_level=True)


def digest(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def initial_facts(path: Path) -> str:
    return read_game(path)["pddl_problem"].partition("(:goal")[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with 12 train and 6 eval games of small houses."""
    folder = tmp_path_factory.mktemp("small")
    generate_games(folder, 12, seed=3)
    generate_games(folder, 6, seed=3, split="eval")
    return folder


def test_the_same_files_from_other_processes_with_another_hash_seed(small, tmp_path):
    source = """if True:
        import sys
        from turncredit.envs.alfworld import generate_games
        games = generate_games(sys.argv[1], 12, seed=3, num_workers=2)
        print(*(game.task_type for game in games))
        assert all(game.path.is_file() for game in games)
    """
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path)],
        check=True, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert done.stdout.split() == list(TASK_TYPES) * 2
    here = {name: value for name, value in digest(small).items() if "/train/" in name}
    assert digest(tmp_path) == here
    assert len(here) == 3 * 12
    assert not list(tmp_path.glob("json_2.1.1/.new-*"))


def test_every_game_is_won_by_its_walkthrough_and_by_its_hint(small):
    suite = AlfWorldSuite(small)
    assert {split: len(suite.tasks(split)) for split in ("train", "eval")} == {"train": 12, "eval": 6}
    env = suite.make_env()()
    for task in (*suite.tasks("train"), *suite.tasks("eval")):
        env.reset(task.id)
        results = [env.step(command) for command in suite.walkthrough(task)]
        assert all(result.valid for result in results), task.id
        assert [result.success for result in results] == [False] * (len(results) - 1) + [True], task.id
        assert follow(env, task.id, suite.hint(task)), task.id


def follow(env, task_id, hint) -> bool:
    """Play what the hint says, opening what is closed on the way."""
    observation, success = env.reset(task_id), False

    def do(command):
        nonlocal observation, success
        result = env.step(command)
        assert result.valid, (task_id, hint.text, command)
        observation, success = result.observation, result.success

    def go(place):
        for command in (f"go to {place}", f"open {place}"):
            if command in observation.admissible_actions:
                do(command)

    for thing, place in hint.things:
        go(place)
        do(f"take {thing} from {place}")
        if hint.change:
            go(hint.change[1])
            do(f"{hint.change[0]} {thing} with {hint.change[1]}")
        if hint.lamp:
            go(hint.lamp[1])
            do(f"use {hint.lamp[0]}")
        if hint.destination:
            go(hint.destination)
            do(f"move {thing} to {hint.destination}")
    return success


def test_no_game_comes_twice_and_eval_differs_from_train(small, tmp_path):
    def signatures(folder, split):
        paths = folder.glob(f"json_2.1.1/{split}/*/*/traj_data.json")
        return [json.loads(path.read_text())["generated"]["signature"] for path in paths]

    train, evaluation = signatures(small, "train"), signatures(small, "eval")
    assert (len(train), len(evaluation)) == (12, 6)
    assert len({*train, *evaluation}) == 18
    generate_games(tmp_path, 12, seed=3, exclude=[small], verify=False)
    assert not set(signatures(tmp_path, "train")) & {*train, *evaluation}
    more = generate_games(tmp_path, 6, seed=4, verify=False)
    assert len(find_games(tmp_path, ["train"])) == 18
    assert len(more) == 6


def test_the_signature_is_the_task_and_what_lies_where(small):
    """Two files have equal signatures exactly when task and contents agree, recomputed here from the PDDL text."""
    seen = {}
    for path in small.glob("json_2.1.1/*/*/*/traj_data.json"):
        data = json.loads(path.read_text())
        problem = initial_facts(path.with_name("game.tw-pddl"))
        kinds = dict(re.findall(r"\((?:objectType|receptacleType) (\S+) (\w+)Type\)", problem))
        inside = Counter((kinds[thing], place) for thing, place in re.findall(r"\(inReceptacle (\S+) (\S+)\)", problem))
        shelves = sorted(
            (kinds[place], sorted((kind, n) for (kind, where), n in inside.items() if where == place))
            for place in re.findall(r"\(receptacleAtLocation (\S+) ", problem)
        )
        situation = json.dumps([data["task_type"], data["pddl_params"], shelves])
        assert seen.setdefault(data["generated"]["signature"], situation) == situation
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize(
    ("size", "receptacles", "things"), [("small", (6, 8), 8), ("medium", (11, 15), 18), ("large", (20, 28), 34)]
)
def test_houses_are_as_large_as_asked(tmp_path, size, receptacles, things):
    games = generate_games(tmp_path, 6 if size == "small" else 2, seed=0, house_size=size)
    for game in games:
        content = read_game(game.path)
        problem = initial_facts(game.path)
        furniture = re.findall(r"\(receptacleAtLocation ", problem)
        assert receptacles[0] <= len(furniture) <= receptacles[1], game.id
        assert 1 <= len(re.findall(r"\(inReceptacle ", problem)) <= things
        start = AlfWorldEnv(tmp_path).reset(game.id)
        assert sum(action.startswith("go to ") for action in start.admissible_actions) == len(furniture)
        goal = start.info["task"]
        assert goal in content["grammar"]
        assert game.path.parent.parent.name.split("-")[1].lower() in goal
        assert hint_from_walkthrough(content["walkthrough"], game.task_type).things


def test_a_saved_translation_gives_the_same_episode_and_a_damaged_one_is_ignored(small):
    from turncredit.envs.alfworld import translation

    game = find_games(small, ["train"])[4]
    saved = game.path.with_name(translation.TRANSLATION_FILE)
    good = saved.read_bytes()

    def transcript():
        translation._KNOWN.clear()
        env = AlfWorldEnv(small)
        return [env.reset(game.id), *(env.step(command) for command in read_game(game.path)["walkthrough"])]

    expected = transcript()
    content = json.loads(gzip.decompress(good))
    assert expected[-1].success
    for damaged in (
        None,
        b"",
        good[: len(good) // 2],
        b"not gzip",
        gzip.compress(b"[]"),
        gzip.compress(json.dumps({**content, "key": "of another game", "sas": ""}).encode()),
    ):
        saved.unlink() if damaged is None else saved.write_bytes(damaged)
        assert transcript() == expected
    saved.write_bytes(good)


def test_a_game_that_its_walkthrough_does_not_win_is_recognised(small):
    from turncredit.envs.alfworld.generator import is_won

    game = read_game(find_games(small, ["train"])[0].path)
    assert is_won(game)
    assert not is_won({**game, "walkthrough": game["walkthrough"][:-1]})
    assert not is_won({**game, "walkthrough": ["look", "go to nowhere 1"]})
    assert not is_won({**game, "walkthrough": []})


def test_one_task_type_and_bad_arguments(tmp_path):
    games = generate_games(tmp_path, 3, seed=0, task_types=["pick_heat_then_place_in_recep"], verify=False)
    assert {game.task.type for game in games} == {"Heat"}
    with pytest.raises(ValueError, match="seed must be new to split 'train', got 0"):
        generate_games(tmp_path, 3, seed=0, verify=False)
    with pytest.raises(ValueError, match="num_games must be at least 1"):
        generate_games(tmp_path, 0)
    with pytest.raises(ValueError, match=r"house_size must be one of .*, got 'huge'"):
        generate_games(tmp_path, 1, house_size="huge")
    with pytest.raises(ValueError, match=r"task_types must be among .*, got \['cook'\]"):
        generate_games(tmp_path, 1, task_types=["cook"])
    with pytest.raises(ValueError, match="task_types must be among"):
        generate_games(tmp_path, 1, task_types=[])


def test_a_split_grows_and_what_a_kill_left_out_comes_first(tmp_path):
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    names = [game.path.parent.name for game in generate_splits(whole, {"train": 3})]
    generate_splits(grown, {"train": 2})
    assert [game.path.parent.name for game in generate_splits(grown, {"train": 3})] == names[2:]
    [first] = (grown / "json_2.1.1" / "train").glob(f"*/{names[0]}")
    shutil.rmtree(first)
    assert [game.path.parent.name for game in generate_splits(grown, {"train": 2})] == []
    assert [game.path.parent.name for game in generate_splits(grown, {"train": 3})] == names[:1]


def test_a_folder_that_lacks_nothing_is_only_read(small, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError("read-only")

    monkeypatch.setattr(generator, "FileLock", refuse)
    assert generate_splits(small, {"train": 12, "eval": 2}) == []


def test_a_smaller_panel_of_a_folder_that_has_grown_is_balanced(small):
    assert generate_once(small, {"train": 12, "eval": 6}) == {}
    limits = generate_once(small, {"train": 12, "eval": 3})
    assert limits == {"eval": 3}
    assert len({task.type for task in AlfWorldSuite(small, limits=limits).tasks("eval")}) == 3


def test_generating_does_not_touch_the_environment_or_the_home_folder(tmp_path):
    source = (
        "import os, sys; from turncredit.envs.alfworld import generate_games; "
        "generate_games(sys.argv[1], 1, verify=False); print(os.environ.get('ALFWORLD_DATA'), os.listdir(sys.argv[2]))"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "games"), str(home)],
        check=True, capture_output=True, text=True, timeout=120, env={**environment, "HOME": str(home)},
    )  # fmt: skip
    assert done.stdout == "None []\n"
