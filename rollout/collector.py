"""The rollout loop: P tasks x G rollouts against environments, generating for the active episodes only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..envs import EnvFailure, HistoryEntry, Observation, ParsedResponse, StepResult, Task, TaskSuite
from ..envs.results import numeric_info
from ..envs.vector import VectorEnv
from .chat import check_chat_template
from .limits import model_positions
from .prompts import check_tokenizer
from .sampling import Sample, Sampler, SamplingConfig, batches_of
from .scoring import Agree
from .stops import stop_token_ids
from .suite_calls import parsed_response, privileged_text, turn_chat, turn_messages
from .templates import check_template_kwargs
from .text import plain, token_range
from .types import Message, StopReason, Trajectory, Turn


@dataclass
class _Episode:
    """An episode in play; becomes a frozen `Trajectory` when it ends."""

    task: Task
    group_id: int
    rollout_index: int
    observation: Observation | None = None
    history: list[HistoryEntry] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    success: float = 0.0
    info: dict[str, float] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    prompt_ids: tuple[int, ...] = ()
    opened: str = ""
    budget: int = 0


@dataclass(frozen=True)
class CollectorStats:
    """Seconds of one `collect` call, by what they were spent on."""

    generation_seconds: float
    environment_seconds: float


class RolloutCollector:
    """Plays tasks with a policy and returns trajectories whose tokens are exactly the tokens sampled.

    Args:
        model: a causal language model, unwrapped.
        tokenizer: its tokenizer, with a chat template and a padding token.
        suite: the task suite (see `turncredit.envs.TaskSuite`).
        sampling: sampling settings; `collect` can override them for one call.
        num_envs: episodes in play at once.
        num_workers: environment processes; 0 plays in this process.
        generation_batch_size: prompts per ``generate`` call; None takes all active episodes.
        env_timeout: seconds before a silent environment worker is replaced.
        max_worker_rss_mb: replace a worker of more memory than this between episodes; None never does.
        chat_template_kwargs: further variables of the chat template, such as ``{"enable_thinking": False}``.
        agree: takes counts and returns their largest over all processes; given where every forward pass is a collective
            call (ZeRO-3 without gathered parameters). Every process then calls `collect`, also with no task at all,
            and keeps generating a token for nobody until the last one is done.

    Raises:
        ValueError: the tokenizer lacks a chat template or a padding token, its template lacks a variable that is set
            or cannot show a user message, or a number is not positive.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        suite: TaskSuite,
        sampling: SamplingConfig | None = None,
        *,
        num_envs: int = 64,
        num_workers: int = 2,
        generation_batch_size: int | None = None,
        env_timeout: float = 120.0,
        max_worker_rss_mb: float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        agree: Agree | None = None,
    ):
        check_tokenizer(tokenizer)
        self.chat_template_kwargs = check_template_kwargs(chat_template_kwargs or {}, "RolloutCollector")
        check_chat_template(tokenizer, self.chat_template_kwargs)
        for name, value in (("num_envs", num_envs), ("generation_batch_size", generation_batch_size or 1)):
            if value < 1:
                raise ValueError(f"RolloutCollector: {name} must be at least 1, got {value}")
        self.tokenizer = tokenizer
        self.suite = suite
        self.sampling = sampling or SamplingConfig()
        self.generation_batch_size = generation_batch_size
        self.agree = agree
        self.sampler = Sampler(
            model, tokenizer, stop_strings=suite.stop_strings, eos_token_ids=stop_token_ids(model, tokenizer)
        )
        self.positions = model_positions(model)
        self.envs = VectorEnv(
            suite.make_env(),
            num_envs,
            num_workers=num_workers,
            timeout=env_timeout,
            max_worker_rss_mb=max_worker_rss_mb,
        )
        self.num_envs = num_envs
        self.stats = CollectorStats(0.0, 0.0)

    def close(self) -> None:
        """Stop the environment processes. Calling it twice is harmless."""
        self.envs.close()

    def __enter__(self) -> RolloutCollector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def collect(
        self,
        tasks: Sequence[Task],
        num_generations: int = 1,
        *,
        seed: int = 0,
        step: int = 0,
        privileged: bool = False,
        sampling: SamplingConfig | None = None,
        first_group_id: int = 0,
        progress: Any = None,
    ) -> list[Trajectory]:
        """Play `num_generations` episodes of every task.

        Args:
            tasks: P tasks.
            num_generations: G rollouts per task; the G trajectories of a task share one group id.
            seed, step: with the task id, the rollout index and the turn they seed every response.
            privileged: show the policy the teacher's context (evaluation of Skill-Prompt or of a hint).
            sampling: settings for this call instead of the collector's own.
            first_group_id: group id of the first task; the others count on from it.
            progress: an object with ``update(n)`` and ``set_postfix(...)`` (a tqdm bar), advanced once per episode.

        Returns:
            P * G trajectories, task by task, rollout by rollout. Episodes that the environment or the suite failed
            carry the cause.

        Raises:
            ValueError: `tasks` is empty or `num_generations` is not positive.
        """
        if not tasks and self.agree is None:
            raise ValueError("RolloutCollector.collect: tasks must not be empty; check the split's name and the data")
        if num_generations < 1:
            raise ValueError(f"RolloutCollector.collect: num_generations must be at least 1, got {num_generations}")
        sampling = sampling or self.sampling
        episodes = [
            _Episode(task, first_group_id + index, rollout)
            for index, task in enumerate(tasks)
            for rollout in range(num_generations)
        ]
        results: dict[int, Trajectory] = {}
        waiting = deque(range(len(episodes)))
        playing: dict[int, int] = {}  # slot -> index of the episode in it
        turns_played = 0
        generation = environment = 0.0

        def fail(slot: int, failure: EnvFailure) -> None:
            finish(slot, StopReason.ENV_FAILURE, f"{failure.cause}: {failure.message}")

        def finish(slot: int, reason: StopReason, failure: str | None = None) -> None:
            index = playing.pop(slot)
            self.envs.release([slot])
            results[index] = _trajectory(episodes[index], reason, failure, step)
            if progress is not None:
                progress.update(1)
                progress.set_postfix(turns=turns_played, refresh=False)

        self.envs.release(range(self.num_envs))  # what an interrupted call left behind
        while self._anyone_plays(bool(waiting or playing)):
            clock = time.perf_counter()
            fresh: dict[int, int] = {}
            for slot in range(self.num_envs):
                if slot not in playing and waiting:
                    fresh[slot] = playing[slot] = waiting.popleft()
            answers: dict[int, Observation | EnvFailure] = {}
            if fresh:
                answers = self.envs.reset({slot: episodes[index].task.id for slot, index in fresh.items()})
            for slot, answer in answers.items():
                if isinstance(answer, EnvFailure):
                    fail(slot, answer)
                else:
                    episodes[playing[slot]].observation = answer
            environment += time.perf_counter() - clock

            clock = time.perf_counter()
            for slot in list(playing):
                reason = self._prepare_turn(episodes[playing[slot]], sampling, privileged)
                if isinstance(reason, EnvFailure):
                    fail(slot, reason)
                elif reason is not None:
                    empty = not episodes[playing[slot]].turns
                    finish(slot, reason, self._prompt_failure(sampling) if empty else None)
            slots = sorted(playing, key=lambda s: len(episodes[playing[s]].prompt_ids))
            samples = self._generate([episodes[playing[slot]] for slot in slots], sampling, seed, step)
            generation += time.perf_counter() - clock

            clock = time.perf_counter()
            parsed: dict[int, ParsedResponse] = {}
            outcomes: dict[int, StepResult | EnvFailure] = {}
            for slot, sample in zip(slots, samples, strict=True):
                read = parsed_response(self.suite, self.response_text(sample), episodes[playing[slot]].opened)
                (outcomes if isinstance(read, EnvFailure) else parsed)[slot] = read  # type: ignore[index]
            if parsed:
                outcomes |= self.envs.step({slot: read.action for slot, read in parsed.items()})
            environment += time.perf_counter() - clock
            for slot, sample in zip(slots, samples, strict=True):
                episode, outcome = episodes[playing[slot]], outcomes[slot]
                turns_played += 1
                if isinstance(outcome, EnvFailure):
                    fail(slot, outcome)
                    continue
                self._record_turn(episode, sample, parsed[slot], outcome)
                if outcome.done:
                    finish(slot, StopReason.SUCCESS if outcome.success == 1 else StopReason.DONE)
                elif len(episode.turns) >= self.suite.max_turns:
                    finish(slot, StopReason.MAX_TURNS)
        self.stats = CollectorStats(generation, environment)
        return [results[index] for index in range(len(episodes))]

    def _prepare_turn(
        self, episode: _Episode, sampling: SamplingConfig, privileged: bool
    ) -> StopReason | EnvFailure | None:
        """Render the next prompt; returns a reason when the episode must end instead."""
        assert episode.observation is not None
        episode.observation = _plain_observation(episode.observation)
        used = sum(len(turn.response_ids) for turn in episode.turns)
        limit = sampling.max_trajectory_tokens
        episode.budget = min(sampling.max_completion_length, limit - used if limit else sampling.max_completion_length)
        if episode.budget < 1:
            return StopReason.TOKEN_BUDGET
        messages = turn_messages(self.suite, episode.task, episode.history, episode.observation)
        context = privileged_text(self.suite, episode.task) if privileged else None
        if isinstance(messages, EnvFailure):
            return messages
        if isinstance(context, EnvFailure):
            return context
        episode.messages = plain(messages)
        chat = turn_chat(self.tokenizer, episode.messages, context, self.chat_template_kwargs)
        if isinstance(chat, EnvFailure):
            return chat
        episode.prompt_ids, episode.opened = chat
        return StopReason.PROMPT_BUDGET if len(episode.prompt_ids) > self._prompt_room(sampling) else None

    def _prompt_room(self, sampling: SamplingConfig) -> int:
        if self.positions is None:
            return sampling.max_prompt_length
        return min(sampling.max_prompt_length, self.positions.limit - sampling.max_completion_length)

    def _prompt_failure(self, sampling: SamplingConfig) -> str:
        limited = self._prompt_room(sampling) < sampling.max_prompt_length
        return "prompt over max_prompt_length" if not limited else "prompt and response over the model's positions"

    def _anyone_plays(self, here: bool) -> bool:
        return here if self.agree is None else bool(self.agree([int(here)])[0])

    def _generate(self, episodes: list[_Episode], sampling: SamplingConfig, seed: int, step: int) -> list[Sample]:
        return self.sample(
            [episode.prompt_ids for episode in episodes],
            sampling,
            [(seed, step, episode.task.id, episode.rollout_index, len(episode.turns)) for episode in episodes],
            [episode.budget for episode in episodes],
            self.generation_batch_size,
        )

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        seeds: Sequence[Sequence[int | str]],
        budgets: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> list[Sample]:
        """Responses to any number of prompts, `batch_size` at a time (see `Sampler.sample`), in step where needed."""
        budgets = [sampling.max_completion_length] * len(prompts) if budgets is None else budgets
        plan = batches_of([len(p) for p in prompts], batch_size or max(len(prompts), 1), self.sampler.equal_lengths)
        samples: dict[int, Sample] = {}
        for number in range(len(plan) if self.agree is None else self.agree([len(plan)])[0]):
            rows = plan[number] if number < len(plan) else []
            answers = self.sampler.sample(
                [prompts[row] for row in rows] or [(self.tokenizer.pad_token_id,)],
                sampling,
                [seeds[row] for row in rows] or [("idle",)],
                budgets=[budgets[row] for row in rows] or [1],
                synced_gpus=self.agree is not None,
            )
            samples |= dict(zip(rows, answers, strict=bool(rows)))
        return [samples[row] for row in range(len(prompts))]

    def response_text(self, sample: Sample) -> str:
        """The response's text without its closing end-of-sequence token."""
        ids = sample.ids[:-1] if sample.stop_reason is StopReason.EOS else sample.ids
        return self.sampler.decode(ids)

    def _token_range(self, sample: Sample, text: str, span: tuple[int, int] | None) -> tuple[int, int] | None:
        """Token range of a character range of the response's text; see `turncredit.rollout.text.token_range`."""
        return token_range(self.sampler.decode, sample.ids, text, span, int(sample.stop_reason is StopReason.EOS))

    def _record_turn(self, episode: _Episode, sample: Sample, parsed: Any, outcome: StepResult) -> None:
        assert episode.observation is not None
        observation = episode.observation
        text = self.response_text(sample)
        episode.turns.append(
            Turn(
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
                thinking_tokens=self._token_range(sample, text, parsed.thinking_span),
                action_tokens=self._token_range(sample, text, parsed.action_span),
                anchor=observation.anchor,
            )
        )
        episode.success = float(outcome.success)
        episode.info = numeric_info(outcome.info)
        episode.history.append(HistoryEntry(observation.text, parsed.action))
        episode.observation = outcome.observation


def _plain_observation(observation: Observation) -> Observation:
    """The observation without lone surrogates, so that prompts, records and files agree."""
    seen = (observation.text, observation.admissible_actions, observation.anchor)
    text, actions, anchor = kept = plain(seen)
    return observation if kept == seen else replace(observation, text=text, admissible_actions=actions, anchor=anchor)


def _trajectory(episode: _Episode, reason: StopReason, failure: str | None, policy_version: int) -> Trajectory:
    return Trajectory(
        task_id=episode.task.id,
        task_type=episode.task.type,
        group_id=episode.group_id,
        rollout_index=episode.rollout_index,
        turns=tuple(episode.turns),
        reward=sum(turn.reward for turn in episode.turns),
        success=episode.success,
        stop_reason=reason,
        failure=failure,
        policy_version=policy_version,
        info=episode.info,
    )
