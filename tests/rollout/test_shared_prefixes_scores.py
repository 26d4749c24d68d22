"""Scores, entropies and outputs of modules where prefixes are shared: those of separate rows, and their gradients."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.gradient_cases import heads
from helpers.prefix_cases import WORKLOADS, Rows, chains, mixed, siblings, trie
from helpers.shared_prefixes import apart, close, scorer_of, weight_gradients
from helpers.tiny import tiny_model
from torch import nn

from turncredit.rollout import score_responses
from turncredit.rollout.packing import pack, plan_packs

QUICK = ("siblings", "duplicates", "trie", "mixed")


def scores_of(scorer, rows: Rows, share: bool, **options):
    return score_responses(scorer, rows.prompts, rows.responses, pad_token_id=0, share_prefixes=share, **options)


def assert_same_scores(ours, theirs, tolerance=1e-5):
    assert torch.equal(ours.mask, theirs.mask)
    assert ours.logprobs.shape == theirs.logprobs.shape
    pairs = [(ours.logprobs, theirs.logprobs)]
    assert (ours.entropy is None) == (theirs.entropy is None)
    if ours.entropy is not None:
        pairs.append((ours.entropy, theirs.entropy))
    assert ours.outputs.keys() == theirs.outputs.keys()
    pairs += [(ours.outputs[name], theirs.outputs[name]) for name in ours.outputs]
    for got, want in pairs:
        assert got.shape == want.shape
        assert not got[~ours.mask].any()
        assert apart(got, want) < tolerance
        assert close(got, want, tolerance)


@pytest.mark.parametrize("branches", [True, False], ids=["trees", "chains"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_scores_are_those_of_separate_rows(workload, branches):
    scorer = scorer_of(tiny_model(), heads(), branches=branches)
    for seed in range(2):
        rows = WORKLOADS[workload](seed)
        options = {"entropy": True, "modules": ("value", "spare")}
        assert_same_scores(scores_of(scorer, rows, True, **options), scores_of(scorer, rows, False, **options))


def test_scores_are_those_of_the_model_row_by_row():
    """Against the model's own logits, without anything of this library in between."""
    model, rows = tiny_model(), mixed(1)
    scores = scores_of(scorer_of(model), rows, True, temperature=0.6, entropy=True, max_tokens=300)
    for i, (prompt, response) in enumerate(zip(rows.prompts, rows.responses, strict=True)):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / 0.6
        log_all = logits.log_softmax(-1)
        assert close(scores.logprobs[i, : len(response)], log_all[range(len(response)), list(response)])
        assert close(scores.entropy[i, : len(response)], -(log_all.exp() * log_all).sum(-1))


@pytest.mark.parametrize("workload", QUICK)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.3},
        {"temperature": 0.0},
        {"max_tokens": 1},
        {"max_tokens": 25},
        {"max_tokens": 60, "temperature": 1.7},
        {"chunk_tokens": 1},
        {"chunk_tokens": 3, "max_tokens": 40},
    ],
    ids=str,
)
def test_under_every_option_of_scoring(workload, options):
    """A budget smaller than a tree cuts it; chunks cut its places."""
    options = dict(options)
    scorer = scorer_of(tiny_model(), heads(), chunk_tokens=options.pop("chunk_tokens", 4096))
    rows = WORKLOADS[workload](4)
    wanted = {"entropy": True, "modules": ("value",), **options}
    assert_same_scores(scores_of(scorer, rows, True, **wanted), scores_of(scorer, rows, False, **wanted))


def test_no_row_no_score():
    scorer = scorer_of(tiny_model(), heads())
    for share in (True, False):
        scores = scores_of(scorer, Rows([], [], []), share, entropy=True, modules=("value",))
        assert scores.logprobs.shape == scores.entropy.shape == (0, 0)
        assert scores.outputs["value"].shape[0] == 0


def test_the_order_of_the_rows_is_theirs():
    scorer, rows = scorer_of(tiny_model()), mixed(2)
    order = random.Random(5).sample(range(len(rows)), len(rows))
    whole = scores_of(scorer, rows, True)
    assert apart(scores_of(scorer, rows.select(order), True).logprobs, whole.logprobs[order]) < 1e-5


def test_scoring_twice_gives_the_same_bits():
    scorer, rows = scorer_of(tiny_model()), mixed(3)
    first, second = (scores_of(scorer, rows, True, max_tokens=150, entropy=True) for _ in range(2))
    assert torch.equal(first.logprobs, second.logprobs)
    assert torch.equal(first.entropy, second.entropy)


def test_a_model_in_training_mode_is_scored_without_dropout_and_left_in_training_mode():
    model, rows = tiny_model(attention_dropout=0.5), siblings(1)
    expected = scores_of(scorer_of(tiny_model()), rows, False)
    scorer = scorer_of(model)
    scorer.train()
    assert_same_scores(scores_of(scorer, rows, True), expected)
    assert scorer.training
    assert model.training


def test_shared_places_are_visited_once():
    """Logits are made for different places only, whatever number of rows asks for them."""
    model = tiny_model()
    rows = Rows([(3, 4, 5)] * 6, [(6, 7), (6, 7), (6, 8), (6, 9), (6, 7), (5, 7)], list(range(6)))
    scorer = scorer_of(model)
    sizes = []
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: sizes.append(output.shape))
    shared = scores_of(scorer, rows, True)
    assert sum(shape[:-1].numel() for shape in sizes) == 3  # after the prompt, after 6 and after 5
    sizes.clear()
    separate = scores_of(scorer, rows, False)
    assert sum(shape[:-1].numel() for shape in sizes) == 12
    assert_same_scores(shared, separate)


def test_processes_that_must_keep_in_step_make_equally_many_calls():
    """Counts that are agreed are those of what is visited: places, not targets."""
    model, rows = tiny_model(), trie(0)
    scorer = scorer_of(model, chunk_tokens=4)
    plain = scores_of(scorer, rows, True, max_tokens=60)
    visits, asked = [], []
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: visits.append(len(output)))

    def agree(counts):
        asked.append(list(counts))
        return [counts[0] + 2, counts[1] + 1]

    for given in (rows, Rows([], [], [])):
        visits.clear()
        scores = scores_of(scorer, given, True, max_tokens=60, agree=agree)
        batches, chunks = asked[-1]
        assert len(visits) == (batches + 2) * (chunks + 1)
        if len(given):
            assert_same_scores(scores, plain)
    packs = [pack(entry, rows.prompts, rows.responses, 0, "cpu") for entry in plain.packs]
    places, targets = (max(-(-len(getattr(p, name)) // 4) for p in packs) for name in ("positions", "targets"))
    assert asked == [[len(packs), places], [0, 1]]
    assert places < targets


class Doubled(nn.Module):
    """A module without weights whose output has two dimensions."""

    def forward(self, hidden):
        return torch.stack([hidden, 2 * hidden], 1)


def test_outputs_of_any_shape_stand_at_every_target():
    scorer, rows = scorer_of(tiny_model(), {"doubled": Doubled()}), trie(5)
    options = {"modules": ("doubled",), "max_tokens": 70}
    ours, theirs = (scores_of(scorer, rows, share, **options) for share in (True, False))
    assert ours.outputs["doubled"].shape == (len(rows), ours.mask.shape[1], 2, 32)
    assert_same_scores(ours, theirs)


def total_loss(scorer, rows: Rows, share: bool, max_tokens: int = 10**6, temperature: float = 0.8):
    """Every target with a weight of its own, on log-prob, entropy and value at once, in one number with gradient."""
    width = max(map(len, rows.responses))
    weights = torch.randn(3, len(rows), width, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(())
    plan = plan_packs(
        rows.prompts, rows.responses, max_tokens, branches=scorer.branches, attention_cost=0.0, share=share
    )
    for entry in plan:
        packed = pack(entry, rows.prompts, rows.responses, 0, "cpu")
        options = {"picks": packed.picks, "position_ids": packed.position_ids, "ends": packed.ends}
        arguments = (packed.input_ids, packed.positions, packed.targets, temperature, True, 0, ("value",))
        logprobs, entropy, outputs = scorer(*arguments, **{k: v for k, v in options.items() if v is not None})
        mine = torch.cat([weights[:, row, : len(rows.responses[row])] for row in entry.rows], 1)
        value = outputs["value"].squeeze(-1)
        total = total + (mine[0] * logprobs + mine[1] * entropy + mine[2] * value.square()).sum()
    return total


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("chunk_tokens", [3, 4096])
@pytest.mark.parametrize("branches", [True, False], ids=["trees", "chains"])
@pytest.mark.parametrize("workload", QUICK)
def test_gradients_are_those_of_separate_rows(workload, branches, chunk_tokens, checkpointing):
    rows, results = WORKLOADS[workload](6), []
    for share in (True, False):
        model = tiny_model().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        scorer = scorer_of(model, heads(), chunk_tokens=chunk_tokens, branches=branches)
        loss = total_loss(scorer, rows, share, max_tokens=80 if workload == "mixed" else 10**6)
        loss.backward()
        results.append((float(loss.detach()), weight_gradients(scorer)))
    (loss, got), (expected, want) = results
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-4)  # a sum of hundreds with both signs
    assert len(want) > 20
    for name, value in want.items():
        assert apart(got[name], value) < 1e-5, name


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_under_both_backends_and_both_kinds_of_head(attention, tied):
    rows, results = siblings(2, groups=2, size=3, prefix=15) + chains(2), []
    for share in (True, False):
        model = tiny_model(tie_word_embeddings=tied, attn_implementation=attention).train()
        assert model.config._attn_implementation == attention
        scorer = scorer_of(model, heads())
        assert scorer.branches
        total_loss(scorer, rows, share).backward()
        results.append((scores_of(scorer, rows, share, entropy=True), weight_gradients(scorer)))
    (ours, got), (theirs, want) = results
    assert_same_scores(ours, theirs)
    assert all(apart(got[name], value) < 1e-5 for name, value in want.items())


def test_what_is_shared_carries_the_gradient_of_everyone_behind_it():
    """The gradient at a prompt's embeddings is the sum over the rows that read it, not that of one of them."""
    rows = Rows([(3, 4, 5, 6)] * 3, [(7, 8), (9,), (10, 11, 12)], [0, 1, 2])
    gradients = []
    for share in (True, False):
        model = tiny_model(tie_word_embeddings=False).train()
        scorer = scorer_of(model, heads())
        total_loss(scorer, rows, share).backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    assert apart(*gradients) < 1e-5
    assert gradients[0][3:7].norm() > 0
