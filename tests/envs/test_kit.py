"""The environment kit: hand values of each part, what holds for any input, and what a wrong argument is told."""

from __future__ import annotations

import doctest
import importlib
import pickle
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.envs import HistoryEntry, Observation, ParsedResponse, Task, TaskSuite
from turncredit.envs.alfworld import AlfWorldSuite
from turncredit.envs.kit import (
    BaseSuite,
    Contexts,
    SkillBank,
    TaggedParser,
    balanced,
    chosen_contexts,
    history_text,
    skill_lines,
    step_messages,
)
from turncredit.envs.kit.checks import check_counts, listed
from turncredit.envs.search_qa import Question, SearchQASuite
from turncredit.envs.webshop import ShopConfig, WebShopSuite

PARTS = ("balance", "checks", "contexts", "parsing", "prompts", "skills", "suite")


class Rooms(BaseSuite):
    """Two splits, three types, two contexts; counts what it makes."""

    name = "rooms"
    splits = ("train", "eval")
    context_names = ("hint", "rules", "nothing")
    both = "rules+hint"

    def __init__(self, **options):
        super().__init__(**options)
        self.loaded, self.made = [], []

    def load(self, split):
        self.loaded.append(split)
        return [Task(f"{split}{number}", "aab"[number % 3], split) for number in range(6)]

    def make_env(self):
        return Counter

    def context(self, task, name):
        self.made.append(name)
        return None if name == "nothing" else f"{name} of {task.id}"


def test_examples_in_the_documentation():
    modules = [importlib.import_module(f"turncredit.envs.kit.{name}") for name in PARTS]
    results = [doctest.testmod(module) for module in modules]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 7


def test_importing_the_kit_loads_no_torch():
    source = "import sys; import turncredit.envs.kit; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# balanced


def test_balanced_by_hand():
    items = ["a1", "a2", "a3", "b1", "c1", "c2"]
    dealt = ["a1", "b1", "c1", "a2", "c2", "a3"]
    for limit in range(1, 9):
        assert balanced(items, limit, key=lambda item: item[0]) == dealt[:limit]
    assert balanced([], 3) == []
    assert balanced(iter([Task("x", "t")]), 1) == [Task("x", "t")]


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 40))
def test_balanced_is_stable_fair_and_complete(types, limit):
    tasks = [Task(str(number), kind) for number, kind in enumerate(types)]
    chosen = balanced(tasks, limit)
    assert len(chosen) == min(limit, len(tasks)) == len(set(chosen)), "complete"
    assert set(chosen) <= set(tasks)
    assert balanced(tasks, limit + 1)[: len(chosen)] == chosen, "a larger limit only adds"
    for kind in set(types):
        own = [task for task in tasks if task.type == kind]
        assert [task for task in chosen if task.type == kind] == own[: sum(t.type == kind for t in chosen)], "stable"
    counts, whole = Counter(task.type for task in chosen), Counter(types)
    most = max(counts.values(), default=0)
    assert all(counts[kind] in (most, most - 1) or counts[kind] == whole[kind] for kind in whole), "fair"


# the parser

PLAIN = TaggedParser()
SEARCH = TaggedParser(("search", "answer"), require_think=False, keep_tags=True, once=True)


@pytest.mark.parametrize(
    ("parser", "response", "thinking", "action", "valid"),
    [
        (PLAIN, "<think> Why </think> <action> Go North </action> more", "Why", "Go North", True),
        (PLAIN, "<THINK>a</Think><Action>b</ACTION>", "a", "b", True),
        (PLAIN, "<action>b</action>", "", "b", False),
        (PLAIN, "<action>b</action><think>too late</think>", "", "b", False),
        (PLAIN, "<think>a</think><action> </action>", "a", "", False),
        (PLAIN, "<think>a</think><action>b</action><action>c</action>", "a", "b", True),
        (PLAIN, "</action><think>a</think><action>b</action>", "a", "b", True),
        (PLAIN, "<think>a<action>b", "", "", False),
        (PLAIN, "", "", "", False),
        (TaggedParser(lower=True), "<think>A</think><action>Go North</action>", "A", "go north", True),
        (TaggedParser(require_think=False), "<action>b</action>", "", "b", True),
        (TaggedParser(once=True), "<think>a</think><action>b</action><action>c</action>", "a", "b", False),
        (TaggedParser(("do", "say"), "why"), "<why>a</why><say>x</say><do>y</do>", "a", "y", True),
        (TaggedParser(("do", "say"), "why"), "<why>a</why><say>x</say>", "a", "x", True),
        (SEARCH, "<Search> q </Search> rest", "", "<search>q</search>", True),
        (SEARCH, "<search> </search>", "", "<search></search>", True),
        (SEARCH, "<think>t</think><answer>a</answer>", "t", "<answer>a</answer>", True),
        (SEARCH, "<answer>a</answer><search>q</search>", "", "<search>q</search>", False),
        (SEARCH, "</search><search>q</search>", "", "", False),
        (SEARCH, "</answer><answer>a</answer>", "", "", False),
        (SEARCH, "<search>q</search><search>r</search>", "", "<search>q</search>", False),
        (SEARCH, None, "", "", False),
    ],
)
def test_responses_by_hand(parser, response, thinking, action, valid):
    parsed = parser(response)
    assert (parsed.thinking, parsed.action, parsed.valid) == (thinking, action, valid)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<action>", "</action>", "<ACTION>", " ", "x", "\n"]), max_size=12)
)
def test_spans_lie_around_what_was_read(pieces):
    response = "".join(pieces)
    parsed = PLAIN(response)
    for text, span in ((parsed.thinking, parsed.thinking_span), (parsed.action, parsed.action_span)):
        assert text == (response[slice(*span)].strip() if span else "")
    if parsed.thinking_span and parsed.action_span:
        assert parsed.thinking_span[1] < parsed.action_span[0]


def test_the_parser_is_sent_by_pickle_and_knows_its_stop_strings():
    assert pickle.loads(pickle.dumps(SEARCH)) == SEARCH
    assert SEARCH.stop_strings == ("</search>", "</answer>")
    with pytest.raises(
        TypeError, match=r"TaggedParser: actions must be a tuple of tags, got 'action'; write \(\"action\",\)"
    ):
        TaggedParser("action")  # type: ignore[arg-type]
    for wrong in (("<action>",), ("",), ("a", "a"), ("think",)):
        with pytest.raises(ValueError, match="TaggedParser: actions and think must be different names"):
            TaggedParser(wrong)


# prompts

TURNS = [HistoryEntry(f"saw {number}", f"did {number}") for number in range(1, 4)]


def test_history_by_hand():
    step = "[Step {0}] Observation: saw {0}\n[Step {0}] Action: did {0}"
    assert history_text(TURNS, 2) == f"{step.format(2)}\n{step.format(3)}"
    assert history_text(TURNS, 9) == "\n".join(step.format(number) for number in (1, 2, 3))
    assert history_text(TURNS, 0) == history_text([], 2) == ""
    assert history_text(TURNS, 1, lambda number, turn: f"{number}: {turn.action}") == "3: did 3"
    assert history_text([HistoryEntry("saw", "")], 1).endswith("Action: (none)")


def test_a_prompt_by_hand():
    now = Observation("a door", ("open", "wait"))
    (message,) = step_messages("You walk.", "Get out.", TURNS, now, history_length=1, rules="Answer.")
    assert message == {
        "role": "user",
        "content": "You walk.\n\nTask: Get out.\n\nYou have taken 3 steps so far. The latest, oldest first:\n"
        "[Step 3] Observation: saw 3\n[Step 3] Action: did 3\n\nStep 4. Current observation:\na door\n\n"
        "Admissible actions:\n- open\n- wait\n\nAnswer.",
    }
    (bare,) = step_messages("", "", [], Observation("a door"), history_length=1, rules="Answer.")
    assert bare["content"] == "Current observation:\na door\n\nAnswer."


# skills

BANK = {"general": [{"title": "Look", "text": "See first."}], "heat": [{"title": "Warm", "text": "Use fire."}]}


def test_skills_come_by_type_and_else_by_wording():
    bank = SkillBank(BANK, lambda text: "heat" if "hot" in text else None)
    general, heat = bank["general"], bank["heat"]
    assert bank.chosen("heat", "cold") == bank.chosen(None, "a hot egg") == bank.chosen("new", "hot") == general + heat
    assert bank.chosen("general", "hot") == general + heat
    assert bank.chosen() == SkillBank(BANK).chosen("new", "hot") == general
    assert skill_lines(bank.chosen("heat")) == "- Look: See first.\n- Warm: Use fire."
    assert heat[0].type == "heat"


def test_a_bank_that_lacks_something_says_what():
    with pytest.raises(ValueError, match=r"must hold the type 'general', got \['heat'\]"):
        SkillBank({"heat": BANK["heat"]})
    with pytest.raises(ValueError, match=r"must have a title and a text, got \{'title': 'x'\} of type 'general'"):
        SkillBank({"general": [{"title": "x"}]})


# contexts


def test_a_context_is_made_when_it_is_read():
    made = []
    contexts = Contexts(("skills", "hint"), lambda name: made.append(name) or name.upper())
    assert list(contexts) == ["skills", "hint"]
    assert "hint" in contexts
    assert "other" not in contexts
    assert (len(contexts), made) == (2, [])
    assert contexts["hint"] == "HINT"
    assert contexts.get("other") is None
    assert made == ["hint"]
    with pytest.raises(KeyError, match="other"):
        contexts["other"]
    assert dict(contexts) == {"skills": "SKILLS", "hint": "HINT"}


@pytest.mark.parametrize(
    ("privileged", "chosen"),
    [("hint", ("hint",)), ("none", ()), ("both", ("hint", "skills")), ("skills+hint", ("skills", "hint"))],
)
def test_names_of_contexts(privileged, chosen):
    assert chosen_contexts("S", privileged, ("skills", "hint"), "hint+skills") == chosen


@pytest.mark.parametrize("privileged", ["hnt", "hint+skill", "", "hint+", "none+hint", None, 3])
def test_wrong_names_of_contexts(privileged):
    with pytest.raises(ValueError, match=r"^S: privileged must be one of \['both', 'hint', 'none', 'skills'\], got "):
        chosen_contexts("S", privileged, ("skills", "hint"), "hint+skills")


def test_both_exists_only_where_a_suite_says_what_it_is():
    with pytest.raises(ValueError, match=r"S: privileged must be one of \['hint', 'none'\], got 'both'"):
        chosen_contexts("S", "both", ("hint",))


def test_what_both_stands_for_must_exist():
    with pytest.raises(ValueError, match=r"S: both must be one of \['hint'\], got 'hint\+skills'"):
        chosen_contexts("S", "both", ("hint",), "hint+skills")


# the suite


def test_a_suite_is_one_and_takes_its_defaults_from_its_class():
    suite = Rooms()
    assert isinstance(suite, TaskSuite)
    assert (suite.max_turns, suite.history_length, suite.stop_strings) == (30, 2, ("</action>",))
    assert suite.privileged == "hint"
    assert Rooms(max_turns=3).max_turns == 3
    with pytest.raises(TypeError, match="abstract"):
        BaseSuite()  # type: ignore[abstract]


def test_tasks_are_loaded_once_and_limits_are_fair():
    suite = Rooms(limits={"eval": 3})
    assert [task.id for task in suite.tasks("eval")] == ["eval0", "eval2", "eval1"]
    assert suite.tasks("eval") is suite.tasks("eval")
    assert len(suite.tasks("train")) == 6
    assert suite.loaded == ["eval", "train"]

    class First(Rooms):
        limit_by_type = False

    assert [task.id for task in First(limits={"eval": 2}).tasks("eval")] == ["eval0", "eval1"]


def test_ids_must_tell_tasks_apart():
    class Twice(Rooms):
        def load(self, split):
            return [Task("same", "a", split), Task("same", "b", split)]

    with pytest.raises(ValueError, match=r"Twice\.load: task ids must be unique in split 'train', got 'same' again"):
        Twice().tasks("train")


def test_contexts_by_name_and_the_default_one():
    suite, task = Rooms(privileged="both"), Task("train0", "a")
    assert suite.privileged_context(task) == "rules of train0\n\nhint of train0"
    assert suite.made == ["rules", "hint"]
    assert suite.contexts(task)["hint"] == "hint of train0"
    assert Rooms(privileged="nothing+hint").privileged_context(task) == "hint of train0"
    assert Rooms(privileged="nothing").privileged_context(task) is None
    assert Rooms(privileged="none").privileged_context(task) is None
    bare = type("Bare", (Rooms,), {"context_names": ()})()
    assert (bare.privileged, bare.privileged_context(task), dict(bare.contexts(task))) == ("none", None, {})
    with pytest.raises(NotImplementedError, match=r"Rooms must define context\(task, name\) for 'hint'"):
        BaseSuite.context(suite, task, "hint")


def test_prompt_and_parser_can_be_replaced():
    task, now = Task("t", "a"), Observation("a door", ("open",), info={"task": "Get out."})
    (message,) = Rooms(history_length=1).messages(task, TURNS, now)
    assert "Task: Get out.\n\nYou have taken 3 steps" in message["content"]
    assert "saw 2" not in message["content"]
    own = Rooms(build_messages=lambda task, history, observation: [{"role": "user", "content": task.id}])
    assert own.messages(task, [], now) == [{"role": "user", "content": "t"}]
    assert Rooms().parse("<think>a</think><action>b</action>").action == "b"
    assert Rooms(parse=lambda text: ParsedResponse("", text.upper(), True)).parse("b").action == "B"

    def shout(response):
        return ParsedResponse("", response.upper(), True)

    assert type("Loud", (Rooms,), {"parser": shout})().parse("b").action == "B"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_turn": 3}, TypeError, "got 'max_turn'; did you mean 'max_turns'?"),
        (
            {"privileged": "hin"},
            ValueError,
            "privileged must be one of ['both', 'hint', 'none', 'nothing', 'rules'], got",
        ),
        (
            {"history_length": -1},
            ValueError,
            "history_length must be at least 0 and max_turns at least 1, got -1 and 30",
        ),
        ({"max_turns": 0}, ValueError, "max_turns at least 1, got 2 and 0; the defaults are 2 and 30"),
        ({"max_turns": "9"}, TypeError, "max_turns must be an int, got '9' (str); the default is 30"),
        ({"max_turns": True}, TypeError, "max_turns must be an int, got True (bool)"),
        (
            {"limits": {"evla": 3}},
            ValueError,
            "limits must be one of ['eval', 'train'], got 'evla'; did you mean 'eval'?",
        ),
        ({"limits": {"eval": 0}}, ValueError, "limits['eval'] must be at least 1, got 0; leave the split out"),
        ({"limits": {"eval": 1.5}}, TypeError, "limits['eval'] must be an int, got 1.5 (float); leave the split out"),
        ({"limits": 60}, TypeError, "limits must map splits to numbers, got 60; write {'eval': 60}"),
    ],
)
def test_every_wrong_option_is_named(options, error, message):
    with pytest.raises(error, match="^Rooms: .*" + re.escape(message)):
        Rooms(**options)


def test_an_unknown_split_and_a_missing_name():
    with pytest.raises(
        ValueError, match=re.escape("split must be one of ['eval', 'train'], got 'evl'; did you mean 'eval'?")
    ):
        Rooms().tasks("evl")
    for attribute in ("splits", "stop_strings", "context_names"):
        with pytest.raises(TypeError, match=rf"One: {attribute} must be several texts, got 'x'; write \('x',\)"):
            type("One", (Rooms,), {attribute: "x"})()
    with pytest.raises(ValueError, match="Nameless: name must be the benchmark's short name, got ''"):
        type("Nameless", (Rooms,), {"name": ""})()


def test_an_option_of_the_benchmarks_own_is_suggested_and_never_swallowed(tmp_path):
    with pytest.raises(TypeError, match=r"AlfWorldSuite: options must be among .*; did you mean 'build_hint'"):
        AlfWorldSuite(tmp_path, build_hnt=str)  # type: ignore[call-arg]

    class Sized(Rooms):
        def __init__(self, size=3, **options):
            super().__init__(size=size, **options)

    with pytest.raises(TypeError, match=r"Sized: options must be among .* got 'size'"):
        Sized()


def test_numbers_are_named_together():
    with pytest.raises(
        ValueError, match=r"^f: a and b must be at least 0 and c at least 1, got 0, -1 and 1; the defaults"
    ):
        check_counts("f", a=(0, 0, 1), b=(-1, 0, 2), c=(1, 1, 3))
    assert listed(["a", "b"]) == "a and b"


# the benchmarks on it


@pytest.fixture(scope="module")
def webshop():
    pytest.importorskip("bm25s", reason="the 'webshop' extra is not installed")
    return WebShopSuite(ShopConfig(cache_dir=None, generated_products=24), privileged="skills+hint")


def test_webshop_contexts_by_name(webshop):
    task = webshop.tasks("train")[0]
    contexts = webshop.contexts(task)
    assert set(contexts) == {"skills", "hint"}
    assert webshop.goal(task).name in contexts["hint"]
    assert contexts["skills"].startswith("Useful skills:\n- ")
    assert webshop.privileged_context(task) == f"{contexts['skills']}\n\n{contexts['hint']}"


def test_search_qa_contexts_by_name():
    asked = Question("nq/0", "Which?", ("Rome",), "nq", "bridge", ())
    suite = SearchQASuite({"train": [asked]}, retriever=Counter, privileged="both")
    contexts = suite.contexts(suite.tasks("train")[0])
    assert list(contexts) == ["skills", "answer", "facts"]
    assert contexts["facts"] is None
    assert suite.privileged_context(suite.tasks("train")[0]) == f"{contexts['answer']}\n\n{contexts['skills']}"


def test_alfworld_reads_a_game_only_for_its_hint(tmp_path):
    (tmp_path / "train").mkdir()
    suite = AlfWorldSuite(tmp_path)
    contexts = suite.contexts(Task("train/pick_heat_then_place_in_recep-Egg/trial_1", "Heat"))
    assert set(contexts) == {"skills", "hint"}
    assert "microwave" in contexts["skills"]
    with pytest.raises(KeyError, match="task_id must name a game"):
        contexts["hint"]


def test_a_misspelt_split_of_a_limit_is_not_passed_over(tmp_path):
    (tmp_path / "valid_seen").mkdir()
    with pytest.raises(
        ValueError, match=r"AlfWorldSuite: limits must be one of \['valid_seen'\], got 'valid_sen'; did you"
    ):
        AlfWorldSuite(tmp_path, limits={"valid_sen": 3})


def test_questions_left_out_by_a_limit_are_not_sent_to_workers():
    questions = [Question(f"nq/{number}", f"Which {number}?", ("x",), "nq") for number in range(9)]
    suite = SearchQASuite({"train": questions[:4], "eval": questions[4:]}, retriever=Counter, limits={"eval": 2})
    assert set(suite.make_env()._questions) == {f"train/nq/{n}" for n in range(4)} | {"eval/nq/4", "eval/nq/5"}
