"""Log-probs of TRL's completions by its own forward pass: the student's, and the policy's as its own teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...rollout.prompts import with_privileged_context
from .plan import RolloutBatch, Row


def student_logprobs(trainer: Any, output: dict[str, Any]) -> Tensor:
    """``[B, S]`` log-probs under the policy that sampled, nats: TRL's where it has them."""
    known = output.get("old_per_token_logps")
    if known is not None:
        return known
    completions = output["completion_ids"], output["completion_mask"]
    return _score(trainer, output["prompt_ids"], output["prompt_mask"], *completions)


def privileged_logprobs(trainer: Any, batch: RolloutBatch, source: str | Callable[[Row], str | None]) -> Tensor:
    """``[B, S]`` log-probs of the same tokens behind the prompt with each row's privileged text, nats.

    Args:
        trainer: a GRPOTrainer of TRL.
        batch: what was sampled.
        source: a column of the dataset, or a function from a row to the text; None or blank adds nothing.

    Raises:
        KeyError: a row lacks the column.
        TypeError: a text is none.
        ValueError: TRL renders the prompt itself differently than it was played, or drops the text.
    """
    texts = [_text(row, source) for row in batch.rows]
    played = [ids[mask.bool()].tolist() for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True)]
    if [list(ids) for ids in trainer._tokenize_prompts(list(batch.prompts))[0]] != played:
        raise ValueError(
            "TurnCredit: privileged must stand in a prompt that TRL renders as it was played, got other ids, as from a "
            'rollout_func; pass signals={"teacher_logprobs": f} and score them yourself'
        )
    informed = [_informed(prompt, text) for prompt, text in zip(batch.prompts, texts, strict=True)]
    prompts = [list(ids) for ids in trainer._tokenize_prompts(informed)[0]]
    for text, before, after in zip(texts, played, prompts, strict=True):
        if text and before == after:
            raise ValueError(
                f"TurnCredit: privileged must reach the model, but the chat template drops {text[:40]!r}; set another "
                "chat template"
            )
    trainer._metrics["train"]["credit/informed"].append(sum(map(bool, texts)) / len(texts))
    ids, mask = _left_padded(prompts, trainer._tokenizer.pad_token_id, batch.prompt_ids)
    return _score(trainer, ids, mask, batch.completion_ids, batch.completion_mask)


def _text(row: Row, source: str | Callable[[Row], str | None]) -> str:
    """The row's privileged text, "" for none."""
    if isinstance(source, str) and source not in row:
        raise KeyError(
            f"TurnCredit: privileged must name a column of the dataset, got {source!r} and a row with "
            f"{', '.join(map(str, row))}; add the column, or set remove_unused_columns=False"
        )
    text = row[source] if isinstance(source, str) else source(row)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"TurnCredit: privileged must give text or None, got {type(text).__name__}; join the parts")
    return text if text and text.strip() else ""


def _informed(prompt: Any, text: str) -> Any:
    if not text:
        return prompt
    return f"{text}\n\n{prompt}" if isinstance(prompt, str) else with_privileged_context(prompt, text)


def _left_padded(rows: list[list[int]], pad: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """``[B, P]`` ids and mask, padded on the left."""
    width = max(map(len, rows))
    ids = like.new_tensor([[pad] * (width - len(row)) + row for row in rows])
    lengths = like.new_tensor([len(row) for row in rows])
    mask = (torch.arange(width, device=like.device)[None] >= width - lengths[:, None]).long()
    return ids, mask


def _score(trainer: Any, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """``[B, S]`` log-probs of completions behind prompts, by the pass that TRL's loss makes, without gradients."""
    with torch.no_grad():
        logprobs, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([prompt_ids, ids], 1),
            torch.cat([prompt_mask, mask], 1),
            ids.shape[1],
            batch_size=trainer.args.per_device_train_batch_size,
        )
    return logprobs
