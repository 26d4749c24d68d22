"""The suite, its generated world, skills, and the environments inside worker processes."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys

import pytest

from turncredit.envs import Environment, TaskSuite, VectorEnv
from turncredit.envs.search_qa import (
    Bm25Retriever,
    Document,
    HttpRetriever,
    Question,
    SearchQASuite,
    generate_world,
    read_information,
    skill_bank,
    skills_for,
    split_questions,
)
from turncredit.envs.search_qa.suite import balanced


class Nothing:
    """A retriever without passages."""

    def search(self, queries, topk):
        return [[] for _ in queries]

    def close(self):
        return None


def question(name, source="nq", text=None, **fields):
    return Question(f"{source}/{name}", text or f"question {source} {name}?", ("x",), source, **fields)


@pytest.fixture
def world():
    return generate_world(0)


@pytest.fixture
def needs_bm25():
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, turncredit.envs.search_qa, turncredit.envs.search_qa.server\n"
        "heavy = {'torch', 'datasets', 'sentence_transformers', 'transformers', 'bm25s', 'numpy', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_world_follows_from_its_seed(world):
    assert generate_world(0) == world
    assert generate_world(1) != world
    assert len({doc.contents for doc in world.documents}) == len(world.documents) == 84
    assert {kind: sum(q.kind == kind for q in world.questions) for kind in ("lookup", "bridge", "comparison")} == {
        "lookup": 168,
        "bridge": 192,
        "comparison": 60,
    }
    assert len({q.question for q in world.questions}) == len({q.id for q in world.questions}) == 420


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_generated_question_can_be_answered_by_searching_titles(seed, needs_bm25):
    world = generate_world(seed)
    retriever = Bm25Retriever(world.documents)
    passages = {doc.contents for doc in world.documents}
    for asked in world.questions:
        assert set(asked.facts) <= passages
        assert len(asked.facts) <= 3
        titles = [fact.split("\n")[0].strip('"') for fact in asked.facts]
        found = retriever.search(titles, 3)
        for fact, documents in zip(asked.facts, found, strict=True):
            assert fact in {doc.contents for doc in documents}
        if asked.kind == "comparison":
            assert asked.answers[0] in titles
        else:
            assert asked.answers[0] in asked.facts[-1]
            assert titles[0] in asked.question
            for before, title in zip(asked.facts, titles[1:], strict=False):
                assert title in before, "each link names the next"


def test_comparisons_are_decided_by_the_years(world):
    for asked in (q for q in world.questions if q.kind == "comparison"):
        years = {fact.split("\n")[0].strip('"'): min(int(w) for w in _numbers(fact)) for fact in asked.facts}
        assert asked.answers[0] == min(years, key=years.__getitem__)


def _numbers(text):
    return "".join(letter if letter.isdigit() else " " for letter in text).split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"people": 7}, "people must lie in"),
        ({"people": 337}, "people must lie in"),
        ({"comparisons": -1}, "comparisons"),
    ],
)
def test_world_names_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_world(0, **arguments)


def test_largest_world():
    assert len(generate_world(0, people=336).documents) == 336 + 168 + 84


def test_split_keeps_every_kind_apart(world):
    splits = split_questions(world.questions, 0.25)
    assert {q.id for q in splits["train"]} & {q.id for q in splits["eval"]} == set()
    assert (len(splits["train"]), len(splits["eval"])) == (315, 105)
    assert {q.kind for q in splits["eval"]} == {"lookup", "bridge", "comparison"}
    with pytest.raises(ValueError, match="eval_share"):
        split_questions(world.questions, 1.0)


def test_default_suite(needs_bm25):
    suite = SearchQASuite()
    assert isinstance(suite, TaskSuite)
    train, held_out = suite.tasks("train"), suite.tasks("eval")
    assert (len(train), len(held_out)) == (315, 105)
    assert SearchQASuite().tasks("eval") == held_out
    assert {task.id for task in train} & {task.id for task in held_out} == set()
    with pytest.raises(ValueError, match=r"split must be one of \['eval', 'train'\], got 'test'"):
        suite.tasks("test")


def test_environments_of_one_process_share_one_retriever():
    made = []

    def make():
        made.append(Nothing())
        return made[-1]

    factory = SearchQASuite({"train": [question(0)]}, retriever=make).make_env()
    environments: list[Environment] = [factory(), factory(), factory()]
    assert len(environments) == 3
    assert len(made) == 1


def test_factory_is_sent_without_its_retriever():
    factory = SearchQASuite({"train": [question(0)]}, retriever=Nothing).make_env()
    factory()
    copy = pickle.loads(pickle.dumps(factory))
    assert copy._retriever is None
    assert copy().reset("train/nq/0").text == "question nq 0?"


def test_episodes_in_worker_processes(needs_bm25):
    suite = SearchQASuite()
    tasks = suite.tasks("eval")[:6]
    with VectorEnv(suite.make_env(), 6, num_workers=2) as envs:
        first = envs.reset({slot: task.id for slot, task in enumerate(tasks)})
        assert [first[slot].text for slot in range(6)] == [suite.question(task).question for task in tasks]
        titles = [suite.question(task).facts[0].split("\n")[0].strip('"') for task in tasks]
        found = envs.step({slot: f"<search>{title}</search>" for slot, title in enumerate(titles)})
        for slot, title in enumerate(titles):
            assert f'Doc 1: "{title}"' in read_information(found[slot].observation.text)
        done = envs.step({slot: f"<answer>{suite.question(t).answers[0]}</answer>" for slot, t in enumerate(tasks)})
        assert all(done[slot].success and done[slot].reward == 1.0 for slot in range(6))


def test_training_questions_that_are_held_out_are_dropped(caplog):
    train = [question(0, text="Who fell?"), question(1, text="Who rose?")]
    suite = SearchQASuite({"train": train, "eval": [question(9, text="who  FELL")]}, retriever=Nothing)
    assert [task.id for task in suite.tasks("train")] == ["train/nq/1"]
    assert "left 1 training questions out" in caplog.text
    with pytest.raises(ValueError, match="must leave some for training"):
        SearchQASuite({"train": train[:1], "eval": [question(9, text="who fell")]}, retriever=Nothing)


def test_limits_deal_from_the_data_sources_in_turn():
    many = [question(n, "nq") for n in range(5)] + [question(n, "musique") for n in range(2)]
    suite = SearchQASuite({"eval": many}, retriever=Nothing, limits={"eval": 5})
    assert [task.id for task in suite.tasks("eval")] == [
        "eval/nq/0",
        "eval/musique/0",
        "eval/nq/1",
        "eval/musique/1",
        "eval/nq/2",
    ]
    assert [task.type for task in suite.tasks("eval")[:2]] == ["nq", "musique"]
    with pytest.raises(ValueError, match="limit must be at least 1"):
        balanced(many, 0)


@pytest.mark.parametrize(
    ("privileged", "present", "absent"),
    [
        ("skills", ["Useful skills:", "One link at a time"], ["The correct answer", "Passages"]),
        ("answer", ["The correct answer is: Rome or: Roma"], ["Useful skills"]),
        ("both", ["The correct answer is: Rome or: Roma", "One link at a time"], ["Passages"]),
        ("facts", ['Passages that hold the answer:\n"Rome"\nRome is it.'], ["The correct answer"]),
    ],
)
def test_privileged_context(privileged, present, absent):
    asked = Question("nq/0", "Which?", ("Rome", "Roma"), "nq", "bridge", ('"Rome"\nRome is it.',))
    suite = SearchQASuite({"train": [asked]}, retriever=Nothing, privileged=privileged)
    context = suite.privileged_context(suite.tasks("train")[0])
    assert all(text in context for text in present)
    assert not any(text in context for text in absent)


def test_no_privileged_context_where_there_is_none():
    for privileged in ("none", "facts"):
        suite = SearchQASuite({"train": [question(0)]}, retriever=Nothing, privileged=privileged)
        assert suite.privileged_context(suite.tasks("train")[0]) is None


def test_skills_follow_the_kind_and_else_the_wording():
    bank = skill_bank()
    assert set(bank) == {"general", "lookup", "bridge", "comparison"}
    assert skills_for("comparison") == (*bank["general"], *bank["comparison"])
    assert skills_for("", "Who was born first, Ada or Grace?") == skills_for("comparison")
    assert skills_for("general", "who is it") == skills_for("lookup")


def test_prompt_names_the_question_and_can_be_replaced():
    suite = SearchQASuite({"train": [question(0)]}, retriever=Nothing)
    (task,) = suite.tasks("train")
    observation = suite.make_env()().reset(task.id)
    (message,) = suite.messages(task, [], observation)
    assert message["role"] == "user"
    assert "Question: question nq 0?" in message["content"]
    assert "turn 1 of 4" in message["content"]
    other = SearchQASuite(
        {"train": [question(0)]},
        retriever=Nothing,
        build_messages=lambda t, h, o: [{"role": "user", "content": o.text}],
    )
    assert other.messages(task, [], observation) == [{"role": "user", "content": "question nq 0?"}]


def test_an_address_makes_an_http_client():
    suite = SearchQASuite({"train": [question(0)]}, retriever="http://127.0.0.1:9/retrieve")
    factory = pickle.loads(pickle.dumps(suite.make_env()))
    assert isinstance(factory()._retriever, HttpRetriever)
    with pytest.raises(ValueError, match="url must start with http"):
        SearchQASuite({"train": [question(0)]}, retriever="nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"questions": {"train": [question(0)]}, "retriever": None}, "retriever must be given"),
        ({"questions": {"train": []}}, "non-empty list of unique ids in split 'train', got 0"),
        ({"questions": {"train": [question(0), question(0)]}}, "got 2 questions with 1 ids"),
        ({"privileged": "all"}, "privileged must be"),
        ({"max_turns": 0}, "max_turns and topk at least 1"),
        ({"history_length": -1}, "history_length must be at least 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    arguments = {"questions": {"train": [question(0)]}, "retriever": Nothing, **arguments}
    with pytest.raises(ValueError, match=message):
        SearchQASuite(**arguments)


def test_a_question_of_another_suite_is_an_error():
    suite = SearchQASuite({"train": [question(0)]}, retriever=functools.partial(Nothing))
    other = SearchQASuite({"train": [question(1)]}, retriever=Nothing).tasks("train")[0]
    with pytest.raises(KeyError, match="'train/nq/1'"):
        suite.question(other)


def test_documents_are_plain_records():
    assert Document("1", "x") == Document("1", "x", 0.0)
