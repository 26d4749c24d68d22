"""Families of models where prefixes are shared: branched where that is right, refused by name where it is not."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.families import KINDS, build
from helpers.prefix_cases import Rows, chains, duplicates, siblings, windowed
from helpers.shared_prefixes import apart, close, scorer_of, weight_gradients

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.rollout.packing import pack, plan_packs

BRANCHING = {
    "llama": "",
    "qwen2": "",
    "qwen3": "",
    "mistral": "a sliding window in every layer",
    "gemma2": "sliding and full layers, soft caps",
    "gemma3_text": "sliding and full layers, two rotary bases",
    "phi3": "fused projections",
    "gpt2": "learned positions",
    "mixtral": "experts",
    "qwen3_moe": "experts",
    "granite": "scaled attention and logits",
    "cohere2": "sliding layers, and full ones without positions",
}
CHAINS = {
    "bloom": "ALiBi",
    "mpt": "ALiBi",
    "falcon_h1": "attention beside a recurrent state",
    "mamba": "a recurrent state",
    "recurrent_gemma": "a recurrent state",
    "bamba": "recurrent layers",
}
WINDOW = 4
"""Of the tiny models, shorter than their rows; see `helpers.families.SIZES`."""


def rows_for(seed: int = 0) -> Rows:
    return siblings(seed, groups=2, size=3, prefix=14) + chains(seed, 2) + windowed(seed, 2) + duplicates(seed)


def scored(scorer: PolicyScorer, rows: Rows, share: bool):
    options = {"pad_token_id": 0, "temperature": 0.7, "entropy": True, "share_prefixes": share, "max_tokens": 400}
    return score_responses(scorer, rows.prompts, rows.responses, **options)


def gradients(scorer: PolicyScorer, rows: Rows, share: bool) -> dict[str, torch.Tensor]:
    scorer.zero_grad()
    options = {"branches": scorer.branches, "attention_cost": 0.0, "share": share}
    for entry in plan_packs(rows.prompts, rows.responses, 400, **options):
        packed = pack(entry, rows.prompts, rows.responses, 0, "cpu")
        places = {"picks": packed.picks, "position_ids": packed.position_ids, "ends": packed.ends}
        arguments = (packed.input_ids, packed.positions, packed.targets, 0.7)
        logprobs = scorer(*arguments, **{k: v for k, v in places.items() if v is not None})[0]
        weights = [torch.linspace(-1, 2, len(rows.responses[row])) + row / 10 for row in entry.rows]
        (logprobs * torch.cat(weights)).sum().backward()
    return weight_gradients(scorer)


def check_family(family: str, rows: Rows, **changes) -> PolicyScorer:
    """Scores and gradients with and without sharing; returns the scorer."""
    scorer = scorer_of(build(family, KINDS[family], **changes), chunk_tokens=7)
    ours, theirs = scored(scorer, rows, True), scored(scorer, rows, False)
    assert sum(entry.tokens for entry in ours.packs) < sum(map(len, rows.whole()))
    assert close(ours.logprobs, theirs.logprobs, 2e-5)
    assert close(ours.entropy, theirs.entropy, 2e-5)
    got, want = gradients(scorer, rows, True), gradients(scorer, rows, False)
    assert got.keys() == want.keys()
    # a gradient that is 0 in exact arithmetic, such as that of a key's bias, is all rounding
    whole = float(torch.stack([value.norm() for value in want.values()]).norm())
    assert all(apart(got[name], value, 1e-3 * whole) < 2e-5 for name, value in want.items())
    return scorer


@pytest.mark.parametrize("family", BRANCHING)
def test_families_that_branch(family):
    assert check_family(family, rows_for()).branches, BRANCHING[family]


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma3_text", "gpt2"])
def test_families_that_branch_with_eager_attention(family):
    scorer = check_family(family, rows_for(), attn_implementation="eager")
    assert scorer.model.config._attn_implementation == "eager"
    assert scorer.branches


WINDOWED = {
    "mixtral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 2},
    "qwen3": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention"],
    },
}


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_that_a_configuration_asks_for(family):
    rows = rows_for(1)
    assert max(map(len, rows.whole())) > 4 * WINDOW
    scorer = check_family(family, rows, **WINDOWED[family])
    assert scorer.model.config.sliding_window == WINDOW
    assert scorer.branches


@pytest.mark.parametrize("family", CHAINS)
def test_families_where_branching_would_be_wrong_merge_chains_only_and_say_so(family, caplog):
    with caplog.at_level(logging.INFO):
        scorer = check_family(family, chains(1, 3, 4) + siblings(1, 1, 3, 10))
    assert not scorer.branches, CHAINS[family]
    lines = [record.getMessage() for record in caplog.records if KINDS[family] in record.getMessage()]
    assert len(lines) == 1, "one line, with the class"


def tokens_of(scorer: PolicyScorer, rows: Rows, share: bool) -> int:
    """Tokens that a model is really run on."""
    counts = []

    def count(module, inputs, output):
        counts.append(output.shape[:-1].numel())

    hook = scorer.model.get_input_embeddings().register_forward_hook(count)
    scored(scorer, rows, False)  # whatever is tried once has been tried
    counts.clear()
    scored(scorer, rows, share)
    hook.remove()
    return sum(counts)


@pytest.mark.parametrize("family", ["qwen2", "bloom", "mamba"])
def test_chains_are_merged_in_every_family(family):
    """An append-only history costs its last row; heads run the embeddings of scored tokens again."""
    rows = chains(3, trajectories=1, turns=12)
    scorer = scorer_of(build(family, KINDS[family]))
    scorer.model.eval()
    whole, scored_tokens = rows.whole(), sum(map(len, rows.responses))
    assert tokens_of(scorer, rows, True) <= len(whole[-1]) + scored_tokens
    assert tokens_of(scorer, rows, False) >= sum(map(len, whole))


def test_a_window_longer_than_the_rows_and_one_of_a_token_or_two():
    for window in (1, 2, 64):
        scorer = check_family("mistral", rows_for(2), sliding_window=window)
        assert scorer.branches


def test_windows_far_longer_than_any_trial():
    """Rows longer than they are; Moshi's configuration names one that its masks leave out, GPT-Neo's counts places."""
    rows, long = siblings(2, groups=1, size=3, prefix=330, turns=1), {"max_position_embeddings": 512}
    assert check_family("mistral", rows, sliding_window=300, **long).branches
    for family in ("moshi", "gpt_neo"):
        changes = long | {"sliding_window": 300, "window_size": 300}
        scorer = scorer_of(build(family, KINDS[family], **changes))
        assert close(scored(scorer, rows, True).logprobs, scored(scorer, rows, False).logprobs, 2e-5), family


def test_temperatures_that_count_places(caplog):
    """Llama 4's grow every `floor_scale` places, which no trial reaches."""
    layers = {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "no_rope_layers": [0, 1],
        "moe_layers": [0],
    }
    changes = {"attention_chunk_size": None, "floor_scale": 100, "max_position_embeddings": 512}
    scorer = scorer_of(build("llama4_text", KINDS["llama4_text"], **layers, **changes))
    rows = siblings(2, groups=1, size=3, prefix=90, turns=1)
    assert not scorer.branches
    assert "attn_temperature_tuning" in caplog.text
    assert close(scored(scorer, rows, True).logprobs, scored(scorer, rows, False).logprobs, 2e-5)


@pytest.mark.parametrize("family", ["big_bird", "bert", "gpt2", "opt"])
def test_tables_of_places_that_are_shorter_than_a_tree(family):
    rows = siblings(2, groups=1, size=8, prefix=30, turns=1)
    scorer = scorer_of(build(family, KINDS[family], max_position_embeddings=40, n_positions=40))
    assert sum(len(response) for response in rows.responses) + 30 > 42
    assert close(scored(scorer, rows, True).logprobs, scored(scorer, rows, False).logprobs, 2e-5)


def test_settling_leaves_the_model_as_it_was():
    model = build("mistral", "MistralForCausalLM").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(4)
    state = torch.get_rng_state()
    scorer = scorer_of(model)
    assert scorer.branches
    assert model.training
    assert scorer.training
    assert torch.equal(torch.get_rng_state(), state), "no chance is used up"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert model.config.sliding_window == WINDOW


def test_what_counts_for_rotary_frequencies_is_the_longest_row_not_the_sequence():
    """Phi-3's frequencies change beyond 12 positions: a tree may be wider, its rows may not."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 12,
    }
    scorer = scorer_of(build("phi3", KINDS["phi3"], rope_parameters=rope, original_max_position_embeddings=12))
    rows = siblings(0, groups=1, size=6, prefix=6, turns=1)
    assert max(map(len, rows.whole())) <= 12
    plan = plan_packs(rows.prompts, rows.responses, 400, branches=True, attention_cost=0.0)
    assert plan[0].size > 12
    if scorer.branches:
        assert all(apart(*pair) < 1e-5 for pair in zip(*both_gradients(scorer, rows), strict=True))
    assert close(scored(scorer, rows, True).logprobs, scored(scorer, rows, False).logprobs)
    longer = siblings(0, groups=1, size=6, prefix=12, turns=1)
    for share in (True, False):
        with pytest.raises(ValueError, match="the model's 12 positions"):
            scored(scorer, longer, share)


def both_gradients(scorer: PolicyScorer, rows: Rows) -> list[list[torch.Tensor]]:
    return [list(gradients(scorer, rows, share).values()) for share in (True, False)]


class LooksElsewhere(torch.nn.Module):
    """Attention that adds something of the neighbouring place, whatever the mask says."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states, *arguments, **options):
        output, weights = self.attention(hidden_states, *arguments, **options)
        return output + hidden_states.roll(1, dims=1) * (torch.arange(hidden_states.shape[1]) > 0)[:, None], weights


def test_a_model_of_no_known_kind_is_found_out_by_the_trial(caplog):
    """A layer that reads the place to its left is causal, and right for chains; in a tree that place is another row."""
    model = build("qwen2", "Qwen2ForCausalLM")
    model.model.layers[0].self_attn = LooksElsewhere(model.model.layers[0].self_attn)
    with caplog.at_level(logging.INFO):
        scorer = scorer_of(model)
    assert not scorer.branches
    assert "Qwen2ForCausalLM" in caplog.text
    rows = chains(1) + siblings(1)
    assert close(scored(scorer, rows, True).logprobs, scored(scorer, rows, False).logprobs)


def test_adapters_branch_like_their_base():
    peft = pytest.importorskip("peft")
    rows = rows_for(1)
    lora = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    scorer = scorer_of(peft.get_peft_model(build("qwen2", "Qwen2ForCausalLM"), lora), chunk_tokens=7)
    assert scorer.branches
    ours, theirs = scored(scorer, rows, True), scored(scorer, rows, False)
    assert close(ours.logprobs, theirs.logprobs)
    got, want = gradients(scorer, rows, True), gradients(scorer, rows, False)
    assert all("lora" in name for name in want)
    assert all(apart(got[name], value) < 1e-5 for name, value in want.items())


def test_bfloat16_agrees_as_far_as_bfloat16_goes():
    model = build("qwen2", "Qwen2ForCausalLM").to(torch.bfloat16)
    scorer, rows = scorer_of(model), rows_for(3)
    assert scorer.branches
    exact = scored(scorer_of(build("qwen2", "Qwen2ForCausalLM")), rows, False).logprobs
    rounding = (scored(scorer, rows, False).logprobs - exact).abs().max()
    assert rounding > 1e-3
    assert (scored(scorer, rows, True).logprobs - exact).abs().max() < 3 * rounding


def test_bfloat16_by_autocast_agrees_as_far_as_bfloat16_goes():
    scorer, rows = scorer_of(build("qwen2", "Qwen2ForCausalLM")), rows_for(3)
    exact = scored(scorer, rows, False).logprobs
    with torch.autocast("cpu", torch.bfloat16):
        separate, shared = (scored(scorer, rows, share).logprobs for share in (False, True))
    rounding = (separate - exact).abs().max()
    assert rounding > 1e-3
    assert (shared - exact).abs().max() < 3 * rounding


@pytest.mark.slow
def test_no_family_of_the_installed_transformers_is_wrong_without_a_word():
    """Every family that is scored at all, by the same rows with and without sharing."""
    rows = siblings(0, 1, 3, 9, 1) + chains(0, 1, 3)
    wrong, branching, merged = {}, [], []
    for family, kind in KINDS.items():
        try:
            model = build(family, kind)
            separate = scored(PolicyScorer(model), rows, False)
        except Exception:  # it cannot be built, or is refused: tests/rollout/test_families.py
            continue
        scorer = scorer_of(model)
        shared = scored(scorer, rows, True)
        difference = float((shared.logprobs - separate.logprobs).abs().max())
        if difference > 1e-4 or not torch.isfinite(shared.logprobs).all():
            wrong[family] = difference
        (branching if scorer.branches else merged).append(family)
    assert wrong == {}
    assert len(branching) + len(merged) >= 220
    assert len(branching) >= 80, merged
    assert not {"mamba", "bloom", "falcon_h1", "rwkv"} & set(branching)
