"""A method's only door to the model and the environments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...credit.metrics import Largest, Mean, Total
from ...envs import Task, TaskSuite
from ...rollout.collector import RolloutCollector
from ...rollout.divergence import Comparison
from ...rollout.episodes import EpisodeStart
from ...rollout.limits import model_positions
from ...rollout.packing import Pack, waste
from ...rollout.sampling import Sample
from ...rollout.scoring import ResponseScores, score_responses
from ...rollout.types import Trajectory
from ..batch import TurnBatch, make_batch
from ..config import GRPOConfig
from ..distributed import agree_max, zero_stage
from ..encoder import Encoder, cached_encoder, embed
from ..policy import Policy
from ..reference import speaking
from ..rows import TrainRows
from ..teacher import TeacherModel, teacher_openings, teacher_prompts
from ..terms import LossTerm, objective
from .checks import check_added, check_signal, check_speaker
from .comparing import compare
from .contexts import teacher_texts
from .method import Method
from .providers import find_provider

Ids = Sequence[int]
T = TypeVar("T")
_REDUCE = {"mean": Mean, "sum": lambda value, count: Total(value), "max": lambda value, count: Largest(value)}


@dataclass(kw_only=True, eq=False)
class Run:
    """What a method may ask of a run. **Every process makes every call, in the same order**, also with empty lists.

    Args:
        method: the method that is trained.
        config: the run's settings.
        suite: the task suite.
        tasks: training tasks by id.
        accelerator: the processes.
        collector: plays and samples.
        policy: the policy, prepared, and its frozen reference.
        teacher: whose weights the teacher has.
        generation: the context in which the policy generates.
        encoder: a sentence encoder instead of the ones that methods name.
    """

    method: Method
    config: GRPOConfig
    suite: TaskSuite
    tasks: Mapping[str, Task]
    accelerator: Accelerator
    collector: RolloutCollector
    policy: Policy
    teacher: TeacherModel
    generation: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    encoder: Encoder | None = None
    step: int = field(default=0, init=False)
    environment_steps: int = field(default=0, init=False)
    batch: TurnBatch = field(default_factory=lambda: make_batch([]), init=False)
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    early: dict[str, float] = field(default_factory=dict, init=False)
    extra: list[tuple[TrainRows, tuple[LossTerm, ...]]] = field(default_factory=list, init=False)
    signals: dict[str, Any] = field(default_factory=dict, init=False)
    student_logprobs: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)
    _packs: list[Pack] = field(default_factory=list, init=False)
    _own: tuple[bool, tuple[str, ...], ResponseScores] | None = field(default=None, init=False)
    _texts: list[str | None] | None = field(default=None, init=False)
    _prompts: list[tuple[int, ...]] | None = field(default=None, init=False)

    # ---- facts

    @property
    def seed(self) -> int:
        """The run's seed; with the step and the row it seeds what is sampled."""
        return self.config.seed

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""
        return self.collector.tokenizer

    @property
    def num_processes(self) -> int:
        """Processes of the run."""
        return self.accelerator.num_processes

    def longest(self, weights: str = "policy") -> int | None:
        """The longest row of a model, tokens; None without a limit."""
        positions = model_positions(self.teacher.model if weights == "teacher" else self.policy.model)
        return None if positions is None else positions.limit

    # ---- calls of all processes

    @contextlib.contextmanager
    def weights(self, whose: str) -> Iterator[Any]:
        """Inside, the scorer of ``"policy"``, ``"teacher"`` or ``"reference"``; lagging weights are put in place once.

        Raises:
            ValueError: another name, a run without a reference, or the policy inside of others' weights.
        """
        check_speaker(self.method.name, whose, self.policy, self.teacher)
        if whose == "teacher":
            with self.teacher.speaking():
                yield self.teacher.scorer
        else:
            reference = self.policy.reference
            with speaking(reference) if whose == "reference" else contextlib.nullcontext():
                yield reference if whose == "reference" else self.policy.scoring

    def score(
        self,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        *,
        weights: str = "policy",
        entropy: bool = False,
        modules: Sequence[str] = (),
        teacher_hidden: Tensor | None = None,
        kind: str = "",
    ) -> ResponseScores:
        """Log-probs of responses under prompts at the sampling temperature; see `score_responses`.

        Args:
            prompts, responses: as many of one as of the other; a process may have none.
            weights: whose, see `weights`.
            entropy: also of every scored position.
            modules: attached modules whose outputs are wanted at every scored position; ``"hidden"`` is what they read.
            teacher_hidden, kind: see `score_responses`.
        """
        with self.weights(weights) as scorer:
            scores = score_responses(
                scorer,
                prompts,
                responses,
                pad_token_id=self.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
                temperature=self.config.sampling.temperature or 1.0,
                max_tokens=self.config.tokens_per_pass(self.accelerator.device.type),
                entropy=entropy,
                modules=modules,
                agree=functools.partial(agree_max, self.accelerator) if zero_stage(self.accelerator) == 3 else None,
                share_prefixes=self.config.share_prefixes,
                teacher_hidden=teacher_hidden,
                kind=kind,
            )
        self._packs += scores.packs
        size, tokens, separate = (sum(getattr(p, name) for p in self._packs) for name in ("size", "tokens", "separate"))
        shares = waste(size, tokens, separate)
        self.log("score/padding_share", shares["padding_share"], count=size)
        self.log("score/shared_share", shares["shared_share"], count=separate)
        return scores

    def add_rows(self, rows: TrainRows, terms: Sequence[LossTerm]) -> None:
        """Rows beside the batch's with terms of their own, in the minibatch of their `slot_ids`.

        Each term is averaged over these rows alone, and the batch's own losses stay what they are. Processes may bring
        different numbers of rows, and none, but all call this, with the same terms.

        Raises:
            TypeError, ValueError: a term is called as another one of the update, or its rows lack what it reads.
        """
        beside = [*objective(self.config, self.method.terms), *(term for _, terms in self.extra for term in terms)]
        own: Any = self.accelerator.unwrap_model(self.policy.scorer)
        check_added(self.method.name, rows, terms, [term.name for term in beside], own.attached)
        self.extra.append((rows, tuple(terms)))

    def compare(
        self,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        teacher_prompts: Sequence[Ids] | None = None,
        *,
        teacher_hidden: Tensor | None = None,
    ) -> Comparison:
        """Policy and teacher before every token of the responses, over the whole vocabulary, without gradient.

        Args:
            prompts, responses: as many of one as of the other; a process may have none.
            teacher_prompts: what the teacher reads instead of `prompts`; None: the same.
            teacher_hidden: the signal of this name instead, where it is there.
        """
        return compare(self, prompts, responses, teacher_prompts, teacher_hidden)

    def sample(
        self,
        prompts: Sequence[Ids],
        seeds: Sequence[Sequence[int | str]],
        *,
        weights: str = "policy",
        max_completion_length: int | None = None,
    ) -> list[Sample]:
        """One response to every prompt, sampled as in training.

        Args:
            prompts, seeds: any number of both; equal seeds sample equally.
            weights: ``"policy"`` or ``"teacher"``.
            max_completion_length: tokens; None is the run's.

        Raises:
            ValueError: other weights.
        """
        sampling = self.config.sampling
        sampling = replace(sampling, max_completion_length=max_completion_length or sampling.max_completion_length)
        with self._generating("sample", weights) as collector:
            return collector.sample(prompts, sampling, seeds, batch_size=self.config.num_envs)

    def rollout(self, starts: Sequence[EpisodeStart], *, weights: str = "policy") -> list[Trajectory]:
        """One episode from every start, under the policy or ``"teacher"``; see `RolloutCollector.collect_starts`."""
        with self._generating("rollout", weights) as collector:
            if not starts and collector.agree is None:
                return []
            played = collector.collect_starts(starts, seed=self.seed, step=self.step)
        self.environment_steps += sum(len(one.turns) - one.replayed for one in played)
        return played

    @contextlib.contextmanager
    def _generating(self, caller: str, weights: str) -> Iterator[RolloutCollector]:
        if weights not in ("policy", "teacher"):
            raise ValueError(
                f'Run.{caller}: weights must be "policy" or "teacher", got {weights!r}; the reference only scores'
            )
        with self.weights(weights), self.generation():
            yield self.teacher.collector(self.collector) if weights == "teacher" else self.collector

    def response_text(self, sample: Sample) -> str:
        """The text of a sampled response."""
        return self.collector.response_text(sample)

    def embed(self, texts: Sequence[str], encoder: str) -> Tensor:
        """``[n, D]`` unit vectors of texts; the encoder is loaded once, by name or folder, or ``"hashing"``."""
        return embed(self.encoder or cached_encoder(encoder), texts)

    def all_gather(self, values: Sequence[T]) -> list[T]:
        """The values of all processes in the processes' order, which may have different many each: numbers, say."""
        return list(values) if self.num_processes == 1 else gather_object(list(values))

    # ---- this update

    def begin(self, batch: TurnBatch, step: int) -> None:
        """Forget the update before."""
        self.batch, self.step, self.signals = batch, step, {}
        self.metrics, self.early = self.early, {}
        self.student_logprobs = batch.sampled_logprobs
        self._own = self._texts = self._prompts = None
        self._packs, self.extra = [], []

    def log(self, name: str, value: float, reduce: str = "mean", count: float = 1) -> None:
        """Add a metric of this update; one without a slash in its name stands under ``method/``.

        Args:
            name: in ``metrics.jsonl``.
            value: of this process.
            reduce: how those of several processes are joined: ``"mean"``, ``"sum"`` or ``"max"``.
            count: what a mean was taken over: turns, tokens, ..

        Raises:
            ValueError: another way to reduce.
        """
        if reduce not in _REDUCE:
            raise ValueError(f"Run.log: reduce must be one of {tuple(_REDUCE)}, got {reduce!r}; write one of them")
        self.metrics[name if "/" in name else f"method/{name}"] = _REDUCE[reduce](float(value), count)

    def signal(self, name: str) -> Any:
        """A signal of this batch, made once an update by its provider; None where a process without a turn has none.

        Raises:
            ValueError: nobody makes it, or what was made is not what the signal is.
        """
        if name not in self.signals:
            planned = [provider for provider in self.method.providers if name in provider.names]
            provider = planned[0] if planned else find_provider(name)
            if provider is None:
                raise ValueError(
                    f"Run.signal: name must be a signal that someone provides, got {name!r} from {self.method.name}; "
                    f'register @provides("{name}")'
                )
            made = provider.function(self.batch, self, **provider.chosen(self.method.options))
            self.give(f"provider of {name}", {name: made} if len(provider.names) == 1 else made, provider.names)
        return self.signals[name]

    def give(self, owner: str, made: Any, names: Sequence[str], others: Sequence[str] = ()) -> None:
        """Take over signals that somebody made, checked; `others` may be among them.

        Raises:
            TypeError, ValueError: they are not those that were announced, not what a signal is, or made already.
        """
        owner = f"{self.method.name}: {owner}"
        if not isinstance(made, Mapping) or not set(names) <= set(made) <= {*names, *others}:
            got = sorted(made) if isinstance(made, Mapping) else type(made).__name__
            wanted = sorted({*names, *others})
            raise TypeError(f"{owner} must return a mapping of {wanted}, got {got}; return those, by name")
        for name, value in made.items():
            if name in self.signals:
                raise ValueError(f"{owner} must not give {name!r}, which was given before; leave it to one of them")
            if value is not None or self.batch.turns:
                check_signal(owner, name, value, self.batch)
        self.signals |= {name: value.detach() if isinstance(value, Tensor) else value for name, value in made.items()}

    def own_scores(self, *, entropy: bool = False, modules: Sequence[str] = ()) -> ResponseScores:
        """Scores of the sampled tokens under the student's own prompts; one pass, with all that providers announced."""
        announced = [provider.own for provider in self.method.providers]
        entropy = entropy or any(own.get("entropy", False) for own in announced)
        names = tuple(sorted({*modules, *(name for own in announced for name in own.get("modules", ()))}))
        if self._own is None or self._own[:2] != (entropy, names):
            scores = self.score(self.batch.prompts, self.batch.responses, entropy=entropy, modules=names)
            self._own = entropy, names, scores
        return self._own[2]

    def teacher_texts(self) -> list[str | None]:
        """What the teacher reads beside the student's prompt, one text or None per row."""
        if self._texts is None:
            self._texts = teacher_texts(self.method, self.batch, self)
        return self._texts

    def teacher_prompts(self) -> list[tuple[int, ...]]:
        """The teacher's prompt ids, one per row."""
        if self._prompts is None:
            self._prompts = teacher_prompts(*self._rendering())
        return self._prompts

    def teacher_openings(self) -> list[str]:
        """The thinking block that each of the teacher's prompts opens at its end."""
        return teacher_openings(*self._rendering())

    def _rendering(self) -> tuple[Any, TurnBatch, list[str | None], Mapping[str, Any], TaskSuite]:
        return self.tokenizer, self.batch, self.teacher_texts(), self.collector.chat_template_kwargs, self.suite

    def start(self) -> None:
        """Let the method and its providers say before the first rollout what is missing."""
        if self.method.start is not None:
            self.method.start(self)
        for provider in self.method.providers:
            if provider.start is not None:
                provider.start(self, **provider.chosen(self.method.options))
