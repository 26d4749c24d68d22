import functools

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.envs import ParsedResponse
from turncredit.rollout import PolicyScorer, StopReason, Trajectory, Turn, render_prompt, score_responses
from turncredit.trainers.batch import make_batch
from turncredit.trainers.encoder import HashingEncoder, embed
from turncredit.trainers.methods.align_opsd import correspond
from turncredit.trainers.methods.contexts import hindsight_contexts
from turncredit.trainers.snapshots import TeacherSnapshot
from turncredit.trainers.teacher import score_teacher, teacher_prompts

TOKENIZER = tiny_tokenizer()


def scoring(model):
    return functools.partial(score_responses, PolicyScorer(model), pad_token_id=0, max_tokens=64)


def turn(content, ids, thinking="", action=""):
    messages = ({"role": "user", "content": content},)
    prompt = render_prompt(TOKENIZER, messages)
    return Turn(prompt, tuple(ids), (-1.0,) * len(ids), messages, "r", thinking, action, content)


def trajectory(turns, rollout=0, group=0, success=0.0):
    return Trajectory("red-0", "red", group, rollout, tuple(turns), success, success, StopReason.DONE)


def test_teacher_scores_are_those_of_the_privileged_prompt_and_identical_rows_are_copied():
    model = tiny_model()
    batch = make_batch(
        [trajectory([turn("door", [5, 18]), turn("room", [19])]), trajectory([turn("say", [20, 8, 1])], 1)]
    )
    contexts = ["hint say red", "hint say red", None]
    prompts = teacher_prompts(TOKENIZER, batch, contexts)
    student = torch.full(batch.response_mask.shape, -9.0) * batch.response_mask
    scores = score_teacher(scoring(model), batch, prompts, student, pairs=[(0, 2), (2, 0)])
    expected = score_responses(PolicyScorer(model), prompts, batch.responses, pad_token_id=0)
    torch.testing.assert_close(scores.logprobs[0, :2], expected.logprobs[0, :2], atol=1e-5, rtol=0)
    assert scores.logprobs[2].tolist() == [-9.0, -9.0, -9.0]
    assert (scores.scored, scores.identical, scores.over_length) == (2, 1, 0)
    crossed = score_responses(
        PolicyScorer(model), [prompts[0], prompts[2]], [batch.responses[2], batch.responses[0]], pad_token_id=0
    )
    torch.testing.assert_close(scores.cross[0], crossed.logprobs[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.cross[1, :2], crossed.logprobs[1, :2], atol=1e-5, rtol=0)
    assert scores.cross[1, 2] == 0


def test_an_over_long_teacher_prompt_is_counted_and_never_cut(caplog):
    batch = make_batch([trajectory([turn("door", [5])])])
    prompts = teacher_prompts(TOKENIZER, batch, ["hint " * 50])
    student = torch.full((1, 1), -3.0)
    scores = score_teacher(scoring(tiny_model()), batch, prompts, student, max_length=20)
    assert scores.over_length == 1
    assert scores.logprobs.tolist() == [[-3.0]]
    assert "exceed the model's 20 tokens" in caplog.text


def test_hindsight_is_the_first_successful_sibling():
    def one(rollout, group, success, word):
        return trajectory([turn("door", [5], action=word)], rollout, group, success)

    lost, second, first, lone = one(0, 0, 0.0, "a"), one(2, 0, 1.0, "b"), one(1, 0, 1.0, "c"), one(0, 1, 1.0, "d")
    contexts = hindsight_contexts([lost, second, first, lone])
    assert "Action: c" in contexts[0]
    assert "Action: c" in contexts[1]
    assert "Action: b" in contexts[2]
    assert contexts[3] is None
    assert hindsight_contexts([lost]) == [None]


def test_stale_refreshes_and_ema_by_hand():
    model = tiny_model()
    parameter = dict(model.named_parameters())["model.norm.weight"]
    stale = TeacherSnapshot(model, "stale", refresh_every=3)
    ema = TeacherSnapshot(model, "ema", ema_rate=0.05)
    start = parameter.detach().clone()
    seen = []
    for step in range(5):
        stale.update(step)
        ema.update(step)
        seen.append(float(stale.weights["model.norm.weight"][0] - start[0]))
        with torch.no_grad():
            parameter += 1.0
    assert seen == [0.0, 0.0, 0.0, 3.0, 3.0]
    # four moves towards 1, 2, 3, 4 that keep 95%: 0.05 (4 + 3*.95 + 2*.95^2 + .95^3)
    expected = 0.05 * (4 + 3 * 0.95 + 2 * 0.95**2 + 0.95**3)
    assert float(ema.weights["model.norm.weight"][0] - start[0]) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match='kind must be "stale" or "ema"'):
        TeacherSnapshot(model, "frozen")


def test_swapping_in_restores_the_policy_bit_for_bit_even_after_an_error():
    model, other = tiny_model(0), tiny_model(1)
    snapshot = TeacherSnapshot(model, "stale")
    snapshot.load_state_dict(dict(other.named_parameters()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with snapshot.swapped_in():
        assert torch.equal(model.model.norm.weight, other.model.norm.weight)
        assert torch.equal(model.model.embed_tokens.weight, other.model.embed_tokens.weight)
    with pytest.raises(RuntimeError, match="inside"), snapshot.swapped_in():
        raise RuntimeError("inside")
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


class Counting:
    def __init__(self):
        self.texts = []

    def encode(self, texts):
        self.texts += texts
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float64)


def test_embeddings_are_unit_vectors_and_every_text_is_encoded_once():
    encoder = Counting()
    vectors = embed(encoder, ["a b", "", "a  b", "abcd", " a b\n"])
    assert sorted(encoder.texts) == ["a b", "abcd"]
    torch.testing.assert_close(vectors[0], torch.tensor([3.0, 1.0]) / 10**0.5)
    assert torch.equal(vectors[0], vectors[2])
    assert torch.equal(vectors[0], vectors[4])
    assert vectors[1].tolist() == [0.0, 0.0]
    assert embed(encoder, ["", ""]).shape[0] == 2


def test_a_bad_encoder_is_named():
    class Wrong:
        def __init__(self, value):
            self.value = value

        def encode(self, texts):
            return self.value

    with pytest.raises(ValueError, match=r"one row per text, got shape \(1, 2\) for 2 texts"):
        embed(Wrong(np.zeros((1, 2))), ["a", "b"])
    with pytest.raises(ValueError, match="finite numbers"):
        embed(Wrong(np.full((1, 2), np.nan)), ["a"])


def test_hashing_encoder_tells_the_same_from_another():
    vectors = embed(HashingEncoder(), ["open the fridge", "open the fridge now", "look at the lamp"])
    assert vectors[0] @ vectors[1] > 0.8
    assert vectors[0] @ vectors[2] < 0.3


def test_correspondence_selects_the_sibling_that_thinks_alike_and_the_filter_drops_other_actions():
    first = trajectory([turn("door", [5], "find the red key", "red"), turn("room", [5], "open the door", "green")], 0)
    second = trajectory([turn("door", [5], "find the red key", "red"), turn("room", [5], "say hello", "blue")], 1)
    batch = make_batch([first, second])
    answers = [ParsedResponse(t.thinking, "red", True) for t in batch.turns]
    options, embedded = {"similarity_threshold": 0.8, "top_k": 3}, functools.partial(embed, HashingEncoder())
    _, sources = correspond(batch, answers, embedded, **options)
    assert list(zip(sources.source.tolist(), sources.target.tolist(), strict=True)) == [(2, 0), (0, 2)]
    answers[2] = ParsedResponse("find the red key", "black", True)
    _, kept = correspond(batch, answers, embedded, action_filter=True, **options)
    assert kept.target.tolist() == [2]
    _, none = correspond(
        batch, answers, embedded, action_filter=True, same_target=lambda teacher, student: False, **options
    )
    assert none.target.tolist() == []


def test_webshop_asks_for_the_same_verb_and_click_target():
    from turncredit.envs.webshop import WebShopSuite

    same = WebShopSuite.same_target
    assert same("click[Buy Now]", "click[buy now]")
    assert same("search[red shoe]", "search[blue shoe]")
    assert not same("click[buy now]", "click[next >]")
    assert not same("click[x]", "search[x]")
    assert not same("", "click[x]")


def test_the_toy_suite_gives_a_context():
    suite = ToySuite()
    assert suite.privileged_context(suite.tasks("train")[0]) == "hint say red"
