import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model
from transformers import Cohere2Config, Cohere2ForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.rollout.scoring import pack_rows, plan_micro_batches

PROMPTS = [(3, 9, 2, 4), (3, 18, 9, 10, 2, 4), (3, 4)]
RESPONSES = [(5, 6, 7), (18,), (19, 20, 8, 1, 2)]


def naive(model, prompts, responses, temperature=1.0):
    """One row at a time, all logits, no padding."""
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0].float() / temperature
        log_all = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        rows.append(log_all.gather(-1, torch.tensor(response)[:, None]).squeeze(-1))
    return rows


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 4096])
@pytest.mark.parametrize("max_tokens", [1, 14, 4096])
def test_scores_are_those_of_the_whole_model_row_by_row(temperature, chunk_tokens, max_tokens):
    model = tiny_model()
    scores = score_responses(
        PolicyScorer(model, chunk_tokens=chunk_tokens),
        PROMPTS,
        RESPONSES,
        pad_token_id=0,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    assert scores.mask.tolist() == [[True] * len(r) + [False] * (5 - len(r)) for r in RESPONSES]
    for row, expected in enumerate(naive(model, PROMPTS, RESPONSES, temperature)):
        torch.testing.assert_close(scores.logprobs[row, : len(expected)], expected, atol=1e-5, rtol=0)
        assert scores.logprobs[row, len(expected) :].tolist() == [0.0] * (5 - len(expected))


SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    "model",
    [
        Gemma2ForCausalLM(Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0)),
        Cohere2ForCausalLM(Cohere2Config(**SMALL, num_key_value_heads=1, logit_scale=0.3, pad_token_id=0)),
        GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=64)),
    ],
    ids=["softcap", "logit scale", "gpt2"],
)
def test_models_that_transform_their_logits(model):
    model.eval()
    scores = score_responses(PolicyScorer(model), PROMPTS, RESPONSES, pad_token_id=0)
    for row, expected in enumerate(naive(model, PROMPTS, RESPONSES)):
        torch.testing.assert_close(scores.logprobs[row, : len(expected)], expected, atol=1e-5, rtol=0)


def test_entropy_by_hand():
    model = tiny_model()
    scores = score_responses(PolicyScorer(model), PROMPTS, RESPONSES, pad_token_id=0, entropy=True)
    with torch.no_grad():
        p = model(torch.tensor([[*PROMPTS[0], *RESPONSES[0]]])).logits[0, 3:6].softmax(-1)
    torch.testing.assert_close(scores.entropy[0, :3], -(p * p.log()).sum(-1), atol=1e-5, rtol=1e-5)
    assert scores.entropy[1, 1:].abs().sum() == 0


@pytest.mark.parametrize("chunk_tokens", [2, 4096])
def test_the_gradient_is_that_of_the_whole_model(chunk_tokens):
    model = tiny_model()
    packed = pack_rows(PROMPTS, RESPONSES, 0)
    logprobs, _ = PolicyScorer(model, chunk_tokens=chunk_tokens)(packed.input_ids, packed.positions, packed.targets)
    weights = torch.linspace(-1, 1, len(logprobs))
    (logprobs * weights).sum().backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    start = 0
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        log_all = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        chosen = log_all.gather(-1, torch.tensor(response)[:, None]).squeeze(-1)
        (chosen * weights[start : start + len(response)]).sum().backward()
        start += len(response)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, atol=1e-5, rtol=1e-4)


def test_logits_never_exist_all_at_once(monkeypatch):
    model = tiny_model()
    head, sizes = model.get_output_embeddings(), []
    head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape))
    score_responses(PolicyScorer(model, chunk_tokens=2), PROMPTS, RESPONSES, pad_token_id=0)
    assert max(shape[:-1].numel() for shape in sizes) == 2
    assert sum(shape[:-1].numel() for shape in sizes) == sum(map(len, RESPONSES))


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 200))
@settings(deadline=None)
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    plan = plan_micro_batches(lengths, budget)
    assert sorted(i for rows in plan for i in rows) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget


def test_processes_that_must_keep_in_step_make_equally_many_calls():
    """Where weights are sharded, every forward pass and every visit of the output embedding is a collective call."""
    model = tiny_model()
    scorer = PolicyScorer(model, chunk_tokens=2)
    visits = []
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: visits.append(len(output)))
    asked = []

    def agree(counts):
        asked.append(list(counts))
        return [3, 5]

    plain = score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0)
    for prompts, responses in ((PROMPTS, RESPONSES), ([], [])):
        visits.clear()
        scores = score_responses(scorer, prompts, responses, pad_token_id=0, agree=agree)
        assert len(visits) == 3 * 5
        assert scores.logprobs.shape[0] == len(prompts)
        if prompts:
            torch.testing.assert_close(scores.logprobs, plain.logprobs)
    assert asked == [[1, -(-sum(map(len, RESPONSES)) // 2)], [0, 1]]


def test_bad_arguments_are_named():
    scorer = PolicyScorer(tiny_model())
    with pytest.raises(ValueError, match="responses must have one entry per prompt, got 2 for 3"):
        score_responses(scorer, PROMPTS, RESPONSES[:2], pad_token_id=0)
    with pytest.raises(ValueError, match="must not be empty"):
        score_responses(scorer, PROMPTS, [*RESPONSES[:2], ()], pad_token_id=0)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0, max_tokens=0)
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        PolicyScorer(tiny_model(), chunk_tokens=0)
