"""Runs of TRL's GRPOTrainer on a game of several turns, small enough for tests; imports TRL where it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import COLOURS
from turncredit.trainers.adapters import TurnCreditMixin

TURNS = 3
EVERYTHING_IS_A_CALL = {
    "defaults": {"role": "assistant", "content": ""},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "close": "<end>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
        }
    },
}
"""Any text is a call of the one tool: random weights write no JSON."""
TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }}"
    "{% for call in m.tool_calls or [] %} {{ call.function.name }} {{ call.function.arguments }}{% endfor %}"
    " <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Doors:
    """Its public methods are tools; an episode is over when enough was said."""

    def reset(self, colour: str, **columns: Any) -> None:
        self.colour, self.said = colour, []

    def act(self, action: str) -> str:
        """Say something.

        Args:
            action: what to say.
        """
        self.said.append(action)
        return "step " + ("one", "two", "door")[len(self.said) % 3]


def reward(environments: list[Doors], **columns: Any) -> list[float]:
    """1 for an odd number of letters said, so that random words win about half the time."""
    return [float(sum(map(len, env.said)) % 2) for env in environments]


def rows() -> Dataset:
    """Four tasks, each with a column for the teacher."""
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"room {word} door"}], "colour": word, "hint": f"say {word}"}
            for word in COLOURS
        ]
    )


def settings_of(folder: Path, **options: Any) -> dict[str, Any]:
    """TRL's options of a run of two optimiser steps over eight completions each."""
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "max_completion_length": 100,
        "max_tool_calling_iterations": TURNS - 1,
        "generation_kwargs": {"max_new_tokens": 4},
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "loss_type": "grpo",
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "seed": 0,
    }
    return {**common, **options}


def playing_tokenizer() -> Any:
    """The tiny tokenizer, for whose template every text of the policy is a call."""
    tokenizer = tiny_tokenizer()
    tokenizer.response_template, tokenizer.chat_template = EVERYTHING_IS_A_CALL, TEMPLATE
    return tokenizer


def recording_trainer() -> type:
    """TRL's trainer with the mixin; keeps what its loss received and what TRL's own advantages were."""
    from trl import GRPOTrainer

    class Plain(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output = super()._generate_and_score_completions(inputs)
            self.theirs = getattr(self, "theirs", [])
            self.theirs.append(output["advantages"].clone())
            return output

    class Recording(TurnCreditMixin, Plain):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output = super()._generate_and_score_completions(inputs)
            self.batches = getattr(self, "batches", [])
            self.batches.append({name: value.clone() for name, value in output.items()})
            return output

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.received = getattr(self, "received", [])
            loss = super()._compute_loss(model, inputs)
            self.received.append({**inputs, "loss": loss.detach()})
            return loss

    return Recording


def make_trainer(folder: Path, plan: Any, *, kind: type | None = None, options: Any = None, **arguments: Any) -> Any:
    """A trainer of the tiny model on the game."""
    from trl import GRPOConfig

    torch.manual_seed(0)
    given: dict[str, Any] = {"environment_factory": Doors, "train_dataset": rows(), **arguments}
    score = given.pop("reward", reward)
    return (kind or recording_trainer())(
        tiny_model(),
        score,
        GRPOConfig(**settings_of(folder, **(options or {}))),
        processing_class=playing_tokenizer(),
        turn_credit=plan,
        **given,
    )
