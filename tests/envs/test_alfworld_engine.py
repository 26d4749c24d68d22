"""ALFWorld on the engine: transcripts beside stock TextWorld's, real games by their walkthroughs, resets, manners."""

from __future__ import annotations

import importlib.util
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from turncredit.envs import VectorEnv
from turncredit.envs.alfworld import AlfWorldEnv, AlfWorldSuite, find_games, read_game

if importlib.util.find_spec("textworld") is None or importlib.util.find_spec("alfworld") is None:
    pytest.skip('the engine is not installed: pip install "turncredit[alfworld]"', allow_module_level=True)


@pytest.fixture(scope="module")
def official(shared_dir, tmp_path_factory):
    """The official validation games, unpacked."""
    folder = tmp_path_factory.mktemp("alfworld")
    script = shared_dir / "alfworld" / "unpack.py"
    if not script.is_file():
        pytest.skip("the packed ALFWorld games (../shared/alfworld) are not here")
    subprocess.run(
        [sys.executable, str(script), str(folder), "valid_seen", "valid_unseen"], check=True, capture_output=True
    )
    return folder


def one_of_each_type(folder, split="valid_seen", seed=0):
    games = find_games(folder, [split])
    random.Random(seed).shuffle(games)
    return list({game.task_type: game for game in games}.values())


def test_transcripts_equal_stock_textworld(official):
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld.envs import PddlEnv

    from turncredit.envs.alfworld.engine import FastPddlEnv

    infos = textworld.EnvInfos(won=True, admissible_commands=True, moves=True, extras=["walkthrough"])
    stock, fast = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False)), FastPddlEnv(infos)
    compared = 0
    for game in one_of_each_type(official)[:2]:
        rng = random.Random(game.id)
        odd = ["go to nowhere 1", "LOOK", "look.", " look ", "help", "inventory", ""]
        scripts = [
            [*odd, *read_game(game.path)["walkthrough"], "look"],
            [None] * 8,
        ]
        stock.load(str(game.path))
        fast.load(str(game.path))
        for script in scripts:
            pairs = [(stock.reset(), fast.reset())]
            for command in script:
                chosen = rng.choice(pairs[-1][0]["admissible_commands"]) if command is None else command
                (a, *a_rest), (b, *b_rest) = stock.step(chosen), fast.step(chosen)
                assert a_rest == b_rest, (game.id, chosen)
                pairs.append((a, b))
            for a, b in pairs:
                assert a.feedback == b.feedback
                for key in ("admissible_commands", "won", "lost", "moves", "extra.walkthrough"):
                    assert a[key] == b[key], (game.id, key)
                compared += 1
    assert compared > 40


def test_planner_commands_equal_stock_textworld_and_win(official):
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    from turncredit.envs.alfworld.engine import FastPddlEnv

    infos = textworld.EnvInfos(won=True, admissible_commands=True, policy_commands=True)
    game = one_of_each_type(official)[0]
    stock, fast = AlfredDemangler(PddlEnv(infos), shuffle=False), FastPddlEnv(infos)
    stock.load(str(game.path))
    fast.load(str(game.path))
    a, b = stock.reset(), fast.reset()
    for _ in range(4):
        assert a["policy_commands"] == b["policy_commands"]
        command = a["policy_commands"][0]
        (a, *_), (b, *_) = stock.step(command), fast.step(command)
    state = fast.reset()
    for command in list(state["policy_commands"]):
        state, _, _ = fast.step(command)
    assert state["won"]


def test_loading_leaves_the_process_as_it_was(official):
    env = AlfWorldEnv(official)
    argv, stdout, stderr = sys.argv, sys.stdout, sys.stderr
    env.reset(find_games(official, ["valid_seen"])[5].id)
    assert sys.argv is argv
    assert sys.stdout is stdout
    assert sys.stderr is stderr


def test_a_reset_does_not_depend_on_what_was_played_before(official):
    games = one_of_each_type(official)[:3]
    fresh = {}
    for game in games:
        env = AlfWorldEnv(official)
        fresh[game.id] = _transcript(env, game)
        env.close()
    env = AlfWorldEnv(official)
    rng = random.Random(0)
    for _ in range(6):
        game = rng.choice(games)
        observation = env.reset(game.id)
        for _ in range(rng.randrange(4)):
            observation = env.step(rng.choice(observation.admissible_actions)).observation
        other = rng.choice(games)
        assert _transcript(env, other) == fresh[other.id]


def _transcript(env, game):
    return [env.reset(game.id), *(env.step(command) for command in read_game(game.path)["walkthrough"])]


def test_two_environments_in_one_process_do_not_mix(official):
    first, second = one_of_each_type(official)[:2]
    a, b = AlfWorldEnv(official), AlfWorldEnv(official)
    alone = _transcript(a, first), _transcript(a, second)
    mixed = [a.reset(first.id)], [b.reset(second.id)]
    walks = read_game(first.path)["walkthrough"], read_game(second.path)["walkthrough"]
    for turn in range(max(map(len, walks))):
        for env, walk, record in zip((a, b), walks, mixed, strict=True):
            if turn < len(walk):
                record.append(env.step(walk[turn]))
    assert mixed == alone


def test_siblings_of_one_game_share_nothing_that_changes(official):
    game = one_of_each_type(official)[0]
    a, b = AlfWorldEnv(official), AlfWorldEnv(official)
    alone = _transcript(a, game)
    mixed, beginnings = [a.reset(game.id)], []
    for command in read_game(game.path)["walkthrough"]:
        beginnings.append(b.reset(game.id))  # b starts the same game again and again, and goes another way
        b.step(alone[0].admissible_actions[-1])
        mixed.append(a.step(command))
    assert mixed == alone
    assert beginnings == [alone[0]] * len(beginnings)
    assert _transcript(b, game) == alone


def test_the_planner_is_loaded_without_what_the_loader_does_not_read():
    from fast_downward import interface

    from turncredit.envs.alfworld.planner import load_planner, loadable

    whole = Path(interface.DOWNWARD_LIB_PATH).read_bytes()
    lean = loadable(whole)
    assert len(lean) <= len(whole)
    assert len(loadable(whole + b"debug" * 1000)) == len(lean)
    assert loadable(lean) == lean
    assert loadable(b"\xcf\xfa\xed\xfe" * 40) == b"\xcf\xfa\xed\xfe" * 40  # another system's library
    assert loadable(whole[:100]) == whole[:100]
    one, other = load_planner(), load_planner()
    assert one._handle != other._handle  # each its own planning task
    assert Path(interface.DOWNWARD_LIB_PATH).read_bytes() == whole


def test_malformed_actions_cost_a_turn_and_never_raise(official):
    game = one_of_each_type(official)[0]
    env = AlfWorldEnv(official)
    start = env.reset(game.id)
    assert start.text.startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert "Your task is to: " in start.text
    assert "help" not in start.admissible_actions
    assert list(start.admissible_actions) == sorted(start.admissible_actions)
    for action in (None, "", "  ", "fly", "Look", "look ", "look.", "help", "go to\nshelf 1", "\ud800", 7, "x" * 10**5):
        result = env.step(action)
        assert (result.valid, result.reward, result.done, result.success) == (False, 0.0, False, False)
        assert result.observation.text == "Nothing happens."
        assert result.observation.admissible_actions == start.admissible_actions
    result = env.step("inventory")
    assert (result.valid, result.observation.text) == (True, "You are not carrying anything.")
    assert result.observation.info["task_type"] == game.task.type
    assert f"Your task is to: {result.observation.info['task']}." in start.text
    pickle.loads(pickle.dumps(result))


def test_success_ends_the_episode_and_a_finished_one_cannot_go_on(official):
    game = one_of_each_type(official)[1]
    env = AlfWorldEnv(official)
    with pytest.raises(ValueError, match=r"step: an episode must be running, got no episode; call reset\(task_id\)"):
        env.step("look")
    *before, last = _transcript(env, game)
    assert all((result.reward, result.done, result.success) == (0.0, False, False) for result in before[1:])
    assert (last.reward, last.done, last.success, last.valid) == (1.0, True, True, True)
    with pytest.raises(ValueError, match="an episode that is over"):
        env.step("look")
    with pytest.raises(KeyError, match="task_id must name a game below"):
        env.reset("valid_seen/none/none")
    with pytest.raises(KeyError, match="task_id must name a game"):
        env.reset("../../etc")
    env.close()
    env.close()


def test_the_situation_anchor_tells_more_states_apart_than_the_observation(official):
    game = one_of_each_type(official)[0]
    for anchor in ("observation", "situation"):
        env = AlfWorldEnv(official, anchor=anchor)
        start = env.reset(game.id)
        moved = env.step(start.admissible_actions[0]).observation
        here, there = env.step("inventory").observation, None
        env.reset(game.id)
        there = env.step("inventory").observation
        assert here.text == there.text
        assert (here.anchor == there.anchor) == (anchor == "observation")
        assert moved.anchor != start.anchor


def test_vector_runner_and_plain_environment_give_the_same_transcripts(official):
    games = one_of_each_type(official)[:4]
    env = AlfWorldEnv(official)
    plain = [_transcript(env, game) for game in games]
    suite = AlfWorldSuite(official)
    for num_workers in (0, 2):
        records = _play_all(suite, games, num_workers, len(games))
        assert records == plain


def _play_all(suite, games, num_workers, num_envs):
    records = {game.id: [] for game in games}
    walks = {game.id: iter(read_game(game.path)["walkthrough"]) for game in games}
    waiting, slots = list(games), {}
    with VectorEnv(suite.make_env(), num_envs, num_workers=num_workers) as envs:
        while waiting or slots:
            fresh = {slot: waiting.pop(0) for slot in range(num_envs) if slot not in slots and waiting}
            for slot, start in envs.reset({slot: game.id for slot, game in fresh.items()}).items():
                slots[slot] = fresh[slot].id
                records[slots[slot]].append(start)
            actions = {slot: next(walks[name], None) for slot, name in slots.items()}
            slots = {slot: name for slot, name in slots.items() if actions[slot] is not None}
            for slot, result in envs.step({slot: actions[slot] for slot in slots}).items():
                records[slots[slot]].append(result)
                if result.done:
                    del slots[slot]
    return [records[game.id] for game in games]


def test_official_suite_has_fixed_ordered_and_balanced_panels(official):
    suite = AlfWorldSuite(official, limits={"valid_seen": 12})
    panel = suite.tasks("valid_seen")
    assert [task.type for task in panel] == ["Look", "Pick", "Clean", "Cool", "Heat", "Pick2"] * 2
    assert panel == AlfWorldSuite(official, limits={"valid_seen": 12}).tasks("valid_seen")
    everything = suite.tasks("valid_unseen")
    assert [task.id for task in everything] == sorted(task.id for task in everything)
    assert (len(AlfWorldSuite(official).tasks("valid_seen")), len(everything)) == (140, 34)
    assert not {task.id for task in everything} & {task.id for task in AlfWorldSuite(official).tasks("valid_seen")}


def test_privileged_context_is_what_was_asked_for(official):
    texts = {}
    for kind in ("skills", "hint", "both", "none"):
        suite = AlfWorldSuite(official, privileged=kind)
        task = next(task for task in suite.tasks("valid_seen") if task.type == "Heat")
        texts[kind] = suite.privileged_context(task)
        assert suite.privileged_context(task) == texts[kind]
    assert texts["none"] is None
    assert texts["hint"].startswith("Hint for this house: the ")
    assert "heat it with microwave 1" in texts["hint"]
    assert "microwave" in texts["skills"]
    assert texts["both"] == f"{texts['hint']}\n\n{texts['skills']}"


@pytest.mark.slow
def test_every_official_validation_game_is_won_by_its_walkthrough(official):
    suite = AlfWorldSuite(official)
    games = find_games(official, ["valid_seen", "valid_unseen"])
    records = _play_all(suite, games, num_workers=2, num_envs=8)
    assert len(records) == 174
    for game, (start, *results) in zip(games, records, strict=True):
        assert "Your task is to" in start.text
        assert all(result.valid for result in results), game.id
        assert [result.success for result in results] == [False] * (len(results) - 1) + [True], game.id
        assert results[-1].reward == 1.0
        assert results[-1].done


@pytest.mark.slow
def test_following_the_hint_wins_official_games(official):
    suite = AlfWorldSuite(official, limits={"valid_seen": 12})
    env = suite.make_env()()
    tasks = [*suite.tasks("valid_seen"), *suite.tasks("valid_unseen")]
    assert len(tasks) == 46
    assert [task.id for task in tasks if not follow_hint(env, task, suite.hint(task))] == []


def follow_hint(env, task, hint) -> bool:
    """Play only what the hint says, opening what is closed on the way."""
    env.reset(task.id)
    result = None

    def do(command):
        nonlocal result
        result = env.step(command)
        assert result.valid, (task.id, hint.text, command)

    def go(place):
        if f"go to {place}" in env.step("look").observation.admissible_actions:
            do(f"go to {place}")
        if f"open {place}" in env.step("look").observation.admissible_actions:
            do(f"open {place}")

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
    return bool(result and result.success)
