"""What a rollout asks of whatever samples its responses, and the plain engine: one ``generate`` call after another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .sampling import Sample, Sampler, SamplingConfig, batches_of
from .scoring import Agree


@dataclass(frozen=True)
class GenerationRequest:
    """One response that is wanted.

    Args:
        prompt: token ids, not empty.
        budget: response tokens, at most.
        seed: the response is a pure function of weights, prompt and seed, up to rounding.
        lineage: what requests of one episode have in common, so that an engine may go on from what it kept of the last
            one; None where nothing does.
        key: the caller's own.
    """

    prompt: tuple[int, ...]
    budget: int
    seed: tuple[int | str, ...]
    lineage: Hashable = None
    key: Hashable = None


Feed = Callable[[list[tuple[GenerationRequest, Sample]]], list[GenerationRequest]]
"""The responses that ended since the last call -> the requests that join. First called with none."""


class Generator(Protocol):
    """Whatever samples responses."""

    def stream(self, feed: Feed, sampling: SamplingConfig, *, slots: int) -> None:
        """Answer requests, `slots` of them at a time, until none is left and `feed` has no more.

        Every request is answered exactly once. How many answers a call of `feed` gets is the engine's affair.
        """
        ...


@dataclass
class GenerationStats:
    """What an engine has done since it was made.

    Args:
        decode_steps: forward passes that added one token to every row.
        decoded_rows: their rows, summed over the steps.
        prefill_tokens: prompt tokens that were computed.
        prefill_saved: prompt tokens that were not, because the cache held them.
    """

    decode_steps: int = 0
    decoded_rows: int = 0
    prefill_tokens: int = 0
    prefill_saved: int = 0


class BatchGenerator:
    """The plain engine: batches of requests, each generated until its longest response ends.

    Args:
        sampler: samples a batch.
        agree: see `turncredit.rollout.RolloutCollector`; every process then calls `stream`.
    """

    def __init__(self, sampler: Sampler, agree: Agree | None = None):
        self.sampler = sampler
        self.agree = agree
        self.stats = GenerationStats()

    def stream(self, feed: Feed, sampling: SamplingConfig, *, slots: int) -> None:
        """See `Generator.stream`; `slots` requests make a batch."""
        requests = feed([])
        while self._agreed(int(bool(requests))):
            samples = self._answers(requests, sampling, slots)
            requests = feed([(request, samples[index]) for index, request in enumerate(requests)])

    def _agreed(self, count: int) -> int:
        return count if self.agree is None else self.agree([count])[0]

    def _answers(self, requests: Sequence[GenerationRequest], sampling: SamplingConfig, size: int) -> dict[int, Sample]:
        plan = batches_of([len(request.prompt) for request in requests], size, self.sampler.equal_lengths)
        samples: dict[int, Sample] = {}
        for number in range(self._agreed(len(plan))):
            rows = plan[number] if number < len(plan) else []
            batch = [requests[row] for row in rows]
            # where processes keep in step, one that has no batch left generates a token for nobody
            answers = self.sampler.sample(
                [request.prompt for request in batch] or [(self.sampler.tokenizer.pad_token_id,)],
                sampling,
                [request.seed for request in batch] or [("idle",)],
                budgets=[request.budget for request in batch] or [1],
                synced_gpus=self.agree is not None,
            )
            samples |= dict(zip(rows, answers, strict=bool(rows)))
            self._count(batch, answers)
        return samples

    def _count(self, batch: Sequence[GenerationRequest], answers: Sequence[Sample]) -> None:
        steps = max(len(sample.ids) for sample in answers) - 1
        self.stats.decode_steps += steps
        self.stats.decoded_rows += steps * len(answers)
        self.stats.prefill_tokens += sum(len(request.prompt) for request in batch)


class FunctionGenerator:
    """A `Generator` of a plain function, such as a call of a served engine.

    Args:
        answer: up to `slots` requests and the sampling settings -> one sample each, in their order.
    """

    def __init__(self, answer: Callable[[list[GenerationRequest], SamplingConfig], Sequence[Sample]]):
        self.answer = answer

    def stream(self, feed: Feed, sampling: SamplingConfig, *, slots: int) -> None:
        """See `Generator.stream`.

        Raises:
            ValueError: the function gives another number of samples than it got requests.
        """
        requests = feed([])
        while requests:
            ended: list[tuple[GenerationRequest, Sample]] = []
            for start in range(0, len(requests), slots):
                batch = requests[start : start + slots]
                samples = list(self.answer(batch, sampling))
                if len(samples) != len(batch):
                    raise ValueError(
                        f"FunctionGenerator: answer must give one sample per request, got {len(samples)} for "
                        f"{len(batch)}; keep their order"
                    )
                ended += zip(batch, samples, strict=True)
            requests = feed(ended)


def settle(pending: dict[Hashable, GenerationRequest], ended: Sequence[tuple[GenerationRequest, Sample]]) -> None:
    """Take the answered requests out of `pending`, which holds them by key.

    Raises:
        ValueError: one is not asked or answered already, or its sample cannot be its answer.
    """
    for request, sample in ended:
        if pending.pop(request.key, None) != request:
            raise ValueError(
                f"Generator.stream: every request must be answered once, got an answer to request {request.key!r}, "
                "which is not open; give feed the requests it asked for"
            )
        length = len(sample.ids)
        if not 1 <= length <= request.budget or len(sample.logprobs) != length:
            raise ValueError(
                f"Generator.stream: samples must have 1 to {request.budget} ids (the request's budget) and a log-prob "
                f"each, got {length} ids and {len(sample.logprobs)} log-probs; cut the response at the budget"
            )
        if max(sample.logprobs) > 0.01:
            raise ValueError(
                f"Generator.stream: log-probs must be at most 0, got {max(sample.logprobs):.3g}; give natural "
                "logarithms of probabilities"
            )


def check_settled(missing: int) -> None:
    """Raise a ValueError where a stream has ended and something is not done."""
    if missing:
        raise ValueError(
            f"Generator.stream: every request must be answered before it returns, got {missing} that were not; call "
            "feed with what has ended until it asks for nothing and nothing runs"
        )


def answers_of(
    generator: Generator, requests: Sequence[GenerationRequest], sampling: SamplingConfig, slots: int
) -> list[Sample]:
    """One response to every request, in their order; their keys are replaced.

    Raises:
        ValueError: the engine does not answer every request once, see `settle`.
    """
    samples: dict[Any, Sample] = {}
    waiting = [
        GenerationRequest(request.prompt, request.budget, request.seed, key=index)
        for index, request in enumerate(requests)
    ]
    pending = {request.key: request for request in waiting}

    def feed(ended: list[tuple[GenerationRequest, Sample]]) -> list[GenerationRequest]:
        nonlocal waiting
        settle(pending, ended)
        samples.update((request.key, sample) for request, sample in ended)
        joining, waiting = waiting, []
        return joining

    generator.stream(feed, sampling, slots=slots)
    check_settled(len(pending))
    return [samples[index] for index in range(len(requests))]
