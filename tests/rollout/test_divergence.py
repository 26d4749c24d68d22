"""Divergences over the whole vocabulary: by hand, in chunks, with shared prefixes, their gradient."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.tiny import tiny_model

from turncredit.rollout.divergence import divergence
from turncredit.rollout.packing import pack, pack_rows, plan_packs
from turncredit.rollout.scoring import PolicyScorer

PROMPTS = [(3, 4, 5), (3, 4, 5), (3, 4), (7, 8, 9, 10)]
TOLD = [(11, 3, 4, 5), (11, 3, 4, 5), (12, 12, 3, 4), (13, 7, 8, 9, 10)]
RESPONSES = [(6, 7, 1), (6, 8), (9, 9, 9, 1), (5,)]


def logs(*rows):
    return torch.tensor(rows).log()


def test_by_hand():
    p, q = logs([0.5, 0.5, 0.0]), logs([0.25, 0.5, 0.25])
    half = 0.5 * math.log(2)
    assert divergence(p, q, "reverse").item() == pytest.approx(half)
    both = 0.25 * math.log(0.5)
    p, q = logs([0.5, 0.25, 0.25]), logs([0.25, 0.5, 0.25])
    assert divergence(p, q, "forward").item() == pytest.approx(both + 0.5 * math.log(2))
    assert divergence(q, q, "reverse").item() == 0
    ruled_out = logs([0.5, 0.5, 0.0]).requires_grad_()
    divergence(ruled_out, logs([0.5, 0.25, 0.25]), "reverse").sum().backward()
    assert bool(ruled_out.grad.isfinite().all())
    assert divergence(logs([0.5, 0.5, 0.0]), logs([0.5, 0.5, 0.0]), "forward").item() == 0  # nobody's word
    p, q = logs([0.5, 0.3, 0.2]), logs([0.2, 0.7, 0.1])
    kl, *found = divergence(p, q, "compare", torch.tensor([2]))[0].tolist()
    assert kl == pytest.approx(0.5 * math.log(2.5) + 0.3 * math.log(3 / 7) + 0.2 * math.log(2))
    # q of the sampled token; p of the likeliest of p, of q; q of them; the tokens
    assert [math.exp(one) for one in found[:5]] == pytest.approx([0.1, 0.5, 0.3, 0.2, 0.7])
    assert found[5:] == [0, 1]


def naive(model, teacher, temperature, kind):
    """Row by row, with all logits."""
    found = []
    for prompt, told, response in zip(PROMPTS, TOLD, RESPONSES, strict=True):
        logits = []
        for which, start in ((model, prompt), (teacher, told)):
            ids = torch.tensor([[*start, *response]])
            logits.append((which(ids).logits[0, len(start) - 1 : -1] / temperature).log_softmax(-1))
        found.append(divergence(logits[0], logits[1].detach(), kind))
    return torch.cat(found)


def hidden_of(scorer, prompts):
    with torch.no_grad():
        packed = pack_rows(prompts, RESPONSES, 0)
        return scorer(*packed.inputs(1.0, False, 0, ("hidden",)))[2]["hidden"]


@pytest.mark.parametrize("kind", ["reverse", "forward"])
@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("shared", [False, True])
def test_chunks_and_shared_prefixes_give_what_whole_logits_give(kind, another, chunk, shared):
    model = tiny_model(0)
    teacher = tiny_model(1, hidden_size=48) if another else model
    scorer = PolicyScorer(model, chunk_tokens=chunk)
    if another:
        scorer.beside = (PolicyScorer(teacher),)
    hidden = hidden_of(scorer.beside[0] if another else scorer, TOLD)
    packs = [(pack_rows(PROMPTS, RESPONSES, 0), range(4))]
    if shared:
        plan = plan_packs(PROMPTS, RESPONSES, 10_000, branches=True, attention_cost=1e-3)
        packs = [(pack(part, PROMPTS, RESPONSES, 0), part.rows) for part in plan]
        assert any(packed.picks is not None for packed, _ in packs)
    ends = torch.tensor([len(r) for r in RESPONSES]).cumsum(0)
    rows = [torch.arange(int(e) - len(r), int(e)) for e, r in zip(ends, RESPONSES, strict=True)]
    model.zero_grad()
    for packed, order in packs:
        index = torch.cat([rows[row] for row in order])
        found = scorer(*packed.inputs(0.7, False, 5, ()), teacher_hidden=hidden[index], kind=kind)[2]["divergence"]
        torch.testing.assert_close(found, naive(model, teacher, 0.7, kind)[index], rtol=0, atol=1e-5)
        found.sum().backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    naive(model, teacher, 0.7, kind).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_a_teacher_that_is_the_student_is_nowhere_apart():
    scorer = PolicyScorer(tiny_model(0), chunk_tokens=4)
    packed = pack_rows(PROMPTS, RESPONSES, 0)
    outputs = scorer(*packed.inputs(1.0, False, 0, ()), teacher_hidden=hidden_of(scorer, PROMPTS), kind="reverse")[2]
    assert float(outputs["divergence"].detach().abs().max()) < 1e-6
    outputs["divergence"].sum().backward()
    assert max(float(p.grad.abs().max()) for p in scorer.parameters() if p.grad is not None) < 1e-5


def test_nothing_else_changes():
    scorer = PolicyScorer(tiny_model(0), chunk_tokens=3)
    packed = pack_rows(PROMPTS, RESPONSES, 0)
    plain = scorer(*packed.inputs(0.9, True, 0, ()))
    beside = scorer(*packed.inputs(0.9, True, 0, ()), teacher_hidden=hidden_of(scorer, TOLD), kind="compare")
    assert torch.equal(plain[0], beside[0])
    assert torch.equal(plain[1], beside[1])
    assert beside[2]["divergence"].shape == (len(packed.targets), 8)
