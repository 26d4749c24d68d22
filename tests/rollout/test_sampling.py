import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer

from turncredit.rollout import PolicyScorer, SamplingConfig, StopReason, score_responses
from turncredit.rollout.sampling import Sampler, response_uniforms

TOKENIZER = tiny_tokenizer()
EOS, END_ACTION = 1, 8
PROMPTS = [[3, 9, 2, 4], [3, 18, 19, 20, 9, 2, 4], [3, 4], [3, 18, 18, 18, 18, 9, 10, 11, 2, 4]]


@pytest.fixture(scope="module")
def sampler():
    return Sampler(tiny_model(), TOKENIZER, stop_strings=("</action>",))


def seeds(n, step=0):
    return [(0, step, "task", i) for i in range(n)]


def test_a_row_does_not_depend_on_its_batch(sampler):
    config = SamplingConfig(max_completion_length=16)
    together = sampler.sample(PROMPTS, config, seeds(4))
    for row in range(4):
        alone = sampler.sample([PROMPTS[row]], config, [seeds(4)[row]])[0]
        assert alone.ids == together[row].ids
        assert alone.logprobs == pytest.approx(together[row].logprobs, abs=1e-5)
        assert alone.stop_reason is together[row].stop_reason


def test_seeds_decide(sampler):
    config = SamplingConfig(max_completion_length=16)
    first = sampler.sample([PROMPTS[0]] * 8, config, seeds(8))
    again = sampler.sample([PROMPTS[0]] * 8, config, seeds(8))
    other = sampler.sample([PROMPTS[0]] * 8, config, seeds(8, step=1))
    assert [s.ids for s in first] == [s.ids for s in again]
    assert len({s.ids for s in first}) > 4
    assert [s.ids for s in first] != [s.ids for s in other]


@pytest.mark.parametrize("temperature", [1.0, 0.4, 2.0])
def test_logprobs_are_those_of_the_scorer(sampler, temperature):
    samples = sampler.sample(PROMPTS * 4, SamplingConfig(temperature=temperature, max_completion_length=12), seeds(16))
    scores = score_responses(
        PolicyScorer(sampler.model), PROMPTS * 4, [s.ids for s in samples], pad_token_id=0, temperature=temperature
    )
    for row, sample in enumerate(samples):
        assert scores.logprobs[row, : len(sample.ids)].tolist() == pytest.approx(sample.logprobs, abs=1e-4)


def test_sampling_follows_the_distribution(sampler):
    prompt, n = [3, 9, 2, 4], 4000
    with torch.no_grad():
        expected = sampler.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    samples = sampler.sample([prompt] * n, SamplingConfig(max_completion_length=1), seeds(n))
    counts = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=len(expected)) / n
    assert (counts - expected).abs().max() < 4 * (0.25 / n) ** 0.5


def test_every_stop_id_and_the_stop_string_end_a_row_and_are_kept():
    sampler = Sampler(tiny_model(), TOKENIZER, stop_strings=("</action>",), eos_token_ids=(EOS, 2))
    samples = sampler.sample([PROMPTS[0]] * 64, SamplingConfig(max_completion_length=20), seeds(64))
    reasons = {s.stop_reason for s in samples}
    assert reasons >= {StopReason.EOS, StopReason.STOP_STRING}
    assert {s.ids[-1] for s in samples if s.stop_reason is StopReason.EOS} == {EOS, 2}
    for sample in samples:
        assert not {EOS, 2, END_ACTION} & set(sample.ids[:-1])
        if sample.stop_reason is StopReason.STOP_STRING:
            assert sample.ids[-1] == END_ACTION


def test_budgets_are_per_row(sampler):
    samples = sampler.sample([PROMPTS[0]] * 3, SamplingConfig(max_completion_length=9), seeds(3), budgets=[1, 2, 9])
    assert [len(s.ids) for s in samples][:2] == [1, 2] or samples[0].stop_reason is not StopReason.LENGTH
    assert all(len(s.ids) <= budget for s, budget in zip(samples, (1, 2, 9), strict=True))


def test_a_models_generation_config_is_not_inherited_and_is_put_back():
    model = tiny_model()
    plain = Sampler(model, TOKENIZER).sample(PROMPTS, SamplingConfig(max_completion_length=8), seeds(4))
    model.generation_config.temperature = 0.01
    model.generation_config.top_k = 1
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = [3, 4, 5]
    before = model.generation_config.to_dict()
    again = Sampler(model, TOKENIZER).sample(PROMPTS, SamplingConfig(max_completion_length=8), seeds(4))
    assert [s.ids for s in again] == [s.ids for s in plain]
    assert model.generation_config.to_dict() == before


def test_top_k_one_and_temperature_zero_are_greedy(sampler):
    greedy = sampler.sample(PROMPTS, SamplingConfig(temperature=0, max_completion_length=6), seeds(4))
    top_one = sampler.sample(PROMPTS, SamplingConfig(top_k=1, max_completion_length=6), seeds(4, step=9))
    tiny_nucleus = sampler.sample(PROMPTS, SamplingConfig(top_p=1e-6, max_completion_length=6), seeds(4, step=5))
    assert [s.ids for s in greedy] == [s.ids for s in top_one] == [s.ids for s in tiny_nucleus]
    with torch.no_grad():
        first = sampler.model(torch.tensor([PROMPTS[2]])).logits[0, -1].argmax()
    assert greedy[2].ids[0] == first


def test_training_mode_is_put_back(sampler):
    sampler.model.train()
    sampler.sample(PROMPTS[:1], SamplingConfig(max_completion_length=2), seeds(1))
    assert sampler.model.training
    sampler.model.eval()


def test_uniforms_are_a_pure_function_of_the_seed():
    assert response_uniforms((0, 1, "a"), 3).tolist() == response_uniforms((0, 1, "a"), 3).tolist()
    assert response_uniforms((0, 1, "a"), 5)[:3].tolist() == response_uniforms((0, 1, "a"), 3).tolist()
    draws = response_uniforms((0, 1, "b"), 10000)
    assert abs(draws.mean() - 0.5) < 0.02
    assert draws.min() >= 0
    assert draws.max() < 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("max_completion_length", 0),
        ("max_trajectory_tokens", 0),
        ("max_prompt_length", 0),
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=f"SamplingConfig: {field} must"):
        SamplingConfig(**{field: value})


def test_bad_arguments_are_named(sampler):
    with pytest.raises(ValueError, match="seeds must have one entry per prompt"):
        sampler.sample(PROMPTS, SamplingConfig(), seeds(1))
    with pytest.raises(ValueError, match="prompts must not be empty"):
        sampler.sample([[]], SamplingConfig(), seeds(1))
    with pytest.raises(ValueError, match="budgets must be 1 positive"):
        sampler.sample(PROMPTS[:1], SamplingConfig(), seeds(1), budgets=[0])
    assert sampler.sample([], SamplingConfig(), []) == []


def test_a_model_that_takes_padding_for_text_gets_prompts_of_equal_lengths_only(caplog):
    from helpers.families import build
    from helpers.family_checks import UNEQUAL, tokenizer

    model = build("recurrent_gemma", "RecurrentGemmaForCausalLM")
    config = SamplingConfig(max_completion_length=5)
    widths = []
    model.model.register_forward_pre_hook(
        lambda module, arguments, options: widths.append(options["input_ids"].shape), with_kwargs=True
    )
    made = Sampler(model, tokenizer(), eos_token_ids=())
    assert made.equal_lengths
    assert "takes left padding for text" in caplog.text, "batches of one length are slow: said once"
    widths.clear()
    prompts = [*UNEQUAL, UNEQUAL[0]]
    samples = made.sample(prompts, config, seeds(3), budgets=[5, 4, 3])
    assert [len(s.ids) for s in samples] == [5, 4, 3]
    assert {tuple(shape) for shape in widths if shape[1] > 1} == {(2, 3), (1, 12)}
    scores = score_responses(PolicyScorer(model), prompts, [s.ids for s in samples], pad_token_id=0)
    for row, sample in enumerate(samples):
        assert scores.logprobs[row, : len(sample.ids)].tolist() == pytest.approx(sample.logprobs, abs=1e-4)
    assert not Sampler(tiny_model(), TOKENIZER).equal_lengths


@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_not_taken_for_padding(seed):
    """In bf16 two tokens tie, and what follows the one says nothing about what follows the other."""
    assert not Sampler(tiny_model(seed).bfloat16(), TOKENIZER).equal_lengths


def test_batches_are_in_order_and_of_one_length_where_needed():
    from turncredit.rollout.sampling import batches_of

    assert batches_of([3, 5, 3, 3, 5], 2, False) == [[0, 1], [2, 3], [4]]
    assert batches_of([3, 5, 3, 3, 5], 2, True) == [[0, 2], [3], [1, 4]]
    assert batches_of([], 2, True) == []
