"""The preflight: what it finds, what it refuses, what it leaves untouched."""

import random
import time

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    CLIPVisionConfig,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
)

from turncredit.envs import Task
from turncredit.rollout import PolicyScorer, RolloutCollector, SamplingConfig, StopReason, preflight, score_responses
from turncredit.rollout._preflight import RunParts, preflight_run
from turncredit.rollout._preflight_text import missing_contents, unknown_share
from turncredit.rollout.limits import model_positions
from turncredit.rollout.stops import end_of_turn, stop_token_ids

SAMPLING = SamplingConfig(max_completion_length=8, max_prompt_length=64)


def run(scorer=None, **parts):
    scorer = scorer or PolicyScorer(tiny_model())
    return preflight_run(RunParts(scorer=scorer, tokenizer=tiny_tokenizer(), sampling=SAMPLING, **parts))


def refused(report, name):
    """The one refusal of a report, as an error says it."""
    assert [check.name for check in report.having("refused")] == [name], str(report)
    with pytest.raises(ValueError, match=f"would train wrongly: .*{name} must be") as error:
        report.raise_if_refused()
    return str(error.value)


def test_a_sound_model_passes_and_the_report_is_readable():
    report = preflight(tiny_model(), tiny_tokenizer(), ToySuite(), sampling=SAMPLING)
    report.raise_if_refused()
    assert report.ok
    table = str(report)
    for name in ("scores against the model", "padded against alone", "sampled against scored", "train mode", "lengths"):
        assert name in table
    assert "Qwen2ForCausalLM in float32" in report.summary()
    assert "\n" not in report.summary()


def test_it_changes_neither_weights_nor_modes_nor_random_states():
    model = gpt2(resid_pdrop=0.3, attn_pdrop=0.2, n_positions=128).train()
    assert model.transformer.h[0].attn.resid_dropout.p == 0.3
    model.transformer.h[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    report = preflight(model, tiny_tokenizer(), ToySuite(), sampling=SAMPLING)
    assert report["train mode against eval mode"].status == "ok", "as the trainer trains it"
    assert model.transformer.h[0].attn.resid_dropout.p == 0.3
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_embedded_policy_takes_less_than_a_second():
    folder = "examples/assets/alfworld_tiny"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sampling = SamplingConfig(max_prompt_length=492, max_completion_length=20)
    preflight(model, tokenizer, sampling=sampling)
    clock = time.perf_counter()
    report = preflight(model, tokenizer, sampling=sampling)
    assert time.perf_counter() - clock < 1
    assert not report.having("refused")
    assert not report.having("warning")


class OtherHead(PolicyScorer):
    """Scores as if the class scaled its logits by what the scorer does not know."""

    def forward(self, *arguments, **options):
        logprobs, entropy = super().forward(*arguments, **options)
        return logprobs * 1.01, entropy


def test_a_head_that_the_scorer_does_not_know_is_refused_with_both_figures():
    report = run(OtherHead(tiny_model()))
    names = {check.name for check in report.having("refused")}
    assert names == {"scores against the model", "sampled against scored"}
    with pytest.raises(ValueError, match="scores against the model must be") as error:
        report.raise_if_refused()
    text = str(error.value)
    assert "Qwen2ForCausalLM in float32" in text
    assert "at most 0.0001" in text
    assert "mean log-probs" in text


def test_sharper_temperatures_have_wider_tolerances():
    sampling = SamplingConfig(temperature=0.1, max_completion_length=8, max_prompt_length=64)
    report = preflight(tiny_model(), tiny_tokenizer(), sampling=sampling)
    assert report["scores against the model"].expected == "at most 0.001"
    assert report.ok


def test_a_model_that_reads_later_tokens_is_refused():
    model = tiny_model()
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: out + out.mean(1, keepdim=True))
    names = {check.name for check in run(PolicyScorer(model)).having("refused")}
    assert {"scores with a later token changed", "padded against alone"} <= names


def test_sampling_that_disagrees_with_scoring_is_refused():
    model = tiny_model()

    def with_cache(module, args, out):
        return out * 1.05 if out.shape[1] == 1 else out

    model.model.norm.register_forward_hook(with_cache)  # one token at a time happens with a cache only
    report = run(PolicyScorer(model))
    # a sampler that looks for this itself refuses to sample
    assert {"sampled against scored", "sampling"} & {check.name for check in report.having("refused")}


class Jitter(PolicyScorer):
    def forward(self, *arguments, **options):
        logprobs, entropy = super().forward(*arguments, **options)
        return logprobs + 0.1 * torch.randn_like(logprobs) * self.training, entropy


def test_randomness_in_train_mode_is_refused_and_draws_nothing_from_the_runs_generator():
    scorer = Jitter(tiny_model())
    before = torch.get_rng_state()
    refused(run(scorer), "train mode against eval mode")
    assert torch.equal(before, torch.get_rng_state())


def test_what_a_model_raises_is_a_refusal_by_class():
    model = tiny_model()

    def broken(*args, **options):
        raise AttributeError("no such thing as a decoder")

    scorer = PolicyScorer(model)
    scorer.forward = broken
    assert "AttributeError: no such thing as a decoder" in refused(run(scorer), "scores")


def test_half_precision_without_float32_copies_is_refused():
    model = tiny_model().bfloat16()
    report = preflight(model, tiny_tokenizer(), sampling=SAMPLING)
    assert report.precision == "bfloat16"
    assert "dtype=torch.float32" in refused(report, "trainable weights")
    assert preflight(model, tiny_tokenizer(), sampling=SAMPLING, mixed_precision="bf16").ok
    frozen = tiny_model().requires_grad_(False)
    assert "is_trainable=True" in refused(preflight(frozen, tiny_tokenizer(), sampling=SAMPLING), "trainable weights")
    with pytest.raises(ValueError, match='mixed_precision must be "no" or "bf16", got \'fp16\''):
        preflight(model, tiny_tokenizer(), mixed_precision="fp16")


def test_bf16_noise_is_far_below_its_tolerance():
    model = tiny_model(hidden_size=64, num_hidden_layers=6, initializer_range=0.15)
    report = preflight(model, tiny_tokenizer(), sampling=SAMPLING, mixed_precision="bf16")
    assert report.precision == "bfloat16"
    assert report.ok, str(report)


def test_another_reference_is_a_warning_with_its_figure_and_ones_own_must_be_exact():
    report = preflight(tiny_model(), tiny_tokenizer(), sampling=SAMPLING, reference=tiny_model(seed=1))
    assert report["reference"].status == "warning"
    assert report.ok
    same = preflight(tiny_model(), tiny_tokenizer(), sampling=SAMPLING, reference=tiny_model())
    assert same["reference"].got == "KL 0 nats per token"
    refused(run(reference=PolicyScorer(tiny_model(seed=1))), "reference")


# ---- lengths


def gpt2(n_positions=32, **options):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=23, n_positions=n_positions, n_embd=32, n_layer=1, n_head=2, **options)
    ).eval()


SMALL = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_positions_are_found_in_every_kind_of_model():
    table = model_positions(gpt2())
    assert (table.limit, table.hard) == (32, True)
    opt = OPTForCausalLM(
        OPTConfig(**SMALL, ffn_dim=32, max_position_embeddings=40, word_embed_proj_dim=32, do_layer_norm_before=True)
    )
    assert (model_positions(opt).limit, model_positions(opt).hard) == (40, True), "its table has two rows more"
    rotary = model_positions(tiny_model(max_position_embeddings=99))
    assert (rotary.limit, rotary.source, rotary.hard) == (99, "config.max_position_embeddings", False)
    assert model_positions(BloomForCausalLM(BloomConfig(vocab_size=23, hidden_size=32, n_layer=1, n_head=2))) is None
    mpt = MptForCausalLM(MptConfig(vocab_size=23, d_model=32, n_layers=1, n_heads=2, max_seq_len=16))
    assert model_positions(mpt) is None, "ALiBi"
    falcon = {**SMALL, "max_position_embeddings": 64, "new_decoder_architecture": False}
    assert model_positions(FalconForCausalLM(FalconConfig(**falcon, alibi=True))) is None
    assert model_positions(FalconForCausalLM(FalconConfig(**falcon, alibi=False))).limit == 64


def test_the_positions_of_pictures_are_not_those_of_text_and_pads_take_rows():
    text = Qwen2Config(**SMALL, num_key_value_heads=2, intermediate_size=32, max_position_embeddings=128)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    llava = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=22))
    assert model_positions(llava).limit == 128, "and not the five of the picture"
    roberta = RobertaConfig(**SMALL, intermediate_size=32, max_position_embeddings=20, pad_token_id=1, is_decoder=True)
    assert model_positions(RobertaForCausalLM(roberta)).limit == 18


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "linear", "factor": 2.0}, 256),
        ({"rope_type": "dynamic", "factor": 2.0}, 128),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 32, "short_factor": [1], "long_factor": [2]},
            32,
        ),
        ({"rope_type": "default"}, 128),
    ],
)
def test_scaled_rotary_positions_reach_as_far_as_they_are_scaled_and_scored(rope, limit):
    config = Qwen2Config(**SMALL, num_key_value_heads=2, intermediate_size=32, max_position_embeddings=128)
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    model = Qwen2ForCausalLM(config)
    assert model_positions(model).limit == limit
    assert PolicyScorer(model)._split.max_length in (None, limit), "a run must not fail in its first scoring"


def test_lengths_beyond_the_positions_are_refused_with_the_numbers():
    model = tiny_model(max_position_embeddings=64)
    text = refused(run(PolicyScorer(model)), "lengths")
    assert "at most 64 (config.max_position_embeddings), got 64 + 8 = 72 tokens; set max_prompt_length=56" in text
    fits = SamplingConfig(max_completion_length=8, max_prompt_length=56)
    assert preflight(model, tiny_tokenizer(), sampling=fits).ok
    parts = RunParts(PolicyScorer(model), tiny_tokenizer(), sampling=fits, teacher_length=9)
    assert "56 + 9 = 65" in refused(preflight_run(parts), "lengths")


def test_rows_beyond_the_positions_are_refused_when_scored():
    with pytest.raises(ValueError, match=r"fit the model's 32 positions \(rows of transformer.wpe\), got 30 \+ 3"):
        score_responses(PolicyScorer(gpt2()), [(3,), (3,) * 30], [(4,), (5, 6, 7)], pad_token_id=0)
    scores = score_responses(PolicyScorer(gpt2()), [(3,) * 30], [(5, 6)], pad_token_id=0)
    assert scores.logprobs.shape == (1, 2)


def test_a_collector_ends_episodes_whose_prompt_would_leave_the_positions():
    with RolloutCollector(
        gpt2(), tiny_tokenizer(), ToySuite(), SamplingConfig(max_completion_length=28), num_workers=0
    ) as c:
        played = c.collect(ToySuite().tasks("train")[:2], 1)
    assert {t.failure for t in played} == {"prompt and response over the model's positions"}


# ---- ids and template

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer(template=CHATML):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return tokenizer


def chat_model(tokenizer, **options):
    return tiny_model(vocab_size=len(tokenizer), **options)


def test_the_templates_own_end_of_turn_becomes_a_stop_id():
    tokenizer = chat_tokenizer()
    model, end = chat_model(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id != end
    assert end_of_turn(tokenizer).ids == (end,)
    assert stop_token_ids(model, tokenizer) == (1, end)
    report = preflight(model, tokenizer, ToySuite(), sampling=SAMPLING)
    assert report["end of turn"].got == f"'<|im_end|>' = {end} (added to the stop ids)"
    assert report.stop_ids == (1, end)
    model.generation_config.eos_token_id = [1, end]
    assert "added" not in preflight(model, tokenizer, sampling=SAMPLING)["end of turn"].got


def test_a_response_ends_where_the_user_would_go_on():
    tokenizer = chat_tokenizer()
    model, end = chat_model(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>")

    def end_the_turn(module, args, out):  # always <|im_end|>, whatever came before
        out = torch.full_like(out, -20.0)
        out[..., end] = 20.0
        return out

    model.lm_head.register_forward_hook(end_the_turn)
    with RolloutCollector(model, tokenizer, ToySuite(), SAMPLING, num_workers=0) as collector:
        turns = [turn for t in collector.collect(ToySuite().tasks("train")[:2], 2) for turn in t.turns]
    assert {turn.response_ids for turn in turns} == {(end,)}
    assert {turn.stop_reason for turn in turns} == {StopReason.EOS}
    assert {turn.response for turn in turns} == {""}


@pytest.mark.parametrize(
    ("closing", "added"),
    [
        ("<eos>", ()),  # the tokenizer's own
        (" <|im_end|><eos>", ()),  # the model ends with what it is told to
        (" <|im_end|>\n", ("<|im_end|>",)),
        (" end of turn <|im_end|>", ()),  # plain text comes first: it is no sign
    ],
)
def test_end_of_turn_is_read_off_the_template(closing, added):
    tokenizer = chat_tokenizer(CHATML.replace("<|im_end|>\n", closing))
    ids = tuple(tokenizer.convert_tokens_to_ids(token) for token in added)
    assert stop_token_ids(chat_model(tokenizer), tokenizer) == (1, *ids)


def test_the_end_of_the_conversation_is_no_end_of_turn():
    """As Phi-3 has it: the end of the text follows the last turn only, and the end of a turn takes blanks with it."""
    tokenizer = chat_tokenizer(
        CHATML.replace("<|im_end|>\n", "<|im_end|>") + "{% if not add_generation_prompt %}<eos>{% endif %}"
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end_of_turn(tokenizer).ids == (end,)
    assert stop_token_ids(chat_model(tokenizer), tokenizer) == (1, end)


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}" + CHATML,
        CHATML.replace("{{ m['content'] }}", "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}"),
    ],
)
def test_templates_that_want_a_system_message_or_parts_are_looked_at_in_their_form(template):
    tokenizer = chat_tokenizer(template)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    report = preflight(chat_model(tokenizer), tokenizer, sampling=SAMPLING)
    assert not report.having("refused"), str(report)
    assert report.stop_ids == (1, end)


def test_templates_that_end_a_turn_with_plain_text_are_a_warning():
    assert preflight(tiny_model(), tiny_tokenizer(), sampling=SAMPLING)["end of turn"].status == "warning"


def test_a_template_that_drops_content_is_refused():
    tokenizer = chat_tokenizer("{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}<|im_start|>")
    report = preflight(chat_model(tokenizer), tokenizer, ToySuite(), sampling=SAMPLING)
    names = {check.name for check in report.having("refused")}
    assert names >= {"user text in the prompt", "task text in the prompt"}
    with pytest.raises(ValueError, match="user text in the prompt must be"):
        report.raise_if_refused()


def test_a_text_that_spells_a_control_token_counts_as_shown():
    refuses = "{% if '<|im_end|>' in messages[0].content %}{{ raise_exception('no') }}{% endif %}"
    for template in (CHATML, refuses + CHATML):
        tokenizer = chat_tokenizer(template)  # of whole words: in pieces the mark is unknown
        assert missing_contents(tokenizer, [{"role": "user", "content": "see <|im_end|> door"}], {}) == []


class WithSystem(ToySuite):
    def messages(self, task, history, observation):
        return [{"role": "system", "content": "say the colour"}, *super().messages(task, history, observation)]


def test_a_template_that_leaves_out_or_refuses_the_systems_text_is_refused():
    silent = "{% for m in messages if m.role != 'system' %}" + CHATML[len("{% for m in messages %}") :]
    loud = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    for template, got in ((silent, "system"), (loud, "no system role")):
        tokenizer = chat_tokenizer(template)
        report = preflight(chat_model(tokenizer), tokenizer, WithSystem(), sampling=SAMPLING)
        assert got in refused(report, "task text in the prompt")
        assert preflight(chat_model(tokenizer), tokenizer, ToySuite(), sampling=SAMPLING).ok


def test_a_tokenizer_larger_than_the_embedding_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<search>"])
    assert "'<search>' = 23" in refused(preflight(tiny_model(), tokenizer, sampling=SAMPLING), "vocabulary")
    image = tiny_tokenizer()
    image.add_special_tokens({"extra_special_tokens": ["<image>"]})
    report = preflight(tiny_model(), image, sampling=SAMPLING)
    assert report.ok, "as Gemma's text models have it"
    assert report["vocabulary"].status == "warning"


def test_special_tokens_outside_the_embedding_that_a_prompt_holds_are_refused():
    tokenizer = chat_tokenizer()
    report = preflight(tiny_model(), tokenizer, ToySuite(), sampling=SAMPLING)
    assert "prompt ids" in {check.name for check in report.having("refused")}


def test_pad_and_end_ids_outside_the_embedding_are_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<new pad>"})
    assert "pad id must be below the embedding's 23 rows, got 23; call model.resize" in refused(
        preflight(tiny_model(), tokenizer, sampling=SAMPLING), "pad id"
    )


def test_an_ordinary_token_as_stop_id_is_a_warning():
    """A configuration's default of another vocabulary: every response would end at its first such word."""
    model = tiny_model()
    model.generation_config.eos_token_id = [1, 9]
    check = preflight(model, tiny_tokenizer(), sampling=SAMPLING)["stop ids in text"]
    assert (check.status, check.got) == ("warning", "ordinary tokens ['door']")


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), torch.tensor([1, 2]), np.array([1, 2])])
def test_stop_ids_of_any_kind_of_list(ids):
    model = tiny_model()
    model.generation_config.eos_token_id = ids
    assert stop_token_ids(model, tiny_tokenizer()) == (1, 2)


def test_no_stop_at_all_is_a_warning():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    model = tiny_model(eos_token_id=None)
    report = preflight(model, tokenizer, ToySuite(stop_strings=()), sampling=SAMPLING)
    assert report["stop ids"].status == "warning"


def test_a_suite_that_cannot_word_a_made_up_observation_is_left_out():
    class Strict(ToySuite):
        def messages(self, task, history, observation):
            raise KeyError(observation.text)

        def tasks(self, split):
            return [Task("red-1", "red", split)]

    report = preflight(tiny_model(), tiny_tokenizer(), Strict(), sampling=SAMPLING)
    assert report["task text in the prompt"].status == "skipped"


def test_share_of_unknown_tokens():
    tokenizer = tiny_tokenizer()
    unknown = tokenizer.unk_token_id
    assert unknown_share(tokenizer, [(3, 4, unknown), (3,)]) == 0.25
    assert unknown_share(tokenizer, []) == 0.0


def test_lengths_that_nobody_asked_for_warn_and_those_of_a_run_refuse():
    model, tokenizer = tiny_model(max_position_embeddings=512), tiny_tokenizer()
    assert preflight(model, tokenizer)["lengths"].status == "warning"
    assert preflight(model, tokenizer, sampling=SamplingConfig())["lengths"].status == "refused"
