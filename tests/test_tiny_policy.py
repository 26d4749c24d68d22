"""The embedded default's policy: prompts kept from observations, tokenizer, scripted player, training, checkpoint."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from embedded.demonstrations import Lesson, demonstrate
from embedded.imitation import build_model, imitate, imitation_loss, orthogonalize
from embedded.tokenizer import build_tokenizer

from turncredit.envs import HistoryEntry, Observation, Task
from turncredit.envs.alfworld.compact import (
    compact_messages,
    compact_prompt,
    compact_suite,
    compact_vocabulary,
    keep_notes,
    read_task,
)
from turncredit.envs.alfworld.player import AlfWorldHabits, Goal, next_move, read_goal, read_hint, respond

CHECKPOINT = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
ROOM = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "a cabinet 2, a cabinet 1, a fridge 1, and a shelf 1.\n\nYour task is to: put a cool mug in cabinet."
)
EPISODE = [
    ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a cup 1, and a mug 2."),
    ("take mug 2 from shelf 1", "You pick up the mug 2 from the shelf 1."),
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("cool mug 2 with fridge 1", "You cool the mug 2 using the fridge 1."),
    ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed."),
    ("open cabinet 1", "You open the cabinet 1. The cabinet 1 is open. In it, you see nothing."),
]
STILL = AlfWorldHabits(0, 0, 0, 0, 0, 0, 0, 0)


def episode(turns: int) -> tuple[list[HistoryEntry], str]:
    """The history and the current observation after so many turns of EPISODE."""
    seen = [ROOM] + [observation for _, observation in EPISODE]
    return [HistoryEntry(seen[i], EPISODE[i][0]) for i in range(turns)], seen[turns]


def test_notebook_follows_the_observations_by_hand():
    notes = keep_notes(ROOM, [observation for _, observation in EPISODE])
    assert notes.task == "put a cool mug in cabinet"
    assert notes.places == ("cabinet 2", "cabinet 1", "fridge 1", "shelf 1")
    assert notes.searched == ["shelf 1", "cabinet 1"]
    assert notes.unsearched == ["cabinet 2", "fridge 1"]
    assert notes.seen == {"cup 1": "shelf 1"}
    assert (notes.at, notes.holding, notes.states) == ("cabinet 1", "mug 2", {"mug 2": "cool"})


def test_a_moved_thing_is_seen_where_it_was_put_and_a_missing_one_is_forgotten():
    notes = keep_notes(ROOM, [EPISODE[0][1], EPISODE[1][1], "You move the mug 2 to the fridge 1."])
    assert notes.holding is None
    assert notes.relevant == {"mug 2": "fridge 1"}
    notes.read("The fridge 1 is open. In it, you see an egg 1.")
    assert notes.relevant == {}


def test_compact_prompt_word_for_word():
    history, observation = episode(4)
    assert compact_prompt(history, observation).split("\n") == [
        "task put a cool mug in cabinet",
        "left cabinet 2 cabinet 1 fridge 1",
        "searched shelf 1",
        "seen",
        "at fridge 1",
        "holding cool mug 2",
        "last go to fridge 1 then cool mug 2 with fridge 1",
        "now cool mug 2 using fridge 1",
    ]


def test_prompt_shows_nothing_that_was_not_observed():
    first = compact_prompt([], ROOM)
    assert "mug 2" not in first
    assert "seen\n" in first
    history, observation = episode(1)
    assert "seen mug 2 in shelf 1" in compact_prompt(history, observation)


def test_an_action_that_could_not_be_parsed_is_shown_as_nothing():
    text = compact_prompt([HistoryEntry(ROOM, "")], "Nothing happens.")
    assert "last nothing" in text
    assert "now nothing happens" in text


def test_compact_messages_is_one_user_message():
    messages = compact_messages(Task("t", "Cool"), [], Observation(ROOM))
    assert [message["role"] for message in messages] == ["user"]


def test_read_task_names_argument_and_fix():
    with pytest.raises(ValueError, match="read_task: observation must hold 'Your task is to"):
        read_task("Nothing happens.")


@pytest.mark.parametrize(
    ("task", "goal"),
    [
        ("put some mug on shelf", Goal("mug", "shelf", None, False, 1)),
        ("look at pen under the desklamp", Goal("pen", "desklamp", None, True, 1)),
        ("examine the pen with the desklamp", Goal("pen", "desklamp", None, True, 1)),
        ("clean some cloth and put it in toilet", Goal("cloth", "toilet", "clean", False, 1)),
        ("put a hot egg in fridge", Goal("egg", "fridge", "heat", False, 1)),
        ("find two book and put them in sofa", Goal("book", "sofa", None, False, 2)),
    ],
)
def test_read_goal_of_every_wording(task, goal):
    assert read_goal(task) == goal


def test_read_goal_needs_a_thing_and_a_place():
    with pytest.raises(ValueError, match="read_goal: task must name a thing and a place, got 'put it in'"):
        read_goal("put it in")


def test_read_hint_of_things_and_lamp():
    hint = "Hint for this house: the pen 1 is in drawer 2; take it to desk 1 and use desklamp 1."
    assert read_hint(hint) == {"pen 1": "drawer 2", "desklamp 1": "desk 1"}


def test_player_with_hint_goes_straight_and_without_habits_never_dawdles():
    hint = "Hint for this house: the mug 2 is on shelf 1; cool it with fridge 1; put it in/on cabinet 1."
    notes = keep_notes(ROOM, [])
    assert {next_move(notes, [], hint, random.Random(s), STILL).command for s in range(40)} == {"go to shelf 1"}
    commands = {next_move(notes, [], None, random.Random(s), STILL).command for s in range(40)}
    assert commands == {"go to cabinet 1", "go to cabinet 2", "go to fridge 1", "go to shelf 1"}


def test_habits_waste_the_share_of_turns_they_name():
    history, _ = episode(1)
    notes = keep_notes(ROOM, [EPISODE[0][1]])
    habits = AlfWorldHabits(examine_place=0.65, wander=0.0)
    wasted = [
        next_move(notes, ["go to shelf 1"], None, random.Random(seed), habits).command == "examine shelf 1"
        for seed in range(2000)
    ]
    assert len(history) == 1
    assert abs(sum(wasted) / 2000 - 0.65) < 0.05


def test_player_does_the_task_in_order_by_hand():
    commands = []
    notes = keep_notes(ROOM, [EPISODE[0][1]])
    commands.append(next_move(notes, ["go to shelf 1"], None, random.Random(0), STILL).command)
    notes.read(EPISODE[1][1])
    commands.append(next_move(notes, ["take mug 2 from shelf 1"], None, random.Random(0), STILL).command)
    notes.read(EPISODE[2][1])
    commands.append(next_move(notes, ["go to fridge 1"], None, random.Random(0), STILL).command)
    assert commands == ["take mug 2 from shelf 1", "go to fridge 1", "cool mug 2 with fridge 1"]


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("alfworld")
    return build_tokenizer(**compact_vocabulary())


COMMANDS = [
    "go to cabinet 1",
    "take mug 2 from shelf 1",
    "move mug 2 to countertop 1",
    "open fridge 1",
    "close fridge 1",
    "examine mug 2",
    "clean cloth 1 with sinkbasin 1",
    "heat egg 1 with microwave 1",
    "cool egg 1 with fridge 1",
    "use desklamp 1",
    "inventory",
    "look",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_survive_the_tokenizer_exactly(tokenizer, command):
    ids = tokenizer.encode(command, add_special_tokens=False)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == command
    response = f"<think> search </think> <action> {command} </action>"
    ids = tokenizer.encode(response, add_special_tokens=False)
    assert tokenizer.decode(ids) == response
    assert tokenizer.decode(ids, skip_special_tokens=True) == response


def test_a_name_is_one_token_and_unknown_words_are_unknown(tokenizer):
    ids = tokenizer.encode("go to cabinet 1 zebra 9", add_special_tokens=False)
    assert len(ids) == 4
    assert ids[-1] == tokenizer.unk_token_id


def test_chat_template_and_generation_prompt(tokenizer):
    messages = [
        {"role": "system", "content": "look"},
        {"role": "user", "content": "go to\n\ncabinet 1"},
        {"role": "assistant", "content": "<think> search </think>"},
    ]
    prompt = tokenizer.apply_chat_template(messages[:2], tokenize=True, add_generation_prompt=True, return_dict=True)
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
    words = "<system> look <end> <user> go to cabinet 1 <end> <assistant>"
    assert tokenizer.decode(prompt["input_ids"]) == words
    assert tokenizer.decode(whole["input_ids"]) == f"{words} <think> search </think> <end>"


def test_build_tokenizer_refuses_spaces():
    with pytest.raises(ValueError, match="words must hold no spaces, got 'go to'"):
        build_tokenizer(["go to"], ["mug"])


def test_imitation_learns_a_copy_and_masks_padding(tokenizer):
    torch.manual_seed(0)
    model = build_model(tokenizer)
    rows = [
        (
            tokenizer.encode(f"seen {name}", add_special_tokens=False),
            tokenizer.encode(f"<think> search </think> {name}"),
        )
        for name in ("mug 1", "cup 1", "egg 1", "pan 1 pan 1")
    ]
    alone, _ = imitation_loss(model, rows[:1], 0.3)
    padded_rows = [rows[0], rows[3]]
    both, _ = imitation_loss(model, padded_rows, 0.0)
    singles = [imitation_loss(model, [row], 0.0)[1] for row in padded_rows]
    counts = [len(row[1]) for row in padded_rows]
    expected = sum(loss * count for loss, count in zip(singles, counts, strict=True)) / sum(counts)
    assert both.item() == pytest.approx(expected, abs=1e-5)
    imitate(model, rows * 60, batch_size=4)
    after, _ = imitation_loss(model, rows[:1], 0.3)
    assert after.item() < 0.5 * alone.item()


@pytest.fixture(scope="module")
def shipped():
    """The checkpoint in the tree, loaded as any user would."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32), AutoTokenizer.from_pretrained(
        CHECKPOINT
    )


def test_the_shipped_folder_loads_and_knows_the_vocabulary_of_small_houses(shipped, tokenizer):
    model, loaded = shipped
    assert sum(parameter.numel() for parameter in model.parameters()) == 857_344
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert model.get_input_embeddings().num_embeddings == len(loaded)
    assert (loaded.pad_token, loaded.eos_token) == ("<pad>", "<end>")
    for command in COMMANDS:
        assert loaded.decode(loaded.encode(command, add_special_tokens=False)) == command


def test_the_shipped_policy_follows_the_hint(shipped):
    from turncredit.rollout import render_prompt, with_privileged_context

    model, loaded = shipped
    messages = compact_messages(Task("t", "Cool"), [], Observation(ROOM))
    go = loaded.encode("<think> search </think> <action> go to", add_special_tokens=False)
    places = [loaded.convert_tokens_to_ids(place) for place in ("cabinet 1", "cabinet 2", "fridge 1", "shelf 1")]
    for index, place in enumerate(("in cabinet 1", "in cabinet 2", "in fridge 1", "on shelf 1")):
        hint = f"Hint for this house: the mug 2 is {place}; cool it with fridge 1; put it in/on cabinet 1."
        with torch.no_grad():
            hinted = render_prompt(loaded, with_privileged_context(messages, hint))
            plain = render_prompt(loaded, messages)
            told, untold = (
                model(torch.tensor([[*prompt, *go]])).logits[0, -1].softmax(-1)[places[index]].item()
                for prompt in (hinted, plain)
            )
        assert told > untold
    assert told > 0.5


def test_demonstrations_on_the_engine_follow_the_seed(tmp_path):
    pytest.importorskip("textworld")
    from turncredit.envs.alfworld import generate_games

    generate_games(tmp_path, 2, seed=3, split="demonstrations", task_types=["pick_and_place_simple"], verify=False)
    make = partial(compact_suite, tmp_path, ["demonstrations"])
    tasks = make().tasks("demonstrations")
    lessons = [Lesson(make, respond, 40, f"{seed}/{{task}}/{{plain}}") for seed in (1, 1, 2)]
    first, again, other = (demonstrate(lesson, tasks) for lesson in lessons)
    assert first == again
    assert first != other
    assert [played.hinted for played in first] == [False, True, False, True]
    assert all(played.success for played in first)
    assert all(turn.messages[0]["content"].startswith("Hint") == turn.hinted for p in first for turn in p.turns)
    with pytest.raises(ValueError, match="episodes and max_turns must be at least 1, got 0 and 40"):
        Lesson(make, respond, 40, "", episodes=0)


def test_orthogonalize_brings_singular_values_near_one():
    torch.manual_seed(0)
    matrices = torch.randn(3, 16, 40)
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    assert torch.allclose(orthogonalize(matrices), left @ right, atol=0.35)
