"""Every causal family of the installed transformers is scored, trained and sampled right, or refused by name."""

import pytest
import torch
from helpers.families import KINDS, build, make_config, scramble
from helpers.family_checks import SAMPLED, SCORED, examine, survey
from transformers import GraniteConfig, LlavaConfig, LlavaForConditionalGeneration

ALWAYS = {
    "falcon_h1": "lm_head_multiplier",
    "recurrent_gemma": "logits_soft_cap; padding to the left is text to it",
    "mpt": "logit_scale",
    "granite": "logits_scaling",
    "cohere2": "logit_scale",
    "gemma2": "final_logit_softcapping",
    "gemma3_text": "sliding and full attention",
    "phimoe": "a router that samples in train mode, whose jitter eval mode reads as well",
    "mixtral": "router jitter",
    "mamba": "a recurrent state",
    "opt": "layerdrop, decoder inside a wrapper",
    "bart": "positions that do not follow padding",
    "persimmon": "dropout read from the configuration in every pass",
    "cohere2_vision": "a text configuration whose logit_scale the wrapper leaves out",
}


@pytest.mark.parametrize("family", ALWAYS)
def test_families_that_do_something_of_their_own(family):
    verdict = examine(lambda: build(family, KINDS[family], chance=0.3))
    assert verdict.kind == "right", verdict
    assert verdict.equal_lengths == (family in ("recurrent_gemma", "bart"))


def llava_around_granite():
    granite = make_config("granite", "GraniteForCausalLM").to_dict()
    default = make_config("llava", "LlavaForConditionalGeneration").to_dict()
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=default["vision_config"], text_config=granite))
    scramble(model)
    return model.eval()


def test_a_wrapper_that_ignores_what_its_text_configuration_says():
    model = llava_around_granite()
    assert isinstance(model.config.text_config, GraniteConfig)
    assert model.config.text_config.logits_scaling == 3.0
    verdict = examine(lambda: model)
    assert verdict.kind == "right", verdict
    assert not torch.isnan(torch.tensor(verdict.apart)).any()


REFUSED = {
    "camembert": "sample in generate",
    "cpmant": "not look ahead",
    "data2vec-text": "sample in generate",
    "janus": "transformers' own generate",
    "moshi": "sample in generate",
    "paligemma": "not look ahead",
    "prophetnet": "hidden states alone",
    "reformer": "If training",
    "roberta": "sample in generate",
    "roberta-prelayernorm": "sample in generate",
    "unlimited_ocr": "sample in generate",
    "xlm": "not look ahead",
    "xlm-roberta": "sample in generate",
    "xlm-roberta-xl": "sample in generate",
    "xlnet": "not look ahead",
    "xmod": "sample in generate",
}


@pytest.mark.parametrize("family", ["cpmant", "roberta", "moshi", "janus"])
def test_families_that_cannot_be_had_are_refused_by_name(family):
    verdict = examine(lambda: build(family, KINDS[family]))
    assert verdict.kind == "refused", verdict
    assert REFUSED[family] in verdict.note
    assert KINDS[family] in verdict.note


@pytest.mark.slow
def test_no_family_of_the_installed_transformers_is_wrong_without_a_word():
    results = survey()
    verdicts = {family: found for family, found in results.items() if not isinstance(found, str)}
    assert {family: found for family, found in verdicts.items() if found.kind == "wrong"} == {}
    refused = {family: found.note for family, found in verdicts.items() if found.kind == "refused"}
    assert all(REFUSED.get(family, "?") in note for family, note in refused.items()), refused
    assert sum(found.kind == "right" for found in verdicts.values()) >= 220
    assert max(max(found.apart[:3]) for found in verdicts.values() if found.apart) <= SCORED
    assert max(found.apart[3] for found in verdicts.values() if found.apart) <= SAMPLED
