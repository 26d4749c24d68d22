"""Search-QA's embedded default: worlds without common names, prompts, tokenizer, scripted player, checkpoint."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("bm25s")

from embedded.demonstrations import Lesson, demonstrate
from embedded.imitation import encode
from embedded.tokenizer import build_tokenizer

from turncredit.envs import HistoryEntry
from turncredit.envs.search_qa import Document, generate_world, information_block
from turncredit.envs.search_qa.compact import (
    EVAL,
    PARTS,
    PEOPLE,
    TRAIN,
    compact_prompt,
    compact_suite,
    compact_vocabulary,
    demonstration_suite,
    keep_notes,
)
from turncredit.envs.search_qa.generator import world_names
from turncredit.envs.search_qa.player import Move, Plan, SearchHabits, next_move, read_passage, read_question, respond

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CHECKPOINT = EXAMPLES / "assets" / "search_qa_tiny"
QUESTION = "In which region was the founder of the Red Otter Guild born?"
GUILD = '"Red Otter Guild"\nThe Red Otter Guild was founded by Alabek in 1804. Its hall is in Oakford.'
OTHER = '"Red Hare Guild"\nThe Red Hare Guild was founded by Corafin in 1811. Its hall is in Oakford.'
PERSON = '"Alabek"\nAlabek was an astronomer, born in Ivydale in 1712.'
TOWN = '"Ivydale"\nIvydale is a town in the region of Highfell. Ivydale stands on the river Cald.'
STILL = SearchHabits(0, 0, 0, 0, 0, 0)


def block(*passages: str) -> str:
    return information_block([Document(str(number), text) for number, text in enumerate(passages)])


def episode(turns: int) -> tuple[list[HistoryEntry], str]:
    """The history and the current observation after so many searches along QUESTION's chain."""
    seen = [QUESTION, block(GUILD, OTHER), block(PERSON, GUILD), block(TOWN, PERSON)]
    queries = ["Red Otter Guild", "alabek", "ivydale"]
    return [HistoryEntry(seen[i], f"<search>{queries[i]}</search>") for i in range(turns)], seen[turns]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(**compact_vocabulary())


@pytest.fixture(scope="module")
def played():
    return [episode for world in range(3) for episode in play(world, 90)]


def play(world, questions, seed=5):
    """So many questions of a world, drawn at random, by the scripted player."""
    suite = demonstration_suite(world)
    tasks = random.Random(world).sample(suite.tasks("demonstrations"), questions)
    return demonstrate(Lesson(lambda: suite, respond, 4, f"{seed}/{{task}}/{{hinted}}"), tasks)


def test_parts_of_the_names_are_disjoint_and_worlds_keep_to_them():
    parts = [world_names(part, 3) for part in range(3)]
    for kind, names in world_names().items():
        assert sorted(name for part in parts for name in part[kind]) == sorted(names)
    one, other = (generate_world(4, people=16, part=part, parts=3) for part in (0, 1))
    titles = [{doc.contents.split("\n")[0] for doc in world.documents} for world in (one, other)]
    assert len(titles[0]) == len(titles[1]) == 16 + 8 + 4
    assert titles[0] & titles[1] == set()
    with pytest.raises(ValueError, match=r"world_names: part must lie in \[0, 3\), got 3"):
        world_names(3, 3)
    with pytest.raises(ValueError, match=r"people must lie in \[8, 42\], got 72"):
        generate_world(0, people=72, part=0, parts=8)


def test_training_and_evaluation_share_no_name_and_no_question():
    suite = compact_suite(num_eval=64)
    names = {
        split: {fact.split("\n")[0] for task in suite.tasks(split) for fact in suite.question(task).facts}
        for split in ("train", "eval")
    }
    assert min(map(len, names.values())) > 20
    assert names["train"] & names["eval"] == set()
    assert [task.type for task in suite.tasks("eval")[:3]] == [
        "generated-lookup",
        "generated-bridge",
        "generated-comparison",
    ]


def test_prompt_word_for_word_after_two_searches():
    assert compact_prompt(*episode(2)).split("\n") == [
        "question which region founder red otter guild born",
        "turn 3",
        "asked red otter guild then alabek",
        "kept nothing",
        "now alabek astronomer born ivydale 1712 . red otter guild founded alabek 1804 hall oakford",
    ]
    history, observation = episode(3)
    assert "kept red otter guild founded alabek 1804 hall oakford\n" in compact_prompt(history, observation)


def test_prompt_of_the_first_turn_and_of_turns_that_brought_nothing():
    assert compact_prompt([], QUESTION).endswith("turn 1\nasked nothing\nkept nothing\nnow nothing")
    empty = compact_prompt([HistoryEntry(QUESTION, "")], "")
    assert empty.endswith("turn 2\nasked nothing\nkept nothing\nnow nothing")
    missing = compact_prompt([HistoryEntry(QUESTION, "<search>Region</search>")], information_block([]))
    assert missing.endswith("asked region\nkept nothing\nnow nothing")


def test_notes_forget_passages_nobody_searched_for():
    history, observation = episode(2)
    assert list(keep_notes(history, observation).known) == ["red otter guild", "alabek"]


@pytest.mark.parametrize(
    ("question", "plan"),
    [
        (QUESTION, Plan(("red otter guild",), ("founder", "town", "region"))),
        ("In which region is the hall of the Red Otter Guild?", Plan(("red otter guild",), ("hall", "region"))),
        ("In which region is Oakford?", Plan(("oakford",), ("region",))),
        ("On which river was Alabek born?", Plan(("alabek",), ("town", "river"))),
        ("Who was born earlier, Alabek or Corafin?", Plan(("alabek", "corafin"), ("year",))),
    ],
)
def test_read_question_by_hand(question, plan):
    assert read_question(question) == plan


def test_every_generated_question_is_read_and_its_plan_leads_to_the_answer():
    for seed in range(3):
        for asked in generate_world(seed).questions:
            known = {fact.split("\n")[0].strip('"').lower(): read_passage(fact) for fact in asked.facts}
            plan = read_question(asked.question)
            value = plan.names[0]
            if len(plan.names) == 2:
                value = min(plan.names, key=lambda name: int(known[name]["year"]))
            else:
                for relation in plan.relations:
                    value = known[value][relation]
            assert value == asked.answers[0].lower()
    with pytest.raises(ValueError, match="read_question: question must be one of the generated world, got 'Why"):
        read_question("Why?")


def test_player_without_habits_walks_the_chain_by_hand():
    moves = [next_move(keep_notes(*episode(turns)), False, random.Random(0), STILL) for turns in range(4)]
    assert moves == [
        Move("need founder", "search", "red otter guild"),
        Move("need town", "search", "alabek"),
        Move("need region", "search", "ivydale"),
        Move("have region", "answer", "highfell"),
    ]
    assert moves[3].response == "<think> have region </think> <answer> highfell </answer>"


def test_player_answers_a_comparison_with_the_earlier_one():
    question = "Which was founded earlier, the Red Hare Guild or the Red Otter Guild?"
    history = [HistoryEntry(question, "<search>red hare guild</search>")]
    one = next_move(keep_notes(history, block(OTHER)), False, random.Random(0), STILL)
    both = next_move(keep_notes(history, block(OTHER, GUILD)), False, random.Random(0), STILL)
    assert one == Move("need year", "search", "red otter guild")
    assert both == Move("have year", "answer", "red otter guild")


def test_habits_make_the_share_of_bad_turns_they_name_and_facts_make_them_rare():
    notes, habits = keep_notes(*episode(1)), SearchHabits(look_again=0.4, hurry=0.1)
    for informed, share in ((False, 0.4), (True, 0.04)):
        moves = [next_move(notes, informed, random.Random(seed), habits) for seed in range(2000)]
        assert abs(sum(move.thought == "look again" for move in moves) / 2000 - share) < 0.04


def test_facts_make_the_scripted_player_much_better(played):
    with_facts, without = (
        sum(p.success for p in played if p.hinted == hinted) / (len(played) / 2) for hinted in (True, False)
    )
    assert without < 0.5
    assert with_facts > without + 0.4
    assert play(1, 6) == play(1, 6)
    assert play(1, 6) != play(1, 6, seed=6)


def test_tokenizer_knows_every_word_and_responses_survive_it(tokenizer, played):
    suite = demonstration_suite(7)
    turns = [turn for episode in played for turn in episode.turns]
    for turn in random.Random(0).sample(turns, 400):
        _, response = encode(tokenizer, turn)
        assert len(response) <= 9
        parsed, again = suite.parse(turn.response), suite.parse(tokenizer.decode(response))
        assert (again.action, again.thinking) == (parsed.action, parsed.thinking)
        assert again.valid


def test_every_name_of_both_parts_is_one_token(tokenizer):
    for part in (TRAIN, EVAL):
        for names in world_names(part, PARTS).values():
            for name in names:
                ids = tokenizer.encode(name, add_special_tokens=False)
                assert len(ids) == 1
                assert ids[0] != tokenizer.unk_token_id
    for fact in generate_world(3, people=PEOPLE, part=EVAL, parts=PARTS).questions[-1].facts:
        assert tokenizer.unk_token_id not in tokenizer.encode(fact)


@pytest.fixture(scope="module")
def shipped():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32), AutoTokenizer.from_pretrained(
        CHECKPOINT
    )


def test_the_shipped_folder_loads_and_plays_better_with_the_facts(shipped, tokenizer):
    from turncredit.rollout import RolloutCollector, SamplingConfig

    model, loaded = shipped
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    suite = compact_suite(held_out_seed=1003, num_eval=36)
    sampling = SamplingConfig(temperature=0.4, max_completion_length=12)
    with RolloutCollector(model, loaded, suite, sampling, num_workers=0) as collector:
        plain, informed = (collector.collect(suite.tasks("eval"), seed=0, privileged=p) for p in (False, True))
    won = [sum(t.success for t in played) / 36 for played in (plain, informed)]
    assert won[0] > 0.03
    assert won[1] > won[0] + 0.2
    assert sum(turn.valid for t in plain for turn in t.turns) > 0.9 * sum(len(t.turns) for t in plain)


def test_one_update_with_the_settings_of_the_example(shipped, tmp_path):
    import copy

    from turncredit.trainers import GRPOTrainer
    from turncredit.trainers.launch import make_config, make_parser

    args = make_parser().parse_args(["--output-dir", str(tmp_path), "--set", "num_tasks=6"])
    vars(args).update(embedded=True, retriever=None, privileged=None, num_eval_questions=6)
    config = make_config(args, runpy.run_path(str(EXAMPLES / "train_search_qa.py"))["settings"](args))
    model, loaded = copy.deepcopy(shipped[0]), shipped[1]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with GRPOTrainer(model, loaded, compact_suite(num_eval=6), config) as trainer:
        metrics = trainer.train_step()
    assert 0 < metrics["rollout/success"] < 1
    assert metrics["teacher/rows"] > 0
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
