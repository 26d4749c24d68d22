"""Privileged contexts by name, and the suite's word on where they go."""

from __future__ import annotations

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.envs import Task
from turncredit.rollout import RolloutCollector, SamplingConfig, context_text, informed

TOKENIZER = tiny_tokenizer()
TASK = ToySuite().tasks("train")[0]


class Named(ToySuite):
    """A hint and skills, and a place of its own for them."""

    def contexts(self, task):
        return {"skills": "open door", "hint": f"key {task.type}", "none": None, "empty": ""}


class Placing(Named):
    def with_context(self, messages, text):
        messages[-1]["content"] += f" {text}"
        return messages


def collect(suite, **options):
    with RolloutCollector(tiny_model(), TOKENIZER, suite, SamplingConfig(max_completion_length=4), num_workers=0) as c:
        return c.collect([TASK], **options)


def test_a_context_is_read_by_its_name_and_several_are_joined():
    suite = Named()
    assert context_text(suite, TASK, "privileged") == "hint say red"
    assert context_text(suite, TASK, "hint") == "key red"
    assert context_text(suite, TASK, "skills+hint") == "open door\n\nkey red"
    assert context_text(suite, TASK, "privileged + none + skills") == "hint say red\n\nopen door"
    assert context_text(suite, TASK, "none") is None
    assert context_text(suite, TASK, "none+empty") is None
    assert context_text(ToySuite(), TASK, "privileged") == "hint say red"


@pytest.mark.parametrize("name", ["hnt", "skills+hnt"])
def test_an_unknown_name_is_told_with_those_that_there_are(name):
    told = r"context of the suite 'toy', one of \['skills', 'hint', 'none', 'empty', 'privileged'\], got 'hnt'; did you"
    with pytest.raises(ValueError, match=told + " mean 'hint'"):
        context_text(Named(), TASK, name)
    with pytest.raises(ValueError, match=told):
        collect(Named(), context=name)
    with pytest.raises(ValueError, match=r"one of \['privileged'\], got 'skills'; see its contexts"):
        collect(ToySuite(), context="skills")
    with pytest.raises(TypeError, match="name must be a str, got 3"):
        collect(ToySuite(), context=3)


def test_the_policy_reads_the_context_that_is_named():
    prompts = {
        name: TOKENIZER.decode(collect(Named(), context=name)[0].turns[0].prompt_ids)
        for name in (None, "hint", "skills+hint", "none", "privileged")
    }
    assert [name for name, prompt in prompts.items() if "key red" in prompt] == ["hint", "skills+hint"]
    assert [name for name, prompt in prompts.items() if "open door" in prompt] == ["skills+hint"]
    assert prompts[None] == prompts["none"]
    assert collect(Named(), privileged=True) == collect(Named(), context="privileged")
    with pytest.raises(ValueError, match="context must be left out beside privileged=True, got 'hint'"):
        collect(Named(), privileged=True, context="hint")


def test_the_suite_says_where_a_context_goes_and_the_record_stays_plain():
    [played] = collect(Placing(), context="hint")
    for turn in played.turns:
        assert TOKENIZER.decode(turn.prompt_ids).endswith("key red <end> <assistant>")
        assert "key red" not in turn.messages[-1]["content"]  # though the hook changed what it was given
        assert informed(Placing(), turn.messages, "key red")[-1]["content"].endswith("key red")
        assert "key red" not in turn.messages[-1]["content"]


def test_without_a_hook_or_a_text_messages_are_as_ever():
    messages = [{"role": "user", "content": "door"}]
    assert informed(ToySuite(), messages, "key") == [{"role": "user", "content": "key\n\ndoor"}]
    assert informed(None, messages, "key") == informed(ToySuite(), messages, "key")
    assert informed(Placing(), messages, None) == messages
    assert messages == [{"role": "user", "content": "door"}]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (["hint"], "contexts: the result must be a mapping from names to texts, got ['hint'] (list)"),
        ({"hint": 3}, "contexts: 'hint' must be a str or None, got 3 (int)"),
        ({"hint": ["a"]}, "contexts: 'hint' must be a str or None, got ['a'] (list)"),
    ],
)
def test_contexts_that_are_no_texts_fail_the_episode(answer, told):
    class Wrong(ToySuite):
        def contexts(self, task):
            return answer

    [played] = collect(Wrong(), context="hint")
    assert played.failure == f"suite_error: {told}"
    with pytest.raises(TypeError, match=r"^contexts: "):
        context_text(Wrong(), TASK, "hint")


def test_a_context_that_one_task_lacks_fails_that_episode_alone():
    class Partly(Named):
        def contexts(self, task):
            return {"hint": "key"} if task.type == "red" else {}

    with RolloutCollector(tiny_model(), TOKENIZER, Partly(), SamplingConfig(), num_workers=0) as rollouts:
        red, green = rollouts.collect([TASK, Task("green-1", "green")], context="hint")
    assert red.failure is None
    assert green.failure.startswith("suite_error: contexts raised UnknownContext at contexts.py")


def test_a_context_of_blanks_is_none():
    class Blank(ToySuite):
        def privileged_context(self, task):
            return ""

        def contexts(self, task):
            return {"hint": " \n"}

    suite = Blank()
    assert context_text(suite, TASK, "hint") is context_text(suite, TASK, "privileged") is None
    told = [collect(suite, context=name)[0].turns[0].prompt_ids for name in (None, "hint", "privileged")]
    assert told[0] == told[1] == told[2]
    messages = [{"role": "user", "content": "door"}]
    assert informed(suite, messages, "") == messages


@pytest.mark.parametrize("fault", ["raises", "text"])
def test_a_hook_that_goes_wrong_fails_its_episode(fault):
    class Wrong(ToySuite):
        def with_context(self, messages, text):
            return messages[3] if fault == "raises" else "a prompt"

    [played] = collect(Wrong(), privileged=True)
    told = {
        "raises": "with_context raised IndexError at test_contexts.py",
        "text": "with_context: the result must be a non-empty list of messages, got 'a prompt'",
    }
    assert played.failure.startswith(f"suite_error: {told[fault]}")
