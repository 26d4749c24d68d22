"""The loop of a rollout: episodes in slots, replayed where they start later, then turn by turn until they end."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from ..envs import EnvFailure, Observation, ParsedResponse, StepResult, TaskSuite
from ..envs.replay import replay
from ..envs.vector import VectorEnv
from .episodes import Episode, EpisodeStart
from .generator import GenerationRequest, Generator, check_settled, settle
from .sampling import Sample, Sampler, SamplingConfig
from .suite_calls import parsed_response, turn_chat, turn_context, turn_messages
from .text import plain, token_range
from .types import StopReason, Trajectory, Turn


@dataclass(frozen=True)
class PlaySettings:
    """How the episodes of one call are played; see `RolloutCollector.collect_starts`."""

    seed: int
    step: int
    sampling: SamplingConfig
    progress: Any = None


class Player(Protocol):
    """What a `Play` needs of a collector; see `turncredit.rollout.RolloutCollector`."""

    suite: TaskSuite
    envs: VectorEnv
    tokenizer: Any
    sampler: Sampler
    chat_template_kwargs: dict[str, Any]
    generation_batch_size: int | None

    @property
    def generator(self) -> Generator: ...

    def prompt_room(self, sampling: SamplingConfig) -> int: ...

    def prompt_failure(self, sampling: SamplingConfig) -> str: ...

    def response_text(self, sample: Sample) -> str: ...


class Play:
    """One call of the collector: which episode is in which slot, and what came of those that ended."""

    def __init__(self, collector: Player, starts: Sequence[EpisodeStart], settings: PlaySettings):
        self.collector, self.settings = collector, settings
        self.suite, self.envs = collector.suite, collector.envs
        self.seconds = {"generation": 0.0, "environment": 0.0}
        self._waiting = deque((index, Episode(start)) for index, start in enumerate(starts))
        self._playing: dict[int, tuple[int, Episode]] = {}  # by slot
        self._asked: dict[Hashable, GenerationRequest] = {}  # by slot
        self._results: dict[int, Trajectory] = {}
        self._turns_played = 0

    def run(self) -> list[Trajectory]:
        """Play every episode to its end; the trajectories in the order of the starts."""
        self.envs.release(range(self.envs.num_envs))  # what an interrupted call left behind
        clock = time.perf_counter()
        slots = min(self.envs.num_envs, self.collector.generation_batch_size or self.envs.num_envs)
        self.collector.generator.stream(self._feed, self.settings.sampling, slots=slots)
        check_settled(len(self._playing) + len(self._waiting))
        self.seconds["generation"] = time.perf_counter() - clock - self.seconds["environment"]
        return [self._results[index] for index in range(len(self._results))]

    def _feed(self, ended: list[tuple[GenerationRequest, Sample]]) -> list[GenerationRequest]:
        """Act on the responses that ended, start episodes in the slots that are free, and ask for the next turns."""
        settle(self._asked, ended)
        with self._timed("environment"):
            self._act({cast(int, request.key): sample for request, sample in ended})
        ready = [cast(int, request.key) for request, _ in ended if request.key in self._playing]
        while True:
            with self._timed("environment"):
                ready += self._fill_slots()
            ready = [slot for slot in list(self._playing) if slot in ready and self._prepare(slot)]
            if ready or not self._waiting or len(self._playing) == self.envs.num_envs:
                ready.sort(key=lambda slot: len(self._episode(slot).prompt_ids))
                self._asked |= {slot: self._request(slot) for slot in ready}
                return [self._asked[slot] for slot in ready]

    def _request(self, slot: int) -> GenerationRequest:
        index, episode = self._playing[slot]
        seed = episode.seed(self.settings.seed, self.settings.step)
        return GenerationRequest(episode.prompt_ids, episode.budget, seed, lineage=index, key=slot)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        clock = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - clock

    def _episode(self, slot: int) -> Episode:
        return self._playing[slot][1]

    def _fill_slots(self) -> list[int]:
        """Start waiting episodes in the free slots, which are returned: reset, then the recorded turns of all of them
        together."""
        fresh = []
        for slot in range(self.envs.num_envs):
            if slot not in self._playing and self._waiting:
                self._playing[slot] = self._waiting.popleft()
                fresh.append(slot)
        recordings = {slot: self._episode(slot).start.recording() for slot in fresh}
        for slot, outcome in (replay(self.envs, recordings, plain_observation) if fresh else {}).items():
            if isinstance(outcome, EnvFailure):
                self._fail(slot, outcome)
            else:
                episode = self._episode(slot)
                episode.begin(outcome)
                if episode.replayed:
                    self._finish_if_over(slot, outcome)
        return [slot for slot in fresh if slot in self._playing]

    def _prepare(self, slot: int) -> bool:
        """Whether the episode goes on with a next turn."""
        episode = self._episode(slot)
        reason = self._prepare_turn(episode)
        if isinstance(reason, EnvFailure):
            self._fail(slot, reason)
        elif reason is not None:
            failure = None if episode.turns else self.collector.prompt_failure(self.settings.sampling)
            self._finish(slot, reason, failure)
        return reason is None

    def _prepare_turn(self, episode: Episode) -> StopReason | EnvFailure | None:
        """Render the next prompt; returns a reason when the episode must end instead."""
        episode.observation = plain_observation(episode.observation)
        sampling = self.settings.sampling
        limit, longest = sampling.max_trajectory_tokens, sampling.max_completion_length
        episode.budget = min(longest, limit - episode.tokens if limit else longest)
        if episode.budget < 1:
            return StopReason.TOKEN_BUDGET
        messages = turn_messages(self.suite, episode.start.task, episode.history, episode.observation)
        if isinstance(messages, EnvFailure):
            return messages
        context = turn_context(episode.start.context, len(episode.turns))
        if isinstance(context, EnvFailure):
            return context
        episode.messages = plain(messages)
        kwargs = self.collector.chat_template_kwargs
        chat = turn_chat(self.suite, self.collector.tokenizer, episode.messages, context, kwargs)
        if isinstance(chat, EnvFailure):
            return chat
        episode.prompt_ids, episode.opened = chat
        return StopReason.PROMPT_BUDGET if len(episode.prompt_ids) > self.collector.prompt_room(sampling) else None

    def _act(self, samples: dict[int, Sample]) -> None:
        """Read the responses, take the actions, record the turns."""
        parsed: dict[int, ParsedResponse] = {}
        outcomes: dict[int, StepResult | EnvFailure] = {}
        for slot, sample in samples.items():
            read = parsed_response(self.suite, self.collector.response_text(sample), self._episode(slot).opened)
            (outcomes if isinstance(read, EnvFailure) else parsed)[slot] = read  # type: ignore[index]
        if parsed:
            outcomes |= self.envs.step({slot: read.action for slot, read in parsed.items()})
        for slot, sample in samples.items():
            outcome = outcomes[slot]
            self._turns_played += 1
            if isinstance(outcome, EnvFailure):
                self._fail(slot, outcome)
                continue
            episode = self._episode(slot)
            episode.add(self._turn(episode, sample, parsed[slot], outcome))
            episode.reach(outcome)
            self._finish_if_over(slot, outcome)

    def _turn(self, episode: Episode, sample: Sample, parsed: ParsedResponse, outcome: StepResult) -> Turn:
        observation = episode.observation
        text = self.collector.response_text(sample)
        closing = int(sample.stop_reason is StopReason.EOS)

        def tokens(span: tuple[int, int] | None) -> tuple[int, int] | None:
            return token_range(self.collector.sampler.decode, sample.ids, text, span, closing)

        return Turn(
            prompt_ids=episode.prompt_ids,
            response_ids=sample.ids,
            logprobs=sample.logprobs,
            messages=tuple(episode.messages),
            response=text,
            thinking=parsed.thinking,
            action=parsed.action,
            observation=observation.text,
            admissible_actions=tuple(observation.admissible_actions),
            reward=float(outcome.reward),
            valid=bool(parsed.valid and outcome.valid),
            stop_reason=sample.stop_reason,
            thinking_tokens=tokens(parsed.thinking_span),
            action_tokens=tokens(parsed.action_span),
            anchor=observation.anchor,
        )

    def _finish_if_over(self, slot: int, outcome: StepResult) -> None:
        if outcome.done:
            self._finish(slot, StopReason.SUCCESS if outcome.success == 1 else StopReason.DONE)
        elif self._episode(slot).over(self.suite.max_turns):
            self._finish(slot, StopReason.MAX_TURNS)

    def _fail(self, slot: int, failure: EnvFailure) -> None:
        self._finish(slot, StopReason.ENV_FAILURE, f"{failure.cause}: {failure.message}")

    def _finish(self, slot: int, reason: StopReason, failure: str | None = None) -> None:
        index, episode = self._playing.pop(slot)
        self.envs.release([slot])
        self._results[index] = episode.trajectory(reason, failure, self.settings.step)
        progress = self.settings.progress
        if progress is not None:
            progress.update(1)
            progress.set_postfix(turns=self._turns_played, refresh=False)


def plain_observation(observation: Observation) -> Observation:
    """The observation without lone surrogates, so that prompts, records and files agree."""
    seen = (observation.text, observation.admissible_actions, observation.anchor)
    text, actions, anchor = kept = plain(seen)
    return observation if kept == seen else replace(observation, text=text, admissible_actions=actions, anchor=anchor)
