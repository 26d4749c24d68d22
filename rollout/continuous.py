"""Continuous decoding: a finished response leaves at once, the next prompt joins the running batch."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from transformers import GenerationConfig

from .attention import attention_windows
from .decoding import DecodingLoop, LoopSettings
from .generator import BatchGenerator, Feed, GenerationRequest, GenerationStats
from .limits import embedding_rows
from .sampling import Sample, Sampler, SamplingConfig, blank_generation_config, precision_of
from .scoring import Agree
from .slot_cache import SlotCache

logger = logging.getLogger(__name__)


class ContinuousGenerator:
    """The engine that keeps its rows full, inside one ``generate`` call per stream.

    A response that ends leaves; once ended rows have idled for two steps of all rows, their successors join. What the
    cache still holds of a prompt's beginning is not computed again: of the episode's last turn, and of any other row. A
    model that it cannot run is generated in batches, and one log line says why.

    Args:
        sampler: model, tokenizer and what ends a response.
        agree: see `turncredit.rollout.RolloutCollector`; every process then calls `stream`.
        multiples: rows and columns of a decode step are rounded up to multiples of these, so that shapes recur.
    """

    def __init__(self, sampler: Sampler, agree: Agree | None = None, *, multiples: tuple[int, int] = (1, 1)):
        self.sampler, self.agree, self.multiples = sampler, agree, multiples
        self.stats = GenerationStats()
        self._fits: bool | None = None

    def stream(self, feed: Feed, sampling: SamplingConfig, *, slots: int) -> None:
        """See `turncredit.rollout.generator.Generator.stream`."""
        if self.fits:
            self._run(feed, sampling, slots, self.stats)
            return
        plain = BatchGenerator(self.sampler, self.agree)
        plain.stats = self.stats
        plain.stream(feed, sampling, slots=slots)

    @property
    def fits(self) -> bool:
        """Whether the model can be run this way; tried out at first use."""
        if self._fits is None:
            reason = self._misfit()
            apart = int(reason is not None)  # processes in step take the same engine
            self._fits = not (apart if self.agree is None else self.agree([apart])[0])
            if reason is not None:
                name = type(self.sampler.model).__name__
                logger.warning("%s is generated in batches, which is slower: %s", name, reason)
        return self._fits

    def _run(self, feed: Feed, sampling: SamplingConfig, slots: int, stats: GenerationStats) -> None:
        model: Any = self.sampler.model
        grad = torch.is_grad_enabled()

        def fed(ended: list[tuple[GenerationRequest, Sample]]) -> list[GenerationRequest]:
            with torch.set_grad_enabled(grad):
                return feed(ended)

        settings = LoopSettings(self.sampler, sampling, slots, self.agree, self.multiples)
        loop = DecodingLoop(settings, fed, stats)
        token = torch.full((1, 1), self.sampler.tokenizer.pad_token_id, device=loop.device)
        config = GenerationConfig(max_new_tokens=1, do_sample=False, pad_token_id=self.sampler.tokenizer.pad_token_id)
        was_training = model.training
        model.eval()
        try:
            with blank_generation_config(model):
                model.generate(
                    input_ids=token,
                    attention_mask=torch.ones_like(token),
                    generation_config=config,
                    custom_generate=loop.run,
                    synced_gpus=False,
                )
        finally:
            model.train(was_training)
        if not loop.ran:
            raise TypeError("its generate() is not that of transformers")

    def _misfit(self) -> str | None:
        """Why the model cannot be run this way, or None."""
        try:
            return self._missing() or self._try_out()
        except Exception as error:  # whatever a model's forward says to a cache and masks it was not made for
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def _missing(self) -> str | None:
        if self.sampler._equal_lengths:
            return "prompts of different lengths must not share a batch"
        model: Any = self.sampler.model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        attention_windows(model)
        SlotCache(model)
        accepted = inspect.signature(base.forward).parameters
        for names in (("cache", "past_key_values"), ("position_ids",), ("attention_mask",)):
            if not any(name in accepted for name in names):
                return f"its forward takes no {names[0]}"
        return None

    def _try_out(self) -> str | None:
        """Few short prompts, one of which joins late and one of which goes on, against the model's own forward."""
        special = {*self.sampler.tokenizer.all_special_ids, *self.sampler.eos_token_ids}
        plain = [i for i in range(embedding_rows(self.sampler.model)) if i not in special][:8]
        windows = [window for window in attention_windows(self.sampler.model).values() if window]
        length = max(8, min([*windows, 64]) + 3 if windows else 8)
        long, short = tuple((plain * length)[:length]), tuple(plain[:3])
        coming = [[(short, 8), (long, 3)], [(long, 4)], [(short, 2)]]
        answers: list[tuple[GenerationRequest, Sample]] = []

        def feed(ended: list[tuple[GenerationRequest, Sample]]) -> list[GenerationRequest]:
            answers.extend(ended)
            joining = [
                GenerationRequest(prompt, budget, ("trial",), lineage=(len(coming), budget))
                for prompt, budget in (coming.pop(0) if coming else [])
            ]
            for request, sample in ended:
                if request.prompt == long:  # goes on where it ended
                    grown = (*long, *sample.ids, *short)
                    joining.append(GenerationRequest(grown, 3, ("trial",), lineage=request.lineage))
            return joining

        settings = SamplingConfig(temperature=0.0, max_completion_length=8)
        self._run(feed, settings, 3, GenerationStats())
        with torch.no_grad():
            was_training = self.sampler.model.training
            self.sampler.model.eval()
            try:
                gaps = [gap for request, sample in answers for gap in self.sampler.gaps(request.prompt, sample)]
            finally:
                self.sampler.model.train(was_training)
        rounded = precision_of(self.sampler.model) != "float32"
        wrong = sum(gaps) / len(gaps) > 0.1 if rounded else max(gaps) > 2e-3  # rounding makes single tokens jump
        return f"its log-probs would be up to {max(gaps):.2g} nats off" if wrong or not gaps else None
