"""Whether a model is scored, trained and sampled right: four comparisons with its own forward, one verdict."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers.families import KINDS, VOCABULARY, build
from turncredit.rollout import PolicyScorer, SamplingConfig, score_responses
from turncredit.rollout.determinism import make_deterministic
from turncredit.rollout.packing import pack_rows
from turncredit.rollout.sampling import Sampler

TEMPERATURE = 0.7
SCORED, SAMPLED = 1e-4, 0.02
"""Tolerances in nats: between two forward passes, and between the steps of a cache and a whole forward pass (most agree
within 1e-5; the state of Mamba-2 layers drifts more, in float64 as well)."""

PROMPTS = [tuple(range(3, 9)), (5, 9, 40), (7,) * 11]
RESPONSES = [(10, 20, 30, 41), (33,), (50, 51, 52, 53, 54, 8, 2)]
UNEQUAL = [(5, 9, 40), tuple(range(7, 19))]


@dataclass(frozen=True)
class Verdict:
    """Kind: "right", "refused" or "wrong"; what was said; whether prompts are batched by length; nats apart."""

    kind: str
    note: str = ""
    equal_lengths: bool = False
    apart: tuple[float, ...] = ()


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token="w63"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w2", unk_token="w63")


@torch.no_grad()
def by_its_forward(model: Any) -> Tensor:
    """One row at a time, all logits, no padding."""
    rows = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].float() / TEMPERATURE
        log_all = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        rows.append(log_all.gather(-1, torch.tensor(response)[:, None]).squeeze(-1))
    return torch.cat(rows)


def scored(scorer: PolicyScorer, together: bool) -> Tensor:
    rows = zip(PROMPTS, RESPONSES, strict=True)
    batches = [(PROMPTS, RESPONSES)] if together else [([prompt], [response]) for prompt, response in rows]
    scores = [score_responses(scorer, *batch, pad_token_id=0, temperature=TEMPERATURE) for batch in batches]
    return torch.cat([score.logprobs[score.mask] for score in scores])


@torch.no_grad()
def in_train_mode(scorer: PolicyScorer) -> Tensor:
    packed = pack_rows(PROMPTS, RESPONSES, 0)
    scorer.train()
    try:
        return scorer(packed.input_ids, packed.positions, packed.targets, TEMPERATURE)[0]
    finally:
        scorer.eval()


def sampled_against_scored(sampler: Sampler, scorer: PolicyScorer) -> float:
    config = SamplingConfig(temperature=TEMPERATURE, max_completion_length=7)
    samples = sampler.sample(UNEQUAL, config, [(0,), (1,)])
    options = {"pad_token_id": 0, "temperature": TEMPERATURE}
    scores = score_responses(scorer, UNEQUAL, [sample.ids for sample in samples], **options)
    recorded = torch.tensor([value for sample in samples for value in sample.logprobs])
    return float((scores.logprobs[scores.mask] - recorded).abs().max())


def examine(make: Callable[[], Any]) -> Verdict:
    """Scores against the forward, padded against alone, train against eval mode, sampled against scored."""
    model = make()
    try:
        scorer = PolicyScorer(model, chunk_tokens=5)
        expected = by_its_forward(model)
        alone, together = scored(scorer, False), scored(scorer, True)
        left = make_deterministic(model)
        training = in_train_mode(scorer)
        sampler = Sampler(model, tokenizer(), eos_token_ids=())
        equal = sampler.equal_lengths
        sampled = sampled_against_scored(sampler, scorer)
    except ValueError as error:
        return Verdict("refused", str(error).split("\n")[0])
    apart = tuple(float((scores - expected).abs().max()) for scores in (alone, together, training))
    fine = not left and max(apart) <= SCORED and sampled <= SAMPLED
    return Verdict("right" if fine else "wrong", str(left or ""), equal, (*apart, sampled))


def survey() -> dict[str, Verdict | str]:
    """Model type -> verdict, or the reason why no tiny model of it can be built and run on text."""
    results: dict[str, Verdict | str] = {}
    for family, kind in KINDS.items():
        made: list[Any] = []
        try:
            try:
                made.append(build(family, kind, chance=0.3))
            except ValueError:  # some refuse dropout
                made.append(build(family, kind))
        except Exception as error:  # whatever a configuration, a constructor or a forward says
            results[family] = f"{type(error).__name__}: {error}"
            continue
        try:
            results[family] = examine(made.pop)
        except Exception as error:
            if "transformers" not in traceback.extract_tb(error.__traceback__)[-1].filename:
                raise
            results[family] = f"in its own code, {type(error).__name__}: {error}"
    return results
