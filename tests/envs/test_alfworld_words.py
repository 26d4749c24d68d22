"""ALFWorld without an engine: the parser, the prompt, skills, hints, names and the messages for missing things."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.envs import HistoryEntry, Observation, Task
from turncredit.envs.alfworld import (
    TASK_TYPES,
    AlfWorldEnv,
    AlfWorldSuite,
    Hint,
    alfworld_messages,
    data_root,
    find_games,
    hint_from_walkthrough,
    parse_response,
    skill_bank,
    skills_for,
    skills_text,
    task_text,
    task_type_from_text,
)
from turncredit.envs.alfworld.names import entity_names

T, A = "<think>why</think>", "<action>look</action>"
MALFORMED = [
    # response, action handed on, valid
    ("", "", False),
    ("   \n", "", False),
    ("look", "", False),
    (A, "look", False),
    (T, "", False),
    (T + "look", "", False),
    (T + "<action>look", "", False),
    (T + "look</action>", "", False),
    (T + "<action></action>", "", False),
    (T + "<action>  \n </action>", "", False),
    (A + T, "look", False),
    ("<think>why" + A, "look", False),
    ("why</think>" + A, "look", False),
    ("<think>a<action>look</action></think>", "look", False),
    ("<thinking>why</thinking>" + A, "look", False),
    (T + "<actions>look</actions>", "", False),
    (T + "</action>look<action>", "", False),
    (T + "< action >look</ action >", "", False),
    (T + "&lt;action&gt;look&lt;/action&gt;", "", False),
    (T + "<act>look</act>", "", False),
    ("\x00\ud800" + A, "look", False),
    (None, "", False),
    # odd, yet well-formed
    (T + A, "look", True),
    (T + A + "<action>inventory</action>", "look", True),
    (T + "<action>\n Go To Shelf 1 \n</action> and more", "go to shelf 1", True),
    ("<think></think>" + A, "look", True),
    ("<THINK>why</THINK><Action>LOOK</Action>", "look", True),
    ("Well. " + T + " so: " + A, "look", True),
    (T + "<action>fly to the moon</action>", "fly to the moon", True),
]


@pytest.mark.parametrize(("response", "action", "valid"), MALFORMED)
def test_parser_on_malformed_and_odd_responses(response, action, valid):
    parsed = parse_response(response)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_parser_spans_are_the_characters_between_the_tags():
    response = "<think> a mug?\n</think>\n<action> Look </action>"
    parsed = parse_response(response)
    assert parsed.thinking == "a mug?"
    assert parsed.thinking_span == (7, 15)
    assert parsed.action_span == (32, 38)
    assert response[slice(*parsed.thinking_span)] == " a mug?\n"
    assert response[slice(*parsed.action_span)] == " Look "


@given(st.lists(st.sampled_from(["<think>", "</think>", "<action>", "</action>", "look", " ", "\n", "<", ">"])))
def test_parser_never_raises_and_valid_means_both_parts_in_order(parts):
    response = "".join(parts)
    parsed = parse_response(response)
    if parsed.valid:
        assert parsed.action
        assert parsed.thinking_span is not None
        assert parsed.action_span is not None
        assert parsed.thinking_span[1] < parsed.action_span[0]
    if parsed.action_span is not None:
        assert response[slice(*parsed.action_span)].strip().lower() == parsed.action


def test_first_prompt_shows_the_observation_once_and_later_ones_the_last_turns():
    first = Observation("A room. Your task is to: put a mug in shelf.", ("go to shelf 1", "look"))
    [message] = alfworld_messages("put a mug in shelf", [], first)
    assert message["role"] == "user"
    assert message["content"].count("put a mug in shelf") == 1
    assert "- go to shelf 1\n- look" in message["content"]
    assert "<think>" in message["content"]
    assert "<action>" in message["content"]
    history = [HistoryEntry(f"saw {n}", f"did {n}") for n in range(1, 5)]
    [message] = alfworld_messages("put a mug in shelf", history, Observation("now", ("look",)))
    text = message["content"]
    assert "Task: put a mug in shelf" in text
    assert "You have taken 4 steps" in text
    assert "[Step 3] Observation: saw 3\n[Step 3] Action: did 3\n[Step 4] Observation: saw 4" in text
    assert "saw 2" not in text
    assert "Step 5. Current observation:\nnow" in text
    [message] = alfworld_messages("t", history[:1], Observation("now", ("look",)), history_length=0)
    assert "saw 1" not in message["content"]
    [message] = alfworld_messages("t", [HistoryEntry("saw 1", "")], Observation("now", ("look",)))
    assert "You have taken 1 step so far" in message["content"]
    assert "[Step 1] Action: (none)" in message["content"]


@pytest.mark.parametrize(
    ("task", "label"),
    [
        ("put a mug in shelf", "Pick"),
        ("put some watch on safe.", "Pick"),
        ("look at bowl under the desklamp", "Look"),
        ("examine the book with the floorlamp", "Look"),
        ("put a clean cloth in drawer", "Clean"),
        ("clean some apple and put it in fridge", "Clean"),
        ("put a hot egg in garbagecan", "Heat"),
        ("heat some mug and put it in coffeemachine", "Heat"),
        ("put a cool pan in stoveburner", "Cool"),
        ("cool some lettuce and put it in countertop", "Cool"),
        ("put two pillow in sofa", "Pick2"),
        ("find two pen and put them in desk", "Pick2"),
    ],
)
def test_task_type_by_keyword(task, label):
    assert task_type_from_text(task) == label


def test_a_heat_task_gets_the_heat_skills_by_name_label_and_wording():
    expected = [*skill_bank()["general"], *skill_bank()["Heat"]]
    assert list(skills_for("pick_heat_then_place_in_recep")) == expected
    assert list(skills_for("Heat")) == expected
    assert list(skills_for(None, "put a hot egg in garbagecan")) == expected
    assert list(skills_for("of a new kind", "heat some egg and put it in sinkbasin")) == expected
    text = skills_text("Heat")
    assert "microwave" in text
    assert "sinkbasin" not in text


def test_every_type_has_skills_of_its_own_and_all_are_short():
    bank = skill_bank()
    assert set(bank) == {"general", *TASK_TYPES.values()}
    texts = [skill.text for skills in bank.values() for skill in skills]
    assert len(set(texts)) == len(texts)
    assert all(len(text) <= 160 for text in texts)
    assert all(len(bank[label]) >= 2 for label in bank)


def test_hints_by_hand():
    heat = ["go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to microwave 1",
            "heat apple 1 with microwave 1", "go to countertop 2", "move apple 1 to countertop 2"]  # fmt: skip
    hint = hint_from_walkthrough(heat, "pick_heat_then_place_in_recep")
    assert hint == Hint((("apple 1", "fridge 1"),), ("heat", "microwave 1"), None, "countertop 2")
    assert hint.text == "the apple 1 is in fridge 1; heat it with microwave 1; move it to countertop 2"
    light = ["go to desk 1", "take bowl 1 from desk 1", "go to dresser 1", "use desklamp 1"]
    hint = hint_from_walkthrough(light, "look_at_obj_in_light")
    assert hint.text == "the bowl 1 is on desk 1; take it to dresser 1 and use desklamp 1"
    two = ["take pen 1 from bed 1", "move pen 1 to desk 1", "take pen 2 from drawer 1", "move pen 2 to desk 1"]
    hint = hint_from_walkthrough(two, "pick_two_obj_and_place")
    assert hint.text == "the pen 1 is on bed 1; the pen 2 is in drawer 1; move both to desk 1"
    hint = hint_from_walkthrough(two[:2], "pick_two_obj_and_place")
    assert hint.text == "the pen 1 is on bed 1; move it to desk 1; 1 more is there already"
    detour = [*two[:2], "take cd 1 from drawer 1", "move cd 1 to bed 1", *two[2:]]
    assert hint_from_walkthrough(detour, "pick_two_obj_and_place").things == (("pen 1", "bed 1"), ("pen 2", "drawer 1"))
    with pytest.raises(ValueError, match=r"walkthrough must take something, got \['look'\]"):
        hint_from_walkthrough(["look"], "pick_and_place_simple")


def test_entity_names_count_down_in_the_order_of_identifiers():
    names = entity_names(["sink_bar_1_bar_sinkbasin", "sink_bar_1", "mug_bar_2", "mug_bar_1", "mug_bar_3", "agent1"])
    assert names == {
        "agent1": "agent1 ",
        "mug_bar_1": "mug 3",
        "mug_bar_2": "mug 2",
        "mug_bar_3": "mug 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_missing_data_is_reported_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for make in (data_root, AlfWorldEnv, AlfWorldSuite):
        with pytest.raises(FileNotFoundError, match=r"ALFWORLD_DATA is not set; .*generate_games"):
            make()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"ALFWORLD_DATA must be a folder, got .*nowhere"):
        data_root()
    with pytest.raises(FileNotFoundError, match=r"data must be a folder, got .*elsewhere"):
        data_root(tmp_path / "elsewhere")
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert data_root() == (tmp_path / "json_2.1.1").resolve()
    with pytest.raises(FileNotFoundError, match=r"split must hold games, got 'train' .*\(folders there: \['train'\]\)"):
        find_games(splits=["train"])
    with pytest.raises(FileNotFoundError, match="got 'valid_seen'"):
        find_games(splits=["valid_seen"])


def test_unsolvable_sliced_and_movable_games_are_left_out(tmp_path):
    for name, solvable in (
        ("pick_and_place_simple-Mug-None-Desk-301", "true"),
        ("pick_and_place_simple-Pen-None-Desk-302", "false"),
        ("pick_and_place_simple-AppleSliced-None-Fridge-3", "true"),
        ("pick_and_place_with_movable_recep-Pen-Mug-Desk-303", "true"),
    ):
        folder = tmp_path / "train" / name / "trial_1"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(f'{{"pddl_problem": "", "solvable": {solvable}}}')
    [game] = find_games(tmp_path, ["train"])
    assert game.id == "train/pick_and_place_simple-Mug-None-Desk-301/trial_1"
    assert game.task == Task(game.id, "Pick", "train")
    assert AlfWorldSuite(tmp_path).tasks("train") == (game.task,)


def test_suite_refuses_bad_arguments(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"AlfWorldSuite: privileged must be .* got 'all'"):
        AlfWorldSuite(tmp_path, privileged="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_turns at least 1, got 2 and 0"):
        AlfWorldSuite(tmp_path, max_turns=0)
    with pytest.raises(ValueError, match=r"tasks: split must be one of \['train'\], got 'test'"):
        AlfWorldSuite(tmp_path).tasks("test")
    with pytest.raises(ValueError, match='anchor must be "observation" or "situation"'):
        AlfWorldEnv(tmp_path, anchor="state")  # type: ignore[arg-type]


def test_task_text_is_what_follows_the_marker():
    assert task_text("Room.\n\nYour task is to: heat some egg and put it in fridge.") == (
        "heat some egg and put it in fridge"
    )


def test_importing_the_package_loads_no_engine_and_no_torch():
    source = (
        "import sys; import turncredit.envs.alfworld; "
        "print([m for m in ('torch', 'textworld', 'alfworld', 'numpy', 'fast_downward') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_without_the_engine_the_message_says_how_to_install_it(tmp_path):
    folder = tmp_path / "train" / "pick_and_place_simple-Mug-None-Desk-301" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text('{"solvable": true}')
    source = f"""
import sys
import importlib.util
sys.modules["textworld"] = None
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "alfworld" else real(name, *rest)
from turncredit.envs.alfworld import AlfWorldEnv, generate_games
for call in (
    lambda: AlfWorldEnv({str(tmp_path)!r}).reset("train/pick_and_place_simple-Mug-None-Desk-301/trial_1"),
    lambda: generate_games({str(tmp_path / "new")!r}, 1),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all('pip install "turncredit[alfworld]"' in line for line in lines)
