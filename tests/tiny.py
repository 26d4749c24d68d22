"""Small real things for tests: a word-level tokenizer, a random Qwen2 of some thousand parameters, a toy environment.

The toy environment: the task id names a colour; the agent sees "door" and must say the colour named in the first
observation twice in a row, with wrong words costing a turn. It is solvable, has invalid actions and a turn limit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from turncredit.envs import HistoryEntry, Message, Observation, ParsedResponse, StepResult, Task

COLOURS = ("red", "green", "blue", "black")
WORDS = (
    "<pad> <eos> <end> <user> <assistant> <think> </think> <action> </action> "
    "door room open say hint key step one two " + " ".join(COLOURS)
).split()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate([*WORDS, "<unk>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    fast.chat_template = (
        "{% for m in messages %}<user> {{ m['content'] }} <end> {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return fast


def tiny_model(seed: int = 0, **overrides: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS) + 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **overrides})).eval()


class ToyEnv:
    """See the module's docstring. Task ids: ``"<colour>"`` or ``"<colour>-die"`` and the like for faults."""

    def __init__(self, max_turns: int = 6):
        self.max_turns = max_turns
        self.colour = ""
        self.correct = self.turns = 0

    def reset(self, task_id: str) -> Observation:
        self.colour = task_id.split("-")[0]
        self.correct = self.turns = 0
        if task_id.endswith("-broken"):
            raise RuntimeError("this task cannot be reset")
        return Observation(f"room {self.colour} door", COLOURS)

    def step(self, action: str) -> StepResult:
        self.turns += 1
        valid = action in COLOURS
        self.correct += action == self.colour
        success = self.correct >= 2
        return StepResult(
            Observation(f"door {'one' if self.correct == 1 else 'two' if success else 'key'}", COLOURS),
            reward=float(success),
            done=success,
            success=success,
            valid=valid,
        )

    def close(self) -> None:
        self.colour = ""


@dataclass
class ToySuite:
    """Task suite of `ToyEnv`."""

    name: str = "toy"
    max_turns: int = 4
    history_length: int = 2
    stop_strings: tuple[str, ...] = ("</action>",)
    num_tasks: int = 4

    def tasks(self, split: str) -> Sequence[Task]:
        ids = [f"{COLOURS[index % 4]}-{split}{index}" for index in range(self.num_tasks)]
        return [Task(task_id, task_id.split("-")[0], split) for task_id in ids]

    def make_env(self):
        return functools.partial(ToyEnv, self.max_turns)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        past = " ".join(f"{entry.observation} {entry.action}" for entry in history[-self.history_length :])
        return [{"role": "user", "content": f"{past} {observation.text}".strip()}]

    def parse(self, response: str) -> ParsedResponse:
        match = re.search(r"<action>(.*?)</action>", response, re.DOTALL)
        think = re.search(r"<think>(.*?)</think>", response, re.DOTALL)
        return ParsedResponse(
            thinking=think.group(1).strip() if think else "",
            action=match.group(1).strip() if match else "",
            valid=bool(match),
            thinking_span=think.span(1) if think else None,
            action_span=match.span(1) if match else None,
        )

    def privileged_context(self, task: Task) -> str | None:
        return f"hint say {task.id.split('-')[0]}"
