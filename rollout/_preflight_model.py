"""Preflight of the model: what is sampled, what is scored and what the model itself says, on a few short rows."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._preflight_report import OK, REFUSED, Check, attempt
from .chat import shortest_chat
from .packing import pack_rows
from .prompts import render_prompt
from .sampling import Sampler, SamplingConfig
from .scoring import PolicyScorer

TOLERANCES: dict[str, tuple[float, float]] = {
    "float32": (1e-4, 1e-3),
    "tf32": (2e-2, 2e-2),
    "float16": (1e-2, 3e-2),
    "bfloat16": (2e-2, 1e-1),
}
"""Nats per token, on average, by precision: for the same forward pass, and for one of another shape (another batch,
with a cache); at a temperature below 1 they grow with its inverse. docs/preflight.md says what was measured."""

_TEXTS = (
    "look",
    "You are in a room. There is a door, a key and a table. What do you do next?",
    "The door is open. You carry the key. Behind the door is another room with one more door and two keys in it.",
)
_TOKENS = 6
_TRAIN_PASSES = 3


@dataclass(frozen=True)
class Rows:
    """Short rows of the run's own kind. Args: prompts, responses, log-probs of the first responses where sampled."""

    prompts: list[tuple[int, ...]]
    responses: list[tuple[int, ...]]
    sampled: list[tuple[float, ...]]


@contextlib.contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Inside, random numbers may be drawn and modes changed; afterwards all is as it was."""
    python, numpy_state, modes = random.getstate(), np.random.get_state(), {m: m.training for m in model.modules()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        for module, mode in modes.items():
            module.training = mode


def tolerances(precision: str, temperature: float) -> tuple[float, float]:
    """`TOLERANCES` of a precision at a temperature."""
    sharp = max(1.0, 1.0 / (temperature or 1.0))
    same, other = TOLERANCES[precision]
    return same * sharp, other * sharp


def make_prompts(tokenizer: Any, kwargs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Prompts of unequal lengths."""
    return [render_prompt(tokenizer, shortest_chat(tokenizer, text, kwargs), kwargs) for text in _TEXTS]


def tokens_needed(prompts: Sequence[Sequence[int]]) -> int:
    """Length of the longest row that `make_rows` makes of prompts."""
    return max(map(len, prompts)) + _TOKENS


def make_rows(
    model: Any, tokenizer: Any, prompts: list[tuple[int, ...]], sampling: SamplingConfig, synced: bool = False
) -> Rows:
    """The prompts with sampled responses, and each again with a response that was not sampled."""
    settings = SamplingConfig(temperature=sampling.temperature, max_completion_length=_TOKENS)
    sampler = Sampler(model, tokenizer, eos_token_ids=())
    seeds = [("preflight", row) for row in range(len(prompts))]
    samples = sampler.sample(prompts, settings, seeds, synced_gpus=synced)
    unlikely = unsampled_rows(prompts)
    return Rows(
        [*prompts, *prompts],
        [*(sample.ids for sample in samples), *unlikely.responses],
        [sample.logprobs for sample in samples],
    )


def unsampled_rows(prompts: list[tuple[int, ...]]) -> Rows:
    """The prompts with responses of ids that they hold: ordinary ones, and unlikely as answers."""
    return Rows(list(prompts), [tuple(reversed(prompt[-_TOKENS:])) for prompt in prompts], [])


def score(scorer: PolicyScorer, prompts: Any, responses: Any, pad: int, temperature: float) -> list[Tensor]:
    """Scores in one padded batch, row by row, in the scorer's present mode."""
    packed = pack_rows(prompts, responses, pad, scorer.model.get_input_embeddings().weight.device)
    logprobs, _ = scorer(packed.input_ids, packed.positions, packed.targets, temperature)
    return list(logprobs.float().cpu().split(list(packed.lengths)))


def model_logprobs(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float) -> Tensor:
    """The same from the logits that the model itself returns for the row alone."""
    ids = torch.tensor([[*prompt, *response]], device=model.get_input_embeddings().weight.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()


def difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[float, float]:
    """Mean and largest absolute difference over all tokens."""
    one, two = torch.cat(list(first)), torch.cat(list(second))
    gap = torch.where(one == two, 0.0, (one - two).abs())  # equal infinities: a token that the model rules out
    return float(gap.mean()), float(gap.max())


def compare(name: str, first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float, fix: str) -> Check:
    """A check of two lists of scores; NaN refuses."""
    mean, largest = difference(first, second)
    got = f"{mean:.2g} nats per token (largest {largest:.2g})"
    if mean <= tolerance:
        return Check(name, OK, got, f"at most {tolerance:.2g}")
    means = [float(torch.cat(list(scores)).mean()) for scores in (first, second)]
    got = f"{got}; mean log-probs {means[0]:.4f} and {means[1]:.4f}"
    return Check(name, REFUSED, got, f"at most {tolerance:.2g}", fix)


_HEAD = "the class's head does more than PolicyScorer knows: train a model of another class, or report the class"
_PADDED = "the model reads pads or later tokens: train a causal one, or report the class"
_CAUSAL = "the model reads later tokens: load a causal one (is_decoder=True where the class knows it)"
_SAMPLED = "generation and scoring disagree (left padding, the cache): train a model of another class, or report it"
_TRAIN = "randomness or another rule is left in train mode: set its rate to 0 in the model's configuration"


def model_checks(scorer: PolicyScorer, rows: Rows, pad: int, temperature: float, precision: str) -> list[Check]:
    """Scores of the rows against the model's logits, alone, with a later token changed, as sampled, in train mode."""
    same, other = tolerances(precision, temperature)
    scorer.eval()
    every = range(len(rows.prompts))

    def scored(index: Sequence[int], responses: Sequence[Sequence[int]] = rows.responses) -> list[Tensor]:
        return score(scorer, [rows.prompts[i] for i in index], [responses[i] for i in index], pad, temperature)

    def against_model() -> Check:
        own = [model_logprobs(scorer.model, rows.prompts[i], rows.responses[i], temperature) for i in every]
        return compare("scores against the model", alone, own, same, _HEAD)

    def causal() -> Check:
        changed = [(*response[:-1], _another(response[-1], rows.prompts[0])) for response in rows.responses]
        first = [values[:-1] for values in batch]
        return compare(
            "scores with a later token changed", [v[:-1] for v in scored(every, changed)], first, same, _CAUSAL
        )

    def in_train_mode() -> Check:
        scorer.train()
        try:
            passes = [scored(every) for _ in range(_TRAIN_PASSES)]
        finally:
            scorer.eval()
        worst = max(passes, key=lambda values: difference(values, batch))
        return compare("train mode against eval mode", worst, batch, same, _TRAIN)

    batch: list[Tensor] = []
    alone: list[Tensor] = []

    def score_all() -> Check:
        batch.extend(scored(every))
        alone.extend(scored([i])[0] for i in every)
        return Check("scores", OK, "")

    failed = attempt("scores", score_all, _HEAD)
    if failed.status != OK:
        return [failed]
    sampled = [torch.tensor(values) for values in rows.sampled]
    checks = [
        attempt("scores against the model", against_model, _HEAD),
        compare("padded against alone", batch, alone, other, _PADDED),
        attempt("scores with a later token changed", causal, _CAUSAL),
    ]
    if sampled:
        checks.append(compare("sampled against scored", sampled, batch[: len(sampled)], other, _SAMPLED))
    return [*checks, attempt("train mode against eval mode", in_train_mode, _TRAIN)]


def _another(token: int, ids: Sequence[int]) -> int:
    return next((other for other in ids if other != token), token)
