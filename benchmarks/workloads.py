"""Made-up agents for benchmarks: a small random model, episodes of scripted lengths, counts of what was computed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from turncredit.envs import HistoryEntry, Message, Observation, ParsedResponse, StepResult, Task
from turncredit.rollout import RolloutCollector, SamplingConfig, Trajectory
from turncredit.rollout.continuous import ContinuousGenerator
from turncredit.rollout.generator import BatchGenerator
from turncredit.rollout.sampling import Sampler

SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>", "<unk>")
_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] }} <end> {% else %}"
    "<user> {{ m['content'] }} <assistant> {% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Shape:
    """A random Qwen2. Args: hidden: width; layers: number of them; vocabulary: words, special ones included."""

    hidden: int = 128
    layers: int = 4
    vocabulary: int = 1024


def make_tokenizer(shape: Shape) -> PreTrainedTokenizerBase:
    """One token a word, ``w5`` .. ; a chat that goes on with a turn goes on with its tokens."""
    words = [*SPECIAL, *(f"w{index}" for index in range(len(SPECIAL), shape.vocabulary))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    fast.chat_template = _TEMPLATE
    return fast


def make_model(shape: Shape) -> PreTrainedModel:
    """Samples every word alike and special tokens never, so that a response ends where its budget does."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=max(shape.hidden // 32, 1),
        num_key_value_heads=max(shape.hidden // 64, 1),
        max_position_embeddings=1 << 17,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.lm_head.register_forward_hook(_only_words)
    return model


def _only_words(module: Any, arguments: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits.index_fill(-1, torch.arange(len(SPECIAL), device=logits.device), -torch.inf)


def turns_of(task_id: str, turns: tuple[int, int]) -> int:
    """Turns of a task's episodes, from the fewest to the most."""
    return random.Random(task_id).randint(*turns)


class ScriptedEnv:
    """Says `observation_tokens` random words every turn; over after a number of turns drawn from the task's id."""

    def __init__(self, observation_tokens: int, turns: tuple[int, int], vocabulary: int):
        self.observation_tokens, self.turns, self.vocabulary = observation_tokens, turns, vocabulary
        self.task_id, self.turn = "", 0

    def reset(self, task_id: str) -> Observation:
        self.task_id, self.turn = task_id, 0
        return self._observe()

    def step(self, action: str) -> StepResult:
        self.turn += 1
        done = self.turn >= turns_of(self.task_id, self.turns)
        return StepResult(self._observe(), reward=float(done), done=done, success=done)

    def close(self) -> None:
        pass

    def _observe(self) -> Observation:
        draw = random.Random(f"{self.task_id}/{self.turn}")
        words = (draw.randrange(len(SPECIAL), self.vocabulary) for _ in range(self.observation_tokens))
        return Observation(" ".join(f"w{word}" for word in words))


@dataclass
class ScriptedSuite:
    """Task suite of `ScriptedEnv`. A prompt shows the whole episode, or its last `history_length` turns."""

    observation_tokens: int
    turns: tuple[int, int]
    num_tasks: int
    vocabulary: int = 1024
    history_length: int = 1000
    name: str = "scripted"
    stop_strings: tuple[str, ...] = ()

    @property
    def max_turns(self) -> int:
        return self.turns[1]

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}{index}", "scripted", split) for index in range(self.num_tasks)]

    def make_env(self) -> Callable[[], ScriptedEnv]:
        return partial(ScriptedEnv, self.observation_tokens, self.turns, self.vocabulary)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        shown: list[Message] = []
        for entry in history[-self.history_length :]:
            shown.append({"role": "user", "content": entry.observation})
            shown.append({"role": "assistant", "content": entry.response})
        return [*shown, {"role": "user", "content": observation.text}]

    def parse(self, response: str) -> ParsedResponse:
        return ParsedResponse(thinking="", action=response, valid=True)

    def privileged_context(self, task: Task) -> str | None:
        return None


def uniform_lengths(low: int, high: int) -> Callable[[Sequence[Any]], int]:
    """Seed of a response -> its length, every one alike."""
    return lambda seed: random.Random(repr(tuple(seed))).randint(low, high)


def agent_lengths(median: float = 60, sigma: float = 0.8, maximum: int = 512) -> Callable[[Sequence[Any]], int]:
    """Seed of a response -> its length, log-normal: most are short, some are ten times as long."""

    def length(seed: Sequence[Any]) -> int:
        return min(max(round(random.Random(repr(tuple(seed))).lognormvariate(math.log(median), sigma)), 1), maximum)

    return length


class ScriptedLengths:
    """A `Generator` whose responses are as long as `length` says: it lowers the budgets of another one's requests."""

    def __init__(self, engine: Any, length: Callable[[Sequence[Any]], int]):
        self.engine, self.length = engine, length

    def stream(self, feed: Any, sampling: Any, *, slots: int) -> None:
        """See `turncredit.rollout.Generator`."""

        asked: dict[Any, Any] = {}

        def shortened(finished: Any) -> Any:
            requests = feed([(asked.pop(request.key), sample) for request, sample in finished])
            asked.update((request.key, request) for request in requests)
            return [replace(r, budget=min(r.budget, self.length(r.seed))) for r in requests]

        self.engine.stream(shortened, sampling, slots=slots)


def scripted_engine(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, continuous: bool, length: Callable[[Sequence[Any]], int]
) -> ScriptedLengths:
    """The continuous engine or the plain one, with scripted lengths."""
    sampler = Sampler(model, tokenizer)
    return ScriptedLengths(ContinuousGenerator(sampler) if continuous else BatchGenerator(sampler), length)


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    suite: ScriptedSuite,
    sampling: SamplingConfig,
    engine: ScriptedLengths,
    slots: int,
) -> list[Trajectory]:
    """Every task of a suite once."""
    with RolloutCollector(
        model, tokenizer, suite, sampling, num_envs=slots, num_workers=0, generator=engine
    ) as collector:
        trajectories = collector.collect(suite.tasks("train"))
    failures = [t.failure for t in trajectories if t.failure is not None or not t.success]
    if failures:
        raise RuntimeError(f"play: every episode must be played to its end, got {failures[:3]}; raise the budgets")
    return trajectories


@dataclass
class Counts:
    """What a model's decoder was asked for: calls of it, tokens, pads among them, CPU and elapsed seconds inside it."""

    calls: int = 0
    tokens: int = 0
    pads: int = 0
    cpu: float = 0.0
    wall: float = 0.0


class Meter:
    """Counts the decoder's forward passes while it is entered: ``wide`` ones (more than a token a row) and ``steps``.

    Whatever runs the model is counted alike, so nothing has to be asked how much it did.

    Args:
        model: a causal language model.
        pad: the id that rows are padded with, none of theirs; None counts no pads.
    """

    def __init__(self, model: Any, pad: int | None = None):
        self.decoder, self.pad = model.get_decoder(), pad
        self.wide, self.steps = Counts(), Counts()
        self._began = (0.0, 0.0)

    def __enter__(self) -> Meter:
        self._hooks = [
            self.decoder.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.decoder.register_forward_hook(self._end, with_kwargs=True),
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module: Any, arguments: Any, options: Any) -> None:
        self._began = (time.process_time(), time.perf_counter())

    def _end(self, module: Any, arguments: Any, options: Any, output: Any) -> None:
        ids = arguments[0] if arguments else options["input_ids"]
        counts = self.wide if ids.shape[1] > 1 else self.steps
        counts.calls += 1
        counts.tokens += ids.numel()
        counts.pads += int((ids == self.pad).sum()) if self.pad is not None else 0
        counts.cpu += time.process_time() - self._began[0]
        counts.wall += time.perf_counter() - self._began[1]


@dataclass(frozen=True)
class Rows:
    """Turns to train on. Args: prompts, responses: one a turn; trajectories: of every row, from 0."""

    prompts: list[tuple[int, ...]]
    responses: list[tuple[int, ...]]
    trajectories: list[int]

    @property
    def tokens(self) -> int:
        """Of all rows, each by itself."""
        return sum(map(len, self.prompts)) + sum(map(len, self.responses))


def histories(trajectories: int, turns: int, observation: int, response: tuple[int, int], vocabulary: int) -> Rows:
    """Episodes of `turns` turns whose prompts go on with the tokens before them."""
    draw = random.Random(0)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(len(SPECIAL), vocabulary) for _ in range(count))

    rows = Rows([], [], [])
    for trajectory in range(trajectories):
        text: tuple[int, ...] = ()
        for _ in range(turns):
            rows.prompts.append(text + words(observation))
            rows.responses.append(words(draw.randint(*response)))
            rows.trajectories.append(trajectory)
            text = rows.prompts[-1] + rows.responses[-1]
    return rows
