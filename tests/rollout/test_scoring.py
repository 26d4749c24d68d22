import pytest
import torch
from helpers.families import build, make_config
from helpers.tiny import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Phi3ForCausalLM,
    Qwen2Model,
)

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.rollout.packing import pack_rows, plan_micro_batches

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


class Masked(torch.nn.Linear):
    """A head that rules tokens out, as those with padded or reserved vocabulary do."""

    def forward(self, hidden):
        return super().forward(hidden).index_fill(-1, torch.tensor([0, 5]), -torch.inf)


def masked_model():
    model = tiny_model()
    head = Masked(32, model.config.vocab_size, bias=False)
    head.weight = model.lm_head.weight
    model.lm_head = head
    return model


@pytest.mark.parametrize("chunk_tokens", [2, 4096])
def test_entropy_of_a_head_that_rules_tokens_out_is_finite_and_so_is_its_gradient(chunk_tokens):
    model = masked_model()
    prompts, responses = [(3, 9, 2, 4)], [(6, 7, 9)]
    packed = pack_rows(prompts, responses, 0)
    scorer = PolicyScorer(model, chunk_tokens=chunk_tokens)
    logprobs, entropy = scorer(packed.input_ids, packed.positions, packed.targets, entropy=True)
    kept = [token for token in range(model.config.vocab_size) if token not in (0, 5)]
    plain = tiny_model()
    log_p = plain(packed.input_ids).logits[0, 3:6][:, kept].log_softmax(-1)
    expected = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(entropy, expected, atol=1e-5, rtol=1e-5)
    (entropy.sum() + logprobs.sum()).backward()
    chosen = log_p.gather(-1, torch.tensor([[kept.index(token)] for token in responses[0]]))
    (expected.sum() + chosen.sum()).backward()
    for got, want in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "family"),
    [("granite", "GraniteForCausalLM"), ("falcon_h1", "FalconH1ForCausalLM"), ("bart", "BartForCausalLM")],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_through_a_models_own_head_with_adapters_and_checkpointing(model_type, family, checkpointing):
    """Several chunks, so that heads are run once more in the backward pass, around a model that does the same."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["q_proj", "k_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    gradients = []
    for scored in (True, False):
        torch.manual_seed(0)
        model = peft.get_peft_model(build(model_type, family, dropout=0.0), lora).train()
        packed = pack_rows(PROMPTS[:2], RESPONSES[:2], 0)
        if scored:
            if checkpointing:
                model.enable_input_require_grads()
                model.gradient_checkpointing_enable()
            scorer = PolicyScorer(model, chunk_tokens=2)
            logprobs, _ = scorer(packed.input_ids, packed.positions, packed.targets, 0.7)
        else:
            logits = model(packed.input_ids).logits.flatten(0, 1)[packed.positions] / 0.7
            logprobs = logits.log_softmax(-1).gather(-1, packed.targets[:, None]).squeeze(-1)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert any(value.abs().sum() > 0 for value in gradients[1].values())
    for name, want in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], want, atol=1e-5, rtol=1e-3)


def test_a_model_that_answers_in_tuples():
    model = build("bloom", "BloomForCausalLM")
    expected = naive(model, PROMPTS, RESPONSES)
    model.config.return_dict = False
    assert isinstance(model(torch.tensor([[3, 4]])), tuple)
    scores = score_responses(PolicyScorer(model), PROMPTS, RESPONSES, pad_token_id=0)
    torch.testing.assert_close(scores.logprobs[scores.mask], torch.cat(expected), atol=1e-5, rtol=0)


def test_the_model_is_left_as_it_was_also_after_a_fault():
    model = tiny_model()
    decoder, head = model.model, model.lm_head
    scorer = PolicyScorer(model)
    score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0)
    names = [name for name, _ in model.named_modules()]
    handle = head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0)
    handle.remove()
    assert model.model is decoder
    assert [name for name, _ in model.named_modules()] == names


def test_models_that_cannot_be_scored_are_refused_by_name():
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    bart = BartForConditionalGeneration(
        BartConfig(
            vocab_size=23, encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32, **small
        )
    )
    with pytest.raises(ValueError, match="decoder-only, got the encoder-decoder BartForConditionalGeneration"):
        PolicyScorer(bart)
    with pytest.raises(ValueError, match="output embedding, got Qwen2Model; load it with AutoModelForCausalLM"):
        PolicyScorer(Qwen2Model(tiny_model().config))
    with pytest.raises(ValueError, match="got BertLMHeadModel with is_decoder=False; load it with is_decoder=True"):
        PolicyScorer(build("bert", "BertLMHeadModel", is_decoder=False))
    peft = pytest.importorskip("peft")
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ValueError, match="got PromptTuningConfig"):
        PolicyScorer(peft.get_peft_model(tiny_model(), prompts))


@pytest.mark.parametrize(
    ("model_type", "family", "message"),
    [
        ("xlnet", "XLNetLMHeadModel", "not look ahead .*, got XLNetLMHeadModel"),
        ("xlm", "XLMWithLMHeadModel", "not look ahead .*, got XLMWithLMHeadModel"),
        ("prophetnet", "ProphetNetForCausalLM", "logits from the hidden states alone .*, got ProphetNetForCausalLM"),
    ],
)
def test_models_that_look_ahead_or_read_more_than_hidden_states_are_refused_at_first_use(model_type, family, message):
    scorer = PolicyScorer(build(model_type, family))
    with pytest.raises(ValueError, match=message):
        score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0)


def test_rotary_frequencies_that_change_with_length_limit_the_rows():
    """Phi-3 turns all positions otherwise once one row of the batch is longer than its original length."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 12,
    }
    config = make_config("phi3", "Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=12)
    model = Phi3ForCausalLM(config).eval()
    scores = score_responses(PolicyScorer(model), PROMPTS, RESPONSES, pad_token_id=0)
    for row, expected in enumerate(naive(model, PROMPTS, RESPONSES)):
        torch.testing.assert_close(scores.logprobs[row, : len(expected)], expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"the model's 12 positions \(beyond it the rotary .*, got 8 \+ 5"):
        score_responses(PolicyScorer(model), [(3,) * 8], [(4,) * 5], pad_token_id=0)
    with pytest.raises(ValueError, match=r"rows must be at most 12 tokens long, .* Phi3ForCausalLM .*, got 13"):
        PolicyScorer(model)(torch.full((1, 13), 3), torch.tensor([4]), torch.tensor([3]))


@pytest.mark.parametrize(("words", "chunk"), [(1_024, 4096), (32_768, 4096), (151_936, 883), (2**28, 1)])
def test_chunks_of_the_head_follow_the_vocabulary(monkeypatch, words, chunk):
    monkeypatch.setattr("turncredit.rollout.scoring.embedding_rows", lambda model: words)
    scorer = PolicyScorer(tiny_model())
    assert scorer.chunk_tokens == chunk
    assert scorer.chunks_for(2 * chunk + 1) == 3
