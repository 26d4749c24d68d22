"""Traces of ALFWorld before December 2024 replay as they went; the hint speaks the engine's present words."""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import re
import runpy
from pathlib import Path

import pytest

from turncredit.envs.alfworld import Hint, modern_action, modern_observation

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("textworld") is None or importlib.util.find_spec("alfworld") is None,
    reason='the engine is not installed: pip install "turncredit[alfworld]"',
)


@pytest.mark.parametrize(
    ("old", "present"),
    [
        ("put mug 1 in/on desk 1", "move mug 1 to desk 1"),
        ("put soapbar 12 in/on bathtubbasin 1", "move soapbar 12 to bathtubbasin 1"),
        ("move mug 1 to desk 1", "move mug 1 to desk 1"),
        ("go to desk 1", "go to desk 1"),
        # the engine of that time took none of these either
        ("put mug 1 in desk 1", "put mug 1 in desk 1"),
        ("put mug 1 in / on desk 1", "put mug 1 in / on desk 1"),
        ("Put mug 1 in/on desk 1", "Put mug 1 in/on desk 1"),
        ("I put mug 1 in/on desk 1", "I put mug 1 in/on desk 1"),
        ("put mug 1 in/on", "put mug 1 in/on"),
        ("", ""),
    ],
)
def test_old_commands(old, present):
    assert modern_action(old) == present


@pytest.mark.parametrize(
    ("old", "action", "present"),
    [
        ("The drawer 1 is closed.", "go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed."),
        ("The drawer 1 is closed.", "examine drawer 1", "The drawer 1 is closed."),
        ("The drawer 1 is closed.", "", "The drawer 1 is closed."),
        ("You arrive at loc 12. The drawer 1 is closed.", "", "You arrive at drawer 1. The drawer 1 is closed."),
        ("You arrive at loc -3. On the desk 2, you see a pen 1.", "go to desk 2",
         "You arrive at desk 2. On the desk 2, you see a pen 1."),
        ("On the desk 1, you see a pen 1.", "go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1."),
        ("The fridge 1 is open. In it, you see nothing.", "go to fridge 1",
         "You arrive at fridge 1. The fridge 1 is open. In it, you see nothing."),
        ("You arrive at desk 1. On the desk 1, you see a pen 1.", "go to desk 1",
         "You arrive at desk 1. On the desk 1, you see a pen 1."),
        ("You put the mug 1 in/on the desk 1.", "put mug 1 in/on desk 1", "You move the mug 1 to the desk 1."),
        ("You open the drawer 1. The drawer 1 is open. In it, you see nothing.", "open drawer 1",
         "You open the drawer 1. The drawer 1 is open. In it, you see nothing."),
        ("Nothing happens.", "go to desk 9", "Nothing happens."),
    ],
)  # fmt: skip
def test_old_observations(old, action, present):
    assert modern_observation(old, action) == present


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    from turncredit.envs.alfworld import generate_games

    folder = tmp_path_factory.mktemp("games")
    kinds = ["pick_heat_then_place_in_recep", "pick_two_obj_and_place"]
    generate_games(folder, 2, seed=5, split="eval", house_size="small", task_types=kinds, verify=False)
    return folder


def as_it_was(action: str) -> str:
    return re.sub(r"^move (.+) to (.+)$", r"put \1 in/on \2", action)


def as_it_read(observation: str, location: str) -> str:
    text = re.sub(r"^You move the (.+) to the (.+)\.$", r"You put the \1 in/on the \2.", observation)
    return re.sub(r"^You arrive at .+? \d+\. ", location, text)


@needs_engine
@pytest.mark.parametrize("location", ["", "You arrive at loc 7. "])
def test_an_old_trace_of_a_win_is_a_win_with_the_option_and_reads_the_same(games, location):
    from turncredit.envs.alfworld import AlfWorldSuite

    plain = AlfWorldSuite(games, splits=["eval"])
    translating = AlfWorldSuite(games, splits=["eval"], translate_old_actions=True)
    env, old_env = (pickle.loads(pickle.dumps(suite.make_env()))() for suite in (plain, translating))
    placed = 0
    for task in plain.tasks("eval"):
        env.reset(task.id)
        old_env.reset(task.id)
        for command in plain.walkthrough(task):
            told, old = env.step(command), as_it_was(command)
            result = old_env.step(old)
            placed += old != command
            assert result == told
            assert modern_observation(as_it_read(told.observation.text, location), old) == told.observation.text
        assert (result.done, result.success, result.reward) == (True, True, 1.0)
        # without the option the last command is none
        env.reset(task.id)
        for command in plain.walkthrough(task):
            lost = env.step(as_it_was(command))
        assert (lost.observation.text, lost.valid, lost.done) == ("Nothing happens.", False, False)
    assert placed >= 3
    env.close()
    old_env.close()


@needs_engine
def test_every_verb_of_a_hint_is_one_the_engine_knows(games):
    from turncredit.envs.alfworld import AlfWorldSuite

    suite = AlfWorldSuite(games, splits=["eval"], privileged="hint")
    for task in suite.tasks("eval"):
        context, commands = suite.privileged_context(task), " ; ".join(suite.walkthrough(task))
        assert "in/on" not in context
        moved = re.search(r"move (?:it|both) to (\w+ \d+)\.$", context)
        assert f"to {moved[1]}" in commands


@needs_engine
def test_the_suite_takes_other_words_for_a_hint_and_the_shipped_policy_keeps_its_own(games):
    from turncredit.envs.alfworld import AlfWorldSuite
    from turncredit.envs.alfworld.compact import trained_hint

    hint = Hint((("apple 1", "fridge 1"),), ("heat", "microwave 1"), destination="countertop 2")
    assert hint.text == "the apple 1 is in fridge 1; heat it with microwave 1; move it to countertop 2"
    assert trained_hint(hint) == "the apple 1 is in fridge 1; heat it with microwave 1; put it in/on countertop 2"
    both = Hint((("pen 1", "bed 1"), ("pen 2", "drawer 1")), destination="desk 1", already_there=1)
    assert trained_hint(both).endswith("; put both in/on desk 1; 1 more is there already")
    lamp = Hint((("pen 1", "bed 1"),), lamp=("desklamp 1", "desk 1"))
    assert trained_hint(lamp) == lamp.text
    suite = AlfWorldSuite(games, splits=["eval"], privileged="hint", build_hint=trained_hint)
    for task in suite.tasks("eval"):
        assert re.search(r"^Hint for this house: .*; put (it|both) in/on \w+ \d+\.$", suite.privileged_context(task))


@needs_engine
def test_the_embedded_examples_keep_the_words_their_policy_was_trained_on(games):
    script = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "train_alfworld.py"))
    for embedded, word in ((True, " in/on "), (False, "move ")):
        args = argparse.Namespace(
            data=str(games), eval_split="eval", num_eval_games=None, max_turns=14, embedded=embedded, privileged="hint"
        )
        suite = script["make_suite"](args)
        assert word in suite.privileged_context(suite.tasks("eval")[0])
