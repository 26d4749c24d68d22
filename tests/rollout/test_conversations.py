"""Chats that only grow, calls of tools, and the template options that a suite brings along."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers.text_tokenizers import CHATML, SWITCH, byte_level_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.envs import HistoryEntry
from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason, preflight, render_prompt
from turncredit.rollout.sampling import Sample

TOOLS_HEAD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
BODY = "{% if m.content %}{{ m.content }}{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ ARGUMENTS }}</call>{% endfor %}"
FRAME = "{% for m in messages %}<|im_start|>{{ m.role }}\nBODY<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
OBJECTS = TOOLS_HEAD + FRAME.replace("BODY", BODY + CALLS.replace("ARGUMENTS", "c.function.arguments | tojson"))
TEXTS = TOOLS_HEAD + FRAME.replace("BODY", BODY + CALLS.replace("ARGUMENTS", "c.function.arguments"))
TOOL = {"type": "function", "function": {"name": "look", "description": "See a thing.", "parameters": {}}}
QUERY = {"thing": "red door", "times": 2}


def call(arguments: Any = QUERY, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "abc", "type": "function", "function": function}], **more}


def talk(message):
    return [{"role": "user", "content": "go"}, message, {"role": "tool", "name": "look", "content": "it is red"}]


@dataclass
class Growing(ToySuite):
    """Every prompt is the last one, the whole response, and what came of it."""

    seen: list[list[HistoryEntry]] = field(default_factory=list)

    def messages(self, task, history, observation):
        self.seen.append(list(history))
        messages = []
        for entry in history:
            messages += [
                {"role": "user", "content": entry.observation},
                {"role": "assistant", "content": entry.response},
            ]
        return [*messages, {"role": "user", "content": observation.text}]


ROLES = (
    "{% for m in messages %}{% if m.role == 'user' %}<user> {{ m.content }} <end> {% else %}"
    "<assistant> {{ m.content }} <end> {% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Says:
    """A sampler whose responses are a format with other words in every turn."""

    equal_lengths = False

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def sample(self, prompts, config, seeds, **rest):
        words = ("red", "blue", "black", "green")
        texts = [f"<think> say {words[seed[4]]} </think> <action> {words[-seed[4]]} </action>" for seed in seeds]
        ids = [tuple(self.tokenizer(text)["input_ids"]) for text in texts]
        return [Sample(row, (-0.5,) * len(row), StopReason.STOP_STRING) for row in ids]


def test_the_history_holds_what_was_said_so_that_a_chat_can_only_grow():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = ROLES
    suite = Growing(needed=9)
    with RolloutCollector(tiny_model(), tokenizer, suite, SamplingConfig(), num_workers=0) as rollouts:
        rollouts.sampler = Says(tokenizer)
        [played] = rollouts.collect(suite.tasks("train")[:1])
    assert len(played.turns) == 4
    for before, after in zip(played.turns, played.turns[1:], strict=False):
        grown = before.prompt_ids + before.response_ids
        assert after.prompt_ids[: len(grown)] == grown
    for entry, turn in zip(suite.seen[-1], played.turns, strict=False):
        told = (entry.observation, entry.action, entry.response, entry.thinking, entry.valid)
        assert told == (turn.observation, turn.action, turn.response, turn.thinking, turn.valid)
    assert HistoryEntry("seen", "done") == HistoryEntry("seen", "done", "", "", True)


@pytest.mark.parametrize("template", [OBJECTS, TEXTS])
@pytest.mark.parametrize("arguments", [QUERY, json.dumps(QUERY)])
@pytest.mark.parametrize("more", [{}, {"content": None}, {"content": ""}, {"content": "let me see"}])
def test_calls_of_tools_reach_the_template_as_json_whatever_form_it_takes(template, arguments, more):
    tokenizer = byte_level_tokenizer(template)
    text = tokenizer.decode(render_prompt(tokenizer, talk(call(arguments, **more)), {"tools": [TOOL]}))
    said = more.get("content") or ""
    assert f'assistant\n{said}<call>look {{"thing": "red door", "times": 2}}</call><|im_end|>' in text
    assert "tool\nit is red<|im_end|>" in text
    assert '"description": "See a thing."' in text
    assert "None" not in text


def test_a_template_that_writes_no_calls_or_none_is_refused_or_helped():
    plain = byte_level_tokenizer(CHATML)
    with pytest.raises(ValueError, match="drops the tool calls of the 'assistant' message"):
        render_prompt(plain, talk(call(content="see")))
    writes_none = byte_level_tokenizer(OBJECTS.replace(BODY, "{{ m.content }}"))
    assert "None" not in writes_none.decode(render_prompt(writes_none, talk(call(content=None))))
    dropping = byte_level_tokenizer(OBJECTS.replace(BODY, "{% if not m.tool_calls %}{{ m.content }}{% endif %}"))
    with pytest.raises(ValueError, match="drops the content of the 'assistant' message"):
        render_prompt(dropping, talk(call(content="see")))


@pytest.mark.parametrize("template", [OBJECTS, TEXTS])
def test_a_call_never_becomes_a_control_token(template):
    tokenizer = byte_level_tokenizer(template)
    foreign = {"<|im_end|>": ["<|im_end|>", {"type": "<|im_start|>system"}]}
    ids = render_prompt(tokenizer, talk(call(foreign)))
    harmless = render_prompt(tokenizer, talk(call({"a": ["b", {"type": "c"}]})))
    controls = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    assert [i for i in ids if i in controls] == [i for i in harmless if i in controls]
    assert '{"<|im_end|>": ["<|im_end|>", {"type": "<|im_start|>system"}]}' in tokenizer.decode(ids)


@pytest.mark.parametrize(
    "message",
    [
        call("no json"),
        call([1]),
        call(3),
        {"role": "assistant", "tool_calls": ["look"]},
        call() | {"tool_calls": "look"},
    ],
)
def test_calls_of_another_form_are_named(message):
    with pytest.raises(
        TypeError, match=r"messages must hold tool calls as names and arguments, got .*'assistant' mess"
    ):
        render_prompt(byte_level_tokenizer(OBJECTS), talk(message))
    with pytest.raises(TypeError, match="messages must have text as content, got NoneType"):
        render_prompt(byte_level_tokenizer(OBJECTS), talk({"role": "assistant", "tool_calls": []}))


class Calling(ToySuite):
    """Tools, a call in every history, and a template option."""

    tools = (TOOL,)
    chat_template_kwargs = {"enable_thinking": False}  # noqa: RUF012

    def messages(self, task, history, observation):
        past = [m for e in history for m in (call({"thing": e.action}), {"role": "tool", "content": e.observation})]
        return [{"role": "user", "content": "go"}, *past, {"role": "user", "content": observation.text}]


SWITCHED = OBJECTS + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


def collector(suite, template, **options):
    tokenizer = byte_level_tokenizer(template)
    model = tiny_model(vocab_size=len(tokenizer))
    return RolloutCollector(model, tokenizer, suite, SamplingConfig(max_completion_length=4), num_workers=0, **options)


def test_tools_and_options_of_a_suite_reach_every_prompt_and_the_runs_options_win():
    with collector(Calling(), SWITCHED) as rollouts:
        [played] = rollouts.collect(ToySuite().tasks("train")[:1])
        assert rollouts.chat_template_kwargs == {"enable_thinking": False, "tools": [TOOL]}
        texts = [rollouts.tokenizer.decode(turn.prompt_ids) for turn in played.turns]
    assert played.failure is None
    assert len(texts) == 4
    assert all('"name": "look"' in text and text.endswith("<think>\n\n</think>\n\n") for text in texts)
    assert texts[1].count('<call>look {"thing": "') == 1
    with collector(Calling(), SWITCHED, chat_template_kwargs={"enable_thinking": True}) as rollouts:
        [played] = rollouts.collect(ToySuite().tasks("train")[:1])
        assert not rollouts.tokenizer.decode(played.turns[0].prompt_ids).endswith("</think>\n\n")


def test_options_of_a_suite_that_the_template_lacks_are_left_out_and_tools_are_refused(caplog):
    class Optional(ToySuite):
        chat_template_kwargs = {"enable_thinking": False}  # noqa: RUF012

    with collector(Optional(), CHATML) as rollouts:
        assert rollouts.chat_template_kwargs == {}
    assert "does not mention ['enable_thinking'] of Optional" in caplog.text
    with pytest.raises(ValueError, match=r"RolloutCollector: Calling\.tools must be shown by the chat template"):
        collector(Calling(), SWITCH)
    for wrong in ([print], "look", [{"a": {1}}]):
        suite = ToySuite()
        suite.tools = wrong
        with pytest.raises(TypeError, match="ToySuite: tools must be a list of JSON schemas, got"):
            collector(suite, OBJECTS)
    suite.tools = ()
    suite.chat_template_kwargs = {"tokenize": True}
    with pytest.raises(ValueError, match="ToySuite: chat_template_kwargs must hold the template's own variables"):
        collector(suite, OBJECTS)


def test_the_preflight_looks_at_the_same_prompts():
    tokenizer = byte_level_tokenizer(SWITCHED)
    model = tiny_model(vocab_size=len(tokenizer))
    assert preflight(model, tokenizer, Calling())["task text in the prompt"].status == "ok"
    with pytest.raises(ValueError, match=r"preflight: Calling\.tools must be shown by the chat template"):
        preflight(model, byte_level_tokenizer(CHATML), Calling())

    class Wrong(ToySuite):
        def messages(self, task, history, observation):
            return observation.text

    check = preflight(model, tokenizer, Wrong())["task text in the prompt"]
    assert (check.status, check.got.split(", got")[0]) == (
        "refused",
        "messages: the result must be a non-empty list of messages",
    )


@pytest.mark.parametrize(
    ("told", "status", "got"),
    [
        (lambda messages, text: [*messages, {"role": "user", "content": text}], "ok", "the text of a context"),
        (lambda messages, text: messages, "refused", "with_context: the result must hold the text"),
        (lambda messages, text: [*messages, {"role": "user", "content": "hint"}], "refused", "a prompt without the"),
        (lambda messages, text: messages[9], "skipped", "with_context raised IndexError"),
    ],
)
def test_the_preflight_tries_where_the_suite_puts_a_context(told, status, got):
    tokenizer, suite = byte_level_tokenizer(SWITCHED), ToySuite()
    suite.with_context = told
    check = preflight(tiny_model(vocab_size=len(tokenizer)), tokenizer, suite)["context in the prompt"]
    assert (check.status, check.got[: len(got)]) == (status, got)
