"""`check_suite` finds what is wrong with a suite, one broken member at a time, and the collector names the member."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest
from helpers.text_tokenizers import NO_SYSTEM, byte_level_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToyEnv, ToySuite

from turncredit.envs import Observation, ParsedResponse, StepResult, Task
from turncredit.rollout import RolloutCollector, check_suite

TOKENIZER = byte_level_tokenizer(NO_SYSTEM)


class Wrong(ToyEnv):
    """A toy environment with one fault."""

    made = 0

    def __init__(self, fault: str):
        super().__init__()
        self.fault, self.played = fault, 0

    def reset(self, task_id):
        first = super().reset(task_id)
        self.played += 1
        if self.fault == "reset raises":
            raise KeyError("no such game")
        if self.fault == "reset text":
            return "room"
        if self.fault == "leaks":
            return replace(first, text=f"room {self.played}")
        return replace(first, text=f"room {random.random()}") if self.fault == "random" else first

    def step(self, action):
        result = super().step(action)
        if self.fault == "step raises" and action not in ("red", "green", "blue", "black"):
            raise ValueError("what is this")
        if self.fault == "step tuple":
            return result.observation, result.reward, result.done
        if self.fault == "none after done" and result.done:
            return replace(result, observation=None)
        if self.fault == "reward text":
            return replace(result, reward="1.0")
        if self.fault == "refuses listed":
            return replace(result, valid=action != "green")
        if self.fault == "random reward":
            return replace(result, reward=random.random())
        if self.fault == "random actions":
            return replace(result, observation=replace(result.observation, admissible_actions=(str(random.random()),)))
        return result

    def close(self):
        if self.fault == "close raises":
            raise RuntimeError("closed already")


class Bare:
    """No environment."""


def with_fault(fault):
    suite = ToySuite()
    suite.make_env = lambda: functools.partial(Wrong, fault)
    return suite


def changed(**members):
    suite = ToySuite()
    for name, member in members.items():
        setattr(suite, name, member)
    return suite


def counting(*answers):
    """Another answer on every call."""
    calls = []

    def answer(*args):
        calls.append(args)
        return answers[len(calls) % len(answers)]

    return answer


def fails(*args):
    raise RuntimeError("not today")


def with_system(task, history, observation):
    return [{"role": "system", "content": "x"}, {"role": "user", "content": observation.text}]


def greedy(response):
    return ParsedResponse("", response.split("<action>")[1], True)


def appends(task, history, observation):
    history.append("mine")
    return [{"role": "user", "content": observation.text}]


TASK = Task("a", "red")
ONE = ToyEnv()
BROKEN = {
    "name": (changed(name=3), "ToySuite.name must be a short text, got 3 (int)"),
    "max_turns text": (
        changed(max_turns="5"),
        "ToySuite.max_turns must be a whole number of at least 1, got '5' (str)",
    ),
    "max_turns 0": (changed(max_turns=0), "ToySuite.max_turns must be a whole number of at least 1, got 0 (int)"),
    "max_turns method": (changed(max_turns=lambda: 3), "a method needs @property"),
    "history_length": (
        changed(history_length=-1),
        "ToySuite.history_length must be a whole number of at least 0, got -1",
    ),
    "stop_strings": (changed(stop_strings=[3]), "ToySuite: stop_strings must be a tuple of strings, got [3]"),
    "stop_strings empty": (changed(stop_strings=("",)), "ToySuite: stop_strings must not be empty"),
    "no method": (changed(parse=None), "ToySuite.parse must be a method, got None (NoneType)"),
    "tasks none": (
        changed(tasks=lambda s: None),
        "ToySuite.tasks('train') must return a list of Task records, got None",
    ),
    "tasks text": (changed(tasks=lambda s: ["a"]), "ToySuite.tasks('train') must hold Task records, got 'a' (str)"),
    "tasks empty": (changed(tasks=lambda s: []), "ToySuite.tasks('train') must hold at least one task, got none"),
    "tasks id": (changed(tasks=lambda s: [Task(3, "a")]), "must give every task a text as id, got 3 (int)"),
    "tasks twice": (
        changed(tasks=lambda s: [TASK, TASK]),
        "must have ids that are unique, got 1 more than once, such as 'a'",
    ),
    "tasks raise": (changed(tasks=fails), "tasks raised RuntimeError at test_suite_check"),
    "tasks change": (
        changed(tasks=counting([TASK], [Task("b", "red")])),
        "tasks('train') must give the same list on every call, got two that differ",
    ),
    "splits": (
        changed(tasks=lambda split: [Task("red-1", "red")]),
        "tasks('train') and tasks('eval') must hold different tasks, got 1 in both, such as 'red-1'",
    ),
    "privileged kind": (
        changed(privileged_context=lambda task: ["a"]),
        "privileged_context: the result must be a str or None, got ['a'] (list)",
    ),
    "privileged raises": (
        changed(privileged_context=fails),
        "privileged_context raised RuntimeError at test_suite_check",
    ),
    "privileged changes": (
        changed(privileged_context=counting("a", "b")),
        "privileged_context must give a task the same text on every call, got 'b' and 'a'",
    ),
    "contexts": (changed(contexts=lambda task: {"hint": 3}), "contexts: 'hint' must be a str or None, got 3 (int)"),
    "contexts name": (
        changed(contexts=lambda task: {"skills+hint": "x"}),
        'contexts: a name must be a str without "+", and not "privileged", got \'skills+hint\' (str)',
    ),
    "contexts member": (changed(contexts={"hint": "x"}), "contexts must be a method, got {'hint': 'x'}"),
    "with_context": (
        changed(with_context=lambda messages, text: text),
        "with_context: the result must be a non-empty list of messages, got 'hint say red' (str)",
    ),
    "with_context none": (
        changed(with_context=lambda messages, text: messages),
        "with_context: the result must hold the text 'hint say red', got the messages as they were",
    ),
    "causal_span": (changed(causal_span="all"), 'causal_span must be "action_only" or "clean_step", got \'all\''),
    "tools": (changed(tools=[print]), "ToySuite: tools must be a list of JSON schemas"),
    "tools unseen": (changed(tools=[{"a": 1}]), "check_suite: ToySuite.tools must be shown by the chat template"),
    "template options": (
        changed(chat_template_kwargs=3),
        "ToySuite: chat_template_kwargs must map names to values, got 3",
    ),
    "messages text": (
        changed(messages=lambda *a: "x"),
        "messages: the result must be a non-empty list of messages, got 'x'",
    ),
    "messages raise": (changed(messages=fails), "messages raised RuntimeError at test_suite_check"),
    "messages role": (
        changed(messages=with_system),
        "messages: render_prompt: messages must suit the tokenizer's chat templ",
    ),
    "messages change": (
        changed(messages=counting([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])),
        "messages must be the same for the same history and observation, got two that differ",
    ),
    "messages image": (
        changed(messages=lambda *a: [{"role": "user", "content": [{"type": "image"}]}]),
        "messages must hold text parts only, got one of type 'image'",
    ),
    "messages append": (changed(messages=appends), "messages must leave the history as it is, got it changed"),
    "parse raises": (changed(parse=greedy), "parse raised IndexError at test_suite_check"),
    "parse kind": (
        changed(parse=lambda r: r),
        "parse: the result must be a ParsedResponse, got '' (str); it was given ''",
    ),
    "parse action": (
        changed(parse=lambda r: ParsedResponse("", None, False)),
        "parse: action must be a str, empty where there is none, got None",
    ),
    "parse span": (
        changed(parse=lambda r: ParsedResponse("", "a", True, action_span=(0, 3))),
        "parse: action_span must be a range inside the response, got (0, 3)",
    ),
    "parse span one": (
        changed(parse=lambda r: ParsedResponse("", "a", True, action_span=3)),
        "parse: action_span must be a range inside the response, got 3 (int)",
    ),
    "make_env env": (changed(make_env=ToyEnv), "ToySuite.make_env must return a factory of environments, got <"),
    "make_env lambda": (
        changed(make_env=lambda: lambda: ToyEnv()),
        "ToySuite.make_env must return a factory that can be pickled, got <function",
    ),
    "make_env same": (changed(make_env=lambda: lambda: ONE), "makes a new environment, got the same one twice"),
    "make_env fails": (changed(make_env=lambda: fails), "make_env() raised RuntimeError at test_suite_check"),
    "make_env bare": (changed(make_env=lambda: Bare), "got Bare without ['reset', 'step', 'close']"),
    "close": (with_fault("close raises"), "close raised RuntimeError at test_suite_check"),
    "reset raises": (with_fault("reset raises"), "reset of 'red-train0' raised KeyError at test_suite_check"),
    "reset text": (with_fault("reset text"), "reset: the result must be an Observation, got 'room'"),
    "reset leaks": (
        with_fault("leaks"),
        "got another observation of task 'red-train0' after 0 actions in an environment that",
    ),
    "reset random": (
        with_fault("random"),
        "reset must depend on the task and the actions alone, got another observation",
    ),
    "step raises": (with_fault("step raises"), "step of 'qvz no such action 90125' raised ValueError"),
    "step tuple": (with_fault("step tuple"), "step: the result must be a StepResult, got (Observation("),
    "step after done": (
        with_fault("none after done"),
        "step: StepResult: observation must be an Observation, got None",
    ),
    "step reward": (
        with_fault("reward text"),
        "StepResult: reward must be a finite number within +-1e+15, got '1.0' (str)",
    ),
    "step valid": (
        with_fault("refuses listed"),
        "step must take the actions that admissible_actions lists, got valid=False",
    ),
    "step random": (
        with_fault("random reward"),
        "step must depend on the task and the actions alone, got another reward",
    ),
    "step actions": (
        with_fault("random actions"),
        "got another admissible_actions of task 'red-train0' after 1 actions",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_member_is_told_in_one_sentence(name):
    suite, told = BROKEN[name]
    report = check_suite(suite, TOKENIZER)
    assert not report.ok
    assert any(told in fault for fault in report.faults), str(report)
    assert all("\n" not in fault for fault in report.faults)
    with pytest.raises(ValueError, match="check_suite: suite must keep the contract of TaskSuite, got check_suite of"):
        report.raise_if_wrong()


@pytest.mark.parametrize("missing", ["name", "history_length", "parse", "privileged_context", "make_env"])
def test_a_missing_member_is_named(missing):
    class Partial:
        def __getattr__(self, name):
            if name == missing or name.startswith("__") or name not in dir(ToySuite()):
                raise AttributeError(name)
            return getattr(ToySuite(), name)

    assert check_suite(Partial()).faults == (
        f"Partial.{missing} must be there, got no such member; see turncredit.envs.TaskSuite",
    )


def test_a_fault_of_messages_is_told_once_and_not_as_one_of_a_hook_that_is_not_there():
    for answer in ([{"role": "user", "content": [{"type": "image"}]}], [{"role": "system", "content": "hello"}]):
        report = check_suite(changed(messages=lambda *a, answer=answer: answer), tiny_tokenizer())
        assert [fault.split()[0] for fault in report.faults] in (["messages:"], ["messages"]), str(report)


def test_a_right_suite_passes_with_and_without_a_tokenizer_and_faults_stay_together():
    for suite in (ToySuite(), ToySuite(lenient=True, stop_strings=()), changed(contexts=lambda t: {"hint": None})):
        for tokenizer in (None, TOKENIZER, tiny_tokenizer()):
            report = check_suite(suite, tokenizer)
            report.raise_if_wrong()
            assert str(report) == (
                "check_suite of toy: 10 episodes of 2 tasks of 'train', 2 of them to their end; nothing is wrong"
            )
    assert check_suite(ToySuite(), split="other", episodes=1).played.startswith("5 episodes of 1 tasks of 'other'")
    two = changed(parse=greedy, causal_span="all")
    assert len(check_suite(two).faults) == 2
    assert str(check_suite(two)).count("\n- ") == len(check_suite(two).faults)


MEMBERS = {
    "max_turns": (changed(max_turns="5"), TypeError, r"ToySuite\.max_turns must be a whole number .*, got '5' \(str\)"),
    "history_length": (
        changed(history_length=1.5),
        TypeError,
        r"ToySuite\.history_length must be .*, got 1\.5 \(float\)",
    ),
    "stop_strings": (changed(stop_strings=(None,)), TypeError, r"ToySuite: stop_strings must be .*, got \(None,\)"),
    "make_env": (
        changed(make_env=ToyEnv),
        TypeError,
        r"ToySuite\.make_env must return a factory .*, got <helpers\.toy",
    ),
    "make_env none": (changed(make_env=lambda: None), TypeError, r"ToySuite\.make_env .*, got None \(NoneType\)"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_the_collector_names_the_member_and_what_it_returned(name):
    suite, error, told = MEMBERS[name]
    with pytest.raises(error, match=told):
        RolloutCollector(tiny_model(), tiny_tokenizer(), suite, num_workers=0)


def test_the_collector_takes_task_records_alone():
    with (
        RolloutCollector(tiny_model(), tiny_tokenizer(), ToySuite(), num_workers=0) as rollouts,
        pytest.raises(TypeError, match=r"RolloutCollector\.collect: tasks must be Task records, got 'red' \(str\)"),
    ):
        rollouts.collect(["red"])


def test_an_environment_without_listed_actions_is_played_with_what_parse_makes_of_texts():
    class Unlisted(ToyEnv):
        said: list[str] = []  # noqa: RUF012

        def reset(self, task_id):
            return replace(super().reset(task_id), admissible_actions=())

        def step(self, action):
            self.said.append(action)
            return StepResult(Observation("door"), valid=False)

    assert check_suite(changed(make_env=lambda: Unlisted)).faults == (
        *(fault for fault in check_suite(changed(make_env=lambda: Unlisted)).faults if "pickled" in fault),
    )
    assert {"look", ""} <= set(Unlisted.said)
