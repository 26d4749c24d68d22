"""Sampling from a Hugging Face model: explicit settings, one seed per response, log-probs of what was sampled."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from .limits import embedding_rows
from .options import check_options, count, number
from .stop_strings import check_stop_strings, tokens_ending
from .stops import named_stop_ids
from .types import StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SamplingConfig:
    """How responses are sampled; nothing is inherited from a model folder's generation config but its stop ids.

    Args:
        temperature: 0 is greedy; log-probs are those of ``softmax(logits / temperature)``.
        top_p: nucleus mass in (0, 1]; 1 keeps all. Log-probs are of the untruncated distribution.
        top_k: number of tokens kept; 0 keeps all.
        max_completion_length: response tokens per turn, at most.
        max_trajectory_tokens: response tokens per trajectory, at most; None for no limit.
        max_prompt_length: prompt tokens per turn, at most; a longer prompt ends the episode with that cause.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_completion_length: int = 512
    max_trajectory_tokens: int | None = None
    max_prompt_length: int = 2048

    def __post_init__(self) -> None:
        for name, value in check_options("SamplingConfig", vars(self), _RULES).items():
            object.__setattr__(self, name, value)


_RULES = {
    "temperature": number(fix="0 is greedy"),
    "top_p": number(0.0, 1.0, above=True, fix="1 keeps every token"),
    "top_k": count(0, fix="0 keeps every token"),
    "max_completion_length": count(1),
    "max_trajectory_tokens": count(1, none="for no limit"),
    "max_prompt_length": count(1),
}


@dataclass(frozen=True)
class Sample:
    """One sampled response: its ids (stop ids included), their log-probs in nats, and why it ended."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason


def response_uniforms(seed_parts: Sequence[int | str], length: int) -> np.ndarray:
    """`length` uniforms in [0, 1), a pure function of `seed_parts`: the same on any machine and in any batch."""
    digest = hashlib.blake2b(repr(tuple(seed_parts)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(length)


def batches_of(lengths: Sequence[int], size: int, equal_lengths: bool) -> list[list[int]]:
    """Indices of prompts in batches of at most `size`, in order; with `equal_lengths`, of one length each."""
    rows: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows.setdefault(length if equal_lengths else 0, []).append(row)
    return [group[start : start + size] for group in rows.values() for start in range(0, len(group), size)]


def precision_of(model: Any) -> str:
    """In which precision a forward pass of `model` runs here: of autocast, or of its coarsest weights."""
    device = model.get_input_embeddings().weight.device.type
    kinds = {parameter.dtype for parameter in model.parameters()}
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    for kind in (torch.bfloat16, torch.float16):
        if kind in kinds or (kind is torch.bfloat16 and any(not k.is_floating_point for k in kinds)):
            return str(kind).removeprefix("torch.")
    coarse = device == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if coarse else "float32"


class TokenPicker:
    """Picks every row's next token from a uniform of its own, so that it depends on nobody else in the batch.

    Args:
        config: temperature, top-k and top-p.
    """

    def __init__(self, config: SamplingConfig):
        self.temperature = config.temperature
        self.warpers: list[LogitsProcessor] = [
            *([TopKLogitsWarper(config.top_k)] if config.top_k else []),
            *([TopPLogitsWarper(config.top_p)] if config.top_p < 1 else []),
        ]

    def __call__(self, scores: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[n, 1]`` and their log-probs ``[n, 1]`` of logits ``[n, V]`` by uniforms ``[n, 1]`` (float64)."""
        scores = scores.float() / (self.temperature or 1.0)
        logprobs = scores.log_softmax(-1)
        if self.temperature == 0:
            token = scores.argmax(-1, keepdim=True)
        else:
            for warper in self.warpers:  # they read no ids
                scores = warper(cast(torch.LongTensor, None), cast(torch.FloatTensor, scores))
            cumulative = (logprobs if not self.warpers else scores.log_softmax(-1)).double().exp_().cumsum_(-1)
            target = uniforms * cumulative[:, -1:]
            token = torch.searchsorted(cumulative, target, right=True).clamp_(max=scores.shape[-1] - 1)
        return token, logprobs.gather(-1, token)


class _InverseCdfSampler(LogitsProcessor):
    """Leaves only the token possible that a `TokenPicker` picks, so that greedy decoding takes it."""

    def __init__(self, config: SamplingConfig, uniforms: Tensor):
        self.pick = TokenPicker(config)
        self.uniforms = uniforms
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        step = min(len(self.logprobs), self.uniforms.shape[1] - 1)
        token, logprobs = self.pick(scores, self.uniforms[:, step : step + 1])
        self.logprobs.append(logprobs.squeeze(-1))
        return torch.full_like(scores, -torch.inf, dtype=torch.float32).scatter_(-1, token, 0.0)


class StopStrings:
    """Tells whether the last token of a response completes a stop string."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop_strings: Sequence[str]):
        self.decode, self.strings = decode, tuple(stop_strings)
        # a character may be as many tokens as it has bytes
        self.tail = 8 + max((len(s.encode("utf-8", "surrogatepass")) for s in self.strings), default=0)

    def end(self, response: Tensor) -> bool:
        """Whether ``response [T]`` ends with one; only its last tokens are read."""
        if not self.strings:
            return False
        ids = response[-self.tail :].tolist()
        # a window that starts inside a character spoils the whole run of bytes it belongs to (byte fallback)
        for start in range(min(4, len(ids))):
            text = self.decode(ids[start:])
            found = [stop for stop in self.strings if stop in text]
            before = self.decode(ids[start:-1]) if found else ""
            if any(text.count(stop) > before.count(stop) for stop in found):
                return True
            if "�" not in text or len(response) <= self.tail:
                return False
        return False


class StopWatch(StoppingCriteria):
    """Ends a row at an end-of-sequence id, at a stop string or at its own budget, and remembers where and why."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        ends_stop_string: Tensor,
        prompt_width: int,
        budgets: Sequence[int],
        stop_strings: Sequence[str],
        eos_token_ids: Sequence[int],
    ):
        self.ends_stop_string = ends_stop_string
        self.prompt_width = prompt_width
        self.budgets = torch.tensor(budgets, device=ends_stop_string.device)
        self.stop_strings = StopStrings(decode, stop_strings)
        self.eos_token_id = torch.tensor(list(eos_token_ids), dtype=torch.long, device=ends_stop_string.device)
        self.ends: list[tuple[int, StopReason] | None] = [None] * len(budgets)
        self.done = torch.zeros(len(budgets), dtype=torch.bool, device=ends_stop_string.device)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        length = input_ids.shape[1] - self.prompt_width
        last = input_ids[:, -1]
        eos = torch.isin(last, self.eos_token_id)
        spent = self.budgets <= length
        suspects = ~self.done & (eos | spent | self.ends_stop_string[last])
        for row in suspects.nonzero().flatten().tolist():
            reason = None
            if bool(eos[row]):
                reason = StopReason.EOS
            elif self.stop_strings.end(input_ids[row, self.prompt_width :]):
                reason = StopReason.STOP_STRING
            elif bool(spent[row]):
                reason = StopReason.LENGTH
            if reason is not None:
                self.ends[row] = (length, reason)
                self.done[row] = True
        return self.done


@contextlib.contextmanager
def blank_generation_config(model: Any) -> Iterator[None]:
    """Inside, `model` has the defaults of transformers, whatever its folder says."""
    saved = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved


class Sampler:
    """Samples responses for a batch of prompts with Hugging Face ``generate``.

    Args:
        model: a causal language model (unwrapped from DDP or DeepSpeed).
        tokenizer: its tokenizer, with a padding token.
        stop_strings: a response ends right after the token that completes one of these; a plain string is one.
        eos_token_ids: end-of-sequence ids; None takes those of the tokenizer and of the model's generation config.
        equal_lengths: whether prompts of different lengths must not share a batch, because the model takes the padding
            to the left of a shorter one for text (many recurrent families do); None tries it out once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_strings: Sequence[str] | str = (),
        eos_token_ids: Sequence[int] | None = None,
        equal_lengths: bool | None = None,
    ):
        self.model: Any = model
        self._equal_lengths = equal_lengths
        self.tokenizer: Any = tokenizer
        self.stop_strings = check_stop_strings(stop_strings, "Sampler")
        if eos_token_ids is None:
            eos_token_ids = named_stop_ids(model, tokenizer)
        self.eos_token_ids = tuple(eos_token_ids)
        size = max(len(tokenizer), embedding_rows(model))
        self.ends_stop_string = tokens_ending(tokenizer, self.stop_strings, size)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included, nothing tidied up."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @property
    def equal_lengths(self) -> bool:
        """Whether prompts of different lengths must not share a batch; tried out at first use.

        Raises:
            ValueError: ``generate`` follows another distribution than the model's forward, whatever the batch.
        """
        if self._equal_lengths is None:
            self._equal_lengths = False  # for the trial
            was_training = self.model.training
            self.model.eval()
            try:
                self._equal_lengths = self._try_out()
            finally:
                self.model.train(was_training)
        return self._equal_lengths

    @torch.no_grad()
    def _try_out(self) -> bool:
        special = {*self.tokenizer.all_special_ids, *self.eos_token_ids}
        prompt = [i for i in range(embedding_rows(self.model)) if i not in special][:8]
        config = SamplingConfig(temperature=0.0, max_completion_length=8)
        alone, long = (self.sample([ids], config, [("trial",)])[0] for ids in (prompt[:3], prompt))
        beside = self.sample([prompt[:3], prompt], config, [("trial",), ("trial",)])[0]
        rounded = precision_of(self.model) != "float32"
        apart = max(*self.gaps(prompt[:3], alone), *self.gaps(prompt, long))
        if apart > (0.5 if rounded else 0.02):
            raise ValueError(
                f"Sampler: model must sample in generate() what its forward scores, got {type(self.model).__name__}, "
                f"whose log-probs are {apart:.2g} nats apart; take a model of another class"
            )
        gaps = self.gaps(prompt[:3], beside)
        blind = sum(gaps) / len(gaps) > 0.1 if rounded else max(gaps) > 2e-3  # rounding makes single tokens jump
        if blind:
            logger.warning(
                "%s takes left padding for text (log-probs move by up to %.2g nats): prompts are sampled in batches of "
                "equal lengths, which is slower",
                type(self.model).__name__,
                max(gaps),
            )
        return blind

    def gaps(self, prompt: Sequence[int], sample: Sample) -> list[float]:
        """By how much a sample's log-probs differ from those of the model's forward for the row alone, in nats."""
        ids = torch.tensor([[*prompt, *sample.ids]], device=self.model.get_input_embeddings().weight.device)
        scores = self.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        scores = scores.gather(-1, ids[0, len(prompt) :, None]).flatten()
        return [abs(a - b) for a, b in zip(scores.tolist(), sample.logprobs, strict=True)]

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        seeds: Sequence[Sequence[int | str]],
        *,
        budgets: Sequence[int] | None = None,
        synced_gpus: bool = False,
    ) -> list[Sample]:
        """Sample one response per prompt.

        Args:
            prompts: B token-id sequences of any lengths; left-padded here, with position ids to match.
            config: temperature, top-p, top-k and the response budget.
            seeds: B tuples; response b is a pure function of its prompt, the weights and ``seeds[b]``.
            budgets: B response budgets, or None for ``config.max_completion_length`` each.
            synced_gpus: every rank of a ZeRO-3 run keeps calling the model until all are done; all ranks must then make
                equally many calls, so prompts are grouped beforehand (`batches_of`) where lengths must be equal.

        Raises:
            ValueError: the numbers of prompts, seeds and budgets differ, or a prompt is empty.
        """
        if len(seeds) != len(prompts):
            raise ValueError(f"Sampler.sample: seeds must have one entry per prompt, got {len(seeds)}, {len(prompts)}")
        budgets = list(budgets) if budgets is not None else [config.max_completion_length] * len(prompts)
        if len(budgets) != len(prompts) or min(budgets, default=1) < 1:
            raise ValueError(f"Sampler.sample: budgets must be {len(prompts)} positive numbers, got {budgets}")
        if not prompts:
            return []
        if min(len(prompt) for prompt in prompts) == 0:
            raise ValueError("Sampler.sample: prompts must not be empty; render them with the chat template")
        if len({len(prompt) for prompt in prompts}) > 1 and self.equal_lengths:
            samples: dict[int, Sample] = {}
            for rows in batches_of([len(prompt) for prompt in prompts], len(prompts), True):
                part = ([prompts[row] for row in rows], config, [seeds[row] for row in rows])
                answers = self.sample(*part, budgets=[budgets[row] for row in rows], synced_gpus=synced_gpus)
                samples |= dict(zip(rows, answers, strict=True))
            return [samples[row] for row in range(len(prompts))]
        device = self.model.get_input_embeddings().weight.device
        width, length = max(len(prompt) for prompt in prompts), max(budgets)
        ids = torch.full((len(prompts), width), self.tokenizer.pad_token_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, width - len(prompt) :] = 1
        uniforms = np.stack([response_uniforms(seed, length) for seed in seeds])
        sampler = _InverseCdfSampler(config, torch.from_numpy(uniforms).to(device))
        watch = StopWatch(
            self.decode, self.ends_stop_string.to(device), width, budgets, self.stop_strings, self.eos_token_ids
        )
        settings = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=length,
            use_cache=True,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=None,
            bos_token_id=None,
        )
        was_training = self.model.training
        self.model.eval()
        try:
            with blank_generation_config(self.model):
                output = self.model.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([sampler]),
                    stopping_criteria=StoppingCriteriaList([watch]),
                    synced_gpus=synced_gpus,
                )
        finally:
            self.model.train(was_training)
        if not sampler.logprobs:
            raise ValueError(
                f"Sampler: model must use transformers' own generate(), got {type(self.model).__name__}, which has "
                "another; take a model of another class"
            )
        sampled = output[:, width:].tolist()
        logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
        finished = []
        for row, end in enumerate(watch.ends):
            stop, reason = end if end is not None else (budgets[row], StopReason.LENGTH)
            finished.append(Sample(tuple(sampled[row][:stop]), tuple(logprobs[row][:stop]), reason))
        return finished
