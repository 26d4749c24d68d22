"""Imported traces under a model: ids in the template's own frame, log-probs by hand, batches of them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from helpers import trace_files as files
from helpers.text_tokenizers import CHATML, KINDS, OPENS, byte_level_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer

from turncredit.credit import CreditInputs, get_credit
from turncredit.rollout import (
    render_prompt,
    score_traces,
    tokenize_traces,
    trajectories_from,
    with_privileged_context,
)

TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}{% for c in "
    "m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}<assistant> "
    "{% endif %}"
)
THINKS = CHATML.replace("{{ m['content'] }}", "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\n"
                        "{% endif %}{{ m['content'] }}")  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer(TOOLS)


@pytest.fixture(scope="module")
def model():
    return tiny_model(vocab_size=512, eos_token_id=None)


def chat(*texts, **more):
    messages = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(texts)]
    return {"messages": messages, "reward": 1.0, **more}


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_response_are_the_rendering_of_the_template(kind):
    tokenizer = KINDS[kind](TOOLS)
    for trajectory in tokenize_traces(trajectories_from(files.OPENAI), tokenizer):
        for turn in trajectory.turns:
            rendered = tokenizer.apply_chat_template([*turn.messages, turn.message], tokenize=False)
            ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
            assert list(turn.prompt_ids + turn.response_ids) == ids[: len(turn.prompt_ids + turn.response_ids)]
            assert tokenizer.decode(ids[len(turn.prompt_ids + turn.response_ids) :]).strip() == ""
            assert turn.response_ids[-1] == tokenizer.eos_token_id
            assert turn.prompt_ids == render_prompt(tokenizer, turn.messages)


def spelled(tokenizer, turn, name):
    span = getattr(turn, name)
    return None if span is None else tokenizer.decode(turn.response_ids[slice(*span)])


def test_spans_are_those_of_thinking_and_action(tokenizer):
    first, last = tokenize_traces(trajectories_from(files.OPENAI[:1]), tokenizer)[0].turns
    assert spelled(tokenizer, first, "action_tokens") == '<call>look {"at": "door"}</call>'
    assert first.response == '<call>look {"at": "door"}</call>'
    assert spelled(tokenizer, last, "action_tokens") == "open red"
    both = [files.GO, files.said("I look", files.LOOK)]
    turn = tokenize_traces(trajectories_from({"messages": both, "reward": 1}), tokenizer)[0].turns[0]
    assert spelled(tokenizer, turn, "action_tokens") == '<call>look {"at": "door"}</call>'
    thinks = chat("go", "<think>red?</think>\n<action>open red</action>")
    turn = tokenize_traces(trajectories_from(thinks), tokenizer)[0].turns[0]
    assert spelled(tokenizer, turn, "thinking_tokens").strip("<>") == "red?"
    assert "open red" in spelled(tokenizer, turn, "action_tokens")
    apart = [files.GO, {**files.said("open red"), "reasoning_content": "red?"}]
    turn = tokenize_traces(trajectories_from({"messages": apart, "reward": 1}), byte_level_tokenizer(THINKS))[0].turns[
        0
    ]
    assert turn.response == "<think>red?</think>\nopen red"


@pytest.mark.parametrize("text", ["\n\nred", "a <|im_end|> b<|im_start|>user\nno", "né 🚪 door", " red ", "x\n"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_every_kind_keep_what_they_say(kind, text):
    tokenizer = KINDS[kind]()
    turn = tokenize_traces(trajectories_from(chat("go", text)), tokenizer)[0].turns[0]
    assert turn.response.strip() == text.strip()
    assert turn.response_ids.count(tokenizer.eos_token_id) == 1
    assert turn.response_ids[-1] == tokenizer.eos_token_id


def test_a_template_in_whose_frame_the_message_does_not_stand_is_refused(caplog):
    traces = trajectories_from([chat("go", "red")])
    with pytest.raises(ValueError, match=r"trajectory 0 \(task 'task 0'\): message must be written behind the "
                                         r"generation prompt '.*<think>.*set chat_template_kwargs"):  # fmt: skip
        tokenize_traces(traces, byte_level_tokenizer(OPENS))
    with pytest.raises(ValueError, match="message must be written behind the generation prompt"):
        tokenize_traces(traces, tiny_tokenizer())  # every message is the user's
    knows = tiny_tokenizer()
    knows.chat_template = ROLES
    with pytest.raises(ValueError, match="of tokens that the tokenizer knows, got '<unk>' for a part of 'crimson'"):
        tokenize_traces(trajectories_from([chat("open", "crimson")]), knows)
    apart = {"messages": [files.GO, {**files.said("red"), "reasoning_content": "hm"}], "reward": 1}
    with pytest.raises(ValueError, match="the chat template drops its reasoning_content, 'hm'"):
        tokenize_traces(trajectories_from(apart), byte_level_tokenizer())
    mixed = trajectories_from([apart, chat("go", "red")])
    with caplog.at_level(logging.WARNING):
        kept = tokenize_traces(mixed, byte_level_tokenizer(), on_error="skip")
    assert ([t.turns[0].response for t in kept], [skip.place for skip in kept.skipped]) == (["red"], [0])
    assert "1 trajectories were left out: message must be written whole" in caplog.text
    with pytest.raises(ValueError, match="trajectories must not be empty, got none of 1, the first for: message must"):
        tokenize_traces(mixed[:1], byte_level_tokenizer(), on_error="skip")


@torch.no_grad()
def plainly(model, prompt, response, temperature=1.0):
    logits = model(torch.tensor([[*prompt, *response]])).logits[0].float() / temperature
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]


def test_log_probs_are_the_models_under_both_contexts(tokenizer, model):
    traces = trajectories_from([*files.OPENAI, chat("open it", "blue", task_id="other")])
    told = {"door": "The door is red."}
    scored = score_traces(traces, model, tokenizer, context=told, temperature=0.7)
    for trajectory in scored:
        for turn in trajectory.turns:
            close(turn.logprobs, plainly(model, turn.prompt_ids, turn.response_ids, 0.7))
            messages = list(turn.messages)
            if trajectory.task_id in told:
                messages = with_privileged_context(messages, told[trajectory.task_id])
            close(turn.teacher_logprobs, plainly(model, render_prompt(tokenizer, messages), turn.response_ids, 0.7))
    other = scored[2].turns[0]
    assert other.teacher_logprobs == pytest.approx(other.logprobs, abs=1e-5)
    same = score_traces(traces, model, tokenizer, context=lambda t: told.get(t.task_id), temperature=0.7)
    assert [t.turns for t in same] == [t.turns for t in scored]
    alone = score_traces(traces, model, tokenizer)
    assert {turn.teacher_logprobs for t in alone for turn in t.turns} == {None}
    again = score_traces(alone, model, tokenizer)
    assert [u.response_ids for t in again for u in t.turns] == [u.response_ids for t in alone for u in t.turns]


def close(found, expected):
    torch.testing.assert_close(torch.tensor(found), expected, atol=2e-5, rtol=0)


def test_a_context_that_says_nothing_is_refused(tokenizer, model):
    traces = trajectories_from(files.OPENAI)
    with pytest.raises(
        ValueError, match="context must give a text for a trajectory, got none for 2, the first of task 'door'"
    ):
        score_traces(traces, model, tokenizer, context={"dor": "red"})
    with pytest.raises(TypeError, match="context must give text, got int for task 'door'"):
        score_traces(traces, model, tokenizer, context=lambda t: 3)


@pytest.fixture(scope="module")
def scored(tokenizer, model):
    return score_traces(trajectories_from(files.OPENAI), model, tokenizer, context="The door is red.")


def test_a_batch_holds_what_the_records_say(scored):
    inputs = CreditInputs.from_trajectories(scored)
    turns = [turn for t in scored for turn in t.turns]
    assert inputs.trajectory_ids.tolist() == [0, 0, 1, 1, 1]
    assert inputs.turn_ids.tolist() == [0, 1, 0, 1, 2]
    assert inputs.group_ids.tolist() == [0, 0]
    assert (inputs.rewards.tolist(), inputs.successes.tolist()) == ([1, 0], [1, 0])
    assert inputs.response_mask.sum(1).tolist() == [len(turn.response_ids) for turn in turns]
    assert inputs.turn_rewards.tolist() == [0, 1, 0, 0, 0]
    assert inputs.anchor_ids.tolist() == [0, 1, 0, 1, 2]
    assert inputs.valid_actions.all()
    for name, own in (("student_logprobs", "logprobs"), ("teacher_logprobs", "teacher_logprobs")):
        values = getattr(inputs, name)
        assert not values[~inputs.response_mask].any()
        assert values[inputs.response_mask].tolist() == [x for turn in turns for x in getattr(turn, own)]
    spans = [range(*turn.action_tokens) for turn in turns]
    assert [row.nonzero()[:, 0].tolist() for row in inputs.span_mask] == [list(span) for span in spans]
    for method in ("grpo", "agent_opsd", "gigpo", "rlsd", "step_opsd"):
        assert get_credit(method)(inputs).advantages.shape == inputs.response_mask.shape
    assert CreditInputs.from_trajectories(scored, teacher_logprobs=None).teacher_logprobs is None
    more = CreditInputs.from_trajectories(scored, values=torch.ones(5))
    assert more.values.tolist() == [1.0] * 5


def test_replayed_turns_have_no_row_and_bare_records_no_signals(scored):
    part = CreditInputs.from_trajectories([replace(scored[0], replayed=1), scored[1]])
    assert part.turn_ids.tolist() == [0, 0, 1, 2]
    plain = [replace(u, teacher_logprobs=None, action_tokens=None, observation="") for u in scored[1].turns]
    bare = [replace(t, turns=tuple(plain)) for t in (scored[1], scored[1])]
    inputs = CreditInputs.from_trajectories(bare)
    assert (inputs.teacher_logprobs, inputs.span_mask, inputs.anchor_ids) == (None, None, None)


def with_turn(scored, **changes):
    return [replace(scored[0], turns=(replace(scored[0].turns[0], **changes), scored[0].turns[1])), scored[1]]


def test_what_no_batch_can_be_made_of_is_refused(scored, tokenizer):
    make, imported = CreditInputs.from_trajectories, trajectories_from(files.OPENAI)
    with pytest.raises(ValueError, match="trajectories must not be empty"):
        make([])
    with pytest.raises(ValueError, match=r"must have token ids, got a turn without any in 0 \(task 'door'\); imported"):
        make(imported)
    with pytest.raises(ValueError, match="must have log-probs, got 0 for every token"):
        make(tokenize_traces(imported, tokenizer))
    with pytest.raises(ValueError, match=r"must not be failed ones, got 'lost' for 1 \(task 'door'\)"):
        make([scored[0], replace(scored[1], failure="lost")])
    with pytest.raises(ValueError, match=r"must have turns of their own, got none in 0"):
        make([replace(scored[0], replayed=2)])
    with pytest.raises(ValueError, match="teacher_logprobs in all turns or in none, got them in 4 of 5"):
        make(with_turn(scored, teacher_logprobs=None))
    high = (0.5, *scored[0].turns[0].logprobs[1:])
    for name in ("logprobs", "teacher_logprobs"):
        with pytest.raises(ValueError, match=rf"{name} must be at most 0, got 0.5 in row 0; give logarithms"):
            make(with_turn(scored, **{name: high}))


def test_what_may_be_meant_is_warned_of_once(scored):
    with pytest.warns(UserWarning, match="group_ids must give groups more than one trajectory, got 2 groups of one"):
        CreditInputs.from_trajectories([scored[0], replace(scored[1], group_id=5)])
    with pytest.warns(UserWarning, match="turn_rewards must sum to rewards, got 1.5 for 1 in trajectory 0, and 1 such"):
        CreditInputs.from_trajectories(with_turn(scored, reward=0.5))
