"""The collector: P tasks x G rollouts, or any starts, against environments, with a Hugging Face model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..envs import Task, TaskSuite
from ..envs.results import shown
from ..envs.vector import VectorEnv
from .chat import check_chat_template
from .contexts import check_context, named_context
from .continuous import ContinuousGenerator
from .episodes import EpisodeStart, check_starts
from .generator import BatchGenerator, GenerationRequest, Generator, answers_of
from .limits import model_positions
from .playing import Play, PlaySettings
from .prompts import check_tokenizer
from .sampling import Sample, Sampler, SamplingConfig
from .scoring import Agree
from .stops import stop_token_ids
from .suite_members import checked_factory, checked_setting
from .template_options import template_options
from .types import StopReason, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
        chat_template_kwargs: further variables of the chat template, such as ``{"enable_thinking": False}``; they win
            over those of the suite.
        agree: takes counts and returns their largest over all processes; given where every forward pass is a collective
            call (ZeRO-3 without gathered parameters). Every process then calls `collect`, also with no task at all,
            and keeps generating a token for nobody until the last one is done.
        continuous_batching: let a response that ends leave at once and the next prompt join (see
            `turncredit.rollout.continuous.ContinuousGenerator`); False generates a turn of all episodes together.
        generator: what samples instead of `model`, such as a served engine with the same weights; None samples here.

    Raises:
        TypeError: a setting of the suite is of another kind, or its ``make_env()`` is no factory.
        ValueError: the tokenizer lacks a chat template or a padding token, its template lacks a variable that is set
            or cannot show a user message, or a number is not positive.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
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
        continuous_batching: bool = True,
        generator: Generator | None = None,
    ):
        check_tokenizer(tokenizer)
        source = str(tokenizer.chat_template)
        self.chat_template_kwargs = template_options(suite, chat_template_kwargs or {}, "RolloutCollector", source)
        check_chat_template(tokenizer, self.chat_template_kwargs)
        for name, value in (("num_envs", num_envs), ("generation_batch_size", generation_batch_size or 1)):
            if value < 1:
                raise ValueError(f"RolloutCollector: {name} must be at least 1, got {value}")
        for name in ("name", "max_turns", "history_length", "stop_strings"):
            checked_setting(suite, name)
        self.tokenizer: Any = tokenizer
        self.suite = suite
        self.sampling = sampling or SamplingConfig()
        self.generation_batch_size = generation_batch_size
        self.agree = agree
        self.continuous_batching = continuous_batching
        self.served = generator
        self._engine: BatchGenerator | ContinuousGenerator | None = None
        self.sampler = Sampler(
            model, tokenizer, stop_strings=suite.stop_strings, eos_token_ids=stop_token_ids(model, tokenizer)
        )
        self.positions = model_positions(model)
        self.envs = VectorEnv(
            checked_factory(suite),
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
        context: str | None = None,
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
            context: name of the suite's context that the policy is shown (`turncredit.rollout.contexts.context_text`):
                ``"privileged"``, the teacher's, for an evaluation of Skill-Prompt or of a hint; None for none.
            privileged: the same as ``context="privileged"``.
            sampling: settings for this call instead of the collector's own.
            first_group_id: group id of the first task; the others count on from it.
            progress: an object with ``update(n)`` and ``set_postfix(...)`` (a tqdm bar), advanced once per episode.

        Returns:
            P * G trajectories, task by task, rollout by rollout. Episodes that the environment or the suite failed
            carry the cause.

        Raises:
            ValueError: `tasks` is empty, `num_generations` is not positive, or the suite has no such context.
        """
        tasks = list(tasks)
        if not tasks and self.agree is None:
            raise ValueError("RolloutCollector.collect: tasks must not be empty; check the split's name and the data")
        if num_generations < 1:
            raise ValueError(f"RolloutCollector.collect: num_generations must be at least 1, got {num_generations}")
        if privileged and context not in (None, "privileged"):
            raise ValueError(
                f"RolloutCollector.collect: context must be left out beside privileged=True, got {context!r}; "
                'privileged=True means context="privileged"'
            )
        name = "privileged" if privileged else context
        for task in tasks:
            if not isinstance(task, Task):
                raise TypeError(
                    f"RolloutCollector.collect: tasks must be Task records, got {shown(task)} ({type(task).__name__}); "
                    "pass those of suite.tasks(split)"
                )
        for task in tasks[:1]:
            check_context(self.suite, task, name)
        starts = [
            EpisodeStart(task, first_group_id + index, rollout, context=named_context(self.suite, task, name))
            for index, task in enumerate(tasks)
            for rollout in range(num_generations)
        ]
        return self._play(starts, PlaySettings(seed, step, sampling or self.sampling, progress))

    def collect_starts(
        self,
        starts: Sequence[EpisodeStart],
        *,
        seed: int = 0,
        step: int = 0,
        sampling: SamplingConfig | None = None,
        progress: Any = None,
    ) -> list[Trajectory]:
        """Play one episode from every start: from its task's beginning, or from behind recorded turns.

        A start with a prefix resets its environment, takes the recorded actions and compares every observation with the
        record; a difference is the failure ``replay_diverged``, and nothing is generated. Replays of all free slots run
        together, before the next responses. Where nothing but the prefix is given, the seed and step of the record
        reproduce the rest of the record. Tokens of replayed turns count towards ``max_trajectory_tokens``.

        Args:
            starts: any number of them, none included.
            seed, step: with task id, rollout index, turn and the start's own seed they seed every response.
            sampling: settings for this call instead of the collector's own.
            progress: an object with ``update(n)`` and ``set_postfix(...)`` (a tqdm bar), advanced once per episode.

        Returns:
            One trajectory per start, in order, its replayed turns first (``Trajectory.replayed`` of them). An episode
            that the replay finds over has no other turns; one whose replay failed has none.

        Raises:
            TypeError: something else than an `EpisodeStart`.
            ValueError: two starts are alike and would draw the same responses.
        """
        if not isinstance(starts, Iterable):
            raise TypeError(
                f"RolloutCollector.collect_starts: starts must be several EpisodeStart records, got {shown(starts)}; "
                "write [start]"
            )
        check_starts(starts := list(starts))
        return self._play(starts, PlaySettings(seed, step, sampling or self.sampling, progress))

    def _play(self, starts: Sequence[EpisodeStart], settings: PlaySettings) -> list[Trajectory]:
        play = Play(self, starts, settings)
        trajectories = play.run()
        self.stats = CollectorStats(play.seconds["generation"], play.seconds["environment"])
        return trajectories

    def prompt_room(self, sampling: SamplingConfig) -> int:
        """Longest prompt that is played, tokens."""
        if self.positions is None:
            return sampling.max_prompt_length
        return min(sampling.max_prompt_length, self.positions.limit - sampling.max_completion_length)

    def prompt_failure(self, sampling: SamplingConfig) -> str:
        """Why an episode whose first prompt is longer failed."""
        limited = self.prompt_room(sampling) < sampling.max_prompt_length
        return "prompt over max_prompt_length" if not limited else "prompt and response over the model's positions"

    @property
    def generator(self) -> Generator:
        """What samples the responses."""
        if self.served is not None:
            return self.served
        # a sampler with a way of its own to sample is asked for batches
        kind = getattr(self.sampler.sample, "__func__", None) is Sampler.sample and self.continuous_batching
        wanted = ContinuousGenerator if kind else BatchGenerator
        engine = self._engine
        if type(engine) is not wanted or (engine.sampler, engine.agree) != (self.sampler, self.agree):
            engine = self._engine = wanted(self.sampler, self.agree)
        return engine

    def asking(self, model: PreTrainedModel) -> RolloutCollector:
        """This collector with another model, which is sampled from here."""
        other = copy.copy(self)
        strings, ids = self.suite.stop_strings, stop_token_ids(model, self.tokenizer)
        other.sampler = Sampler(model, self.tokenizer, stop_strings=strings, eos_token_ids=ids)
        other.served = None
        return other

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
        if not len(prompts) == len(seeds) == len(budgets):
            raise ValueError(
                "RolloutCollector.sample: seeds and budgets must have one entry per prompt, got "
                f"{len(seeds)} and {len(budgets)} for {len(prompts)}; give one each"
            )
        rows = zip(prompts, budgets, seeds, strict=True)
        requests = [GenerationRequest(tuple(prompt), budget, tuple(seed)) for prompt, budget, seed in rows]
        return answers_of(self.generator, requests, sampling, batch_size or max(len(prompts), 1))

    def response_text(self, sample: Sample) -> str:
        """The response's text without its closing end-of-sequence token."""
        ids = sample.ids[:-1] if sample.stop_reason is StopReason.EOS else sample.ids
        return self.sampler.decode(ids)
