"""The embedded policies' architecture and their supervised training on demonstrations.

Hidden matrices take orthogonalised updates, which need half the steps of AdamW here. Source: Jordan et al., "Muon: An
optimizer for hidden layers in neural networks" (2024); `torch.optim.Muon` computes in bfloat16, which is slow on a CPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turncredit.rollout import render_prompt

from .demonstrations import Demonstration
from .tokenizer import SPECIAL

Row = tuple[list[int], list[int]]  # prompt ids, response ids


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, intermediate_size: int = 512, heads: int = 4
) -> LlamaForCausalLM:
    """A fresh Llama of 3 layers and width 128, with tied embeddings and as many rows as the tokenizer has entries."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        intermediate_size=intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(str(tokenizer.eos_token)),  # type: ignore[arg-type]
        pad_token_id=tokenizer.convert_tokens_to_ids(str(tokenizer.pad_token)),  # type: ignore[arg-type]
    )
    return LlamaForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, turn: Demonstration) -> Row:
    """Prompt ids as the library renders them, and response ids.

    Raises:
        ValueError: the vocabulary lacks a word of the prompt or the response.
    """
    prompt = list(render_prompt(tokenizer, turn.messages))
    response = tokenizer.encode(turn.response, add_special_tokens=False)
    if tokenizer.unk_token_id in (*prompt, *response):
        raise ValueError(
            "encode: tokenizer must know every word of the demonstrations, got an unknown one in "
            f"{tokenizer.decode([*prompt, *response])!r}; add it to the vocabulary"
        )
    return prompt, response


def copying_rows(tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> list[Row]:
    """Lists of 12 names to read and to repeat, drawn from all of the vocabulary but its first special tokens."""
    rng, names = random.Random(seed), range(len(SPECIAL), len(tokenizer))
    return [(drawn, drawn) for drawn in (rng.sample(names, 12) for _ in range(count))]


@torch.no_grad()
def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push all singular values towards 1 by Newton-Schulz iterations, ``X <- aX + (bA + cA^2)X`` with ``A = XX^T``.

    Args:
        matrices: ``[B, R, C]`` float, best with R <= C.
        steps: iterations; five bring singular values into about [0.7, 1.2].
    """
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class OrthogonalMomentum(torch.optim.Optimizer):
    """Nesterov momentum whose update of each matrix is orthogonalised and scaled by ``sqrt(max(1, rows / columns))``.

    Args:
        parameters: matrices only.
        lr: step size, in units of the update's spectral norm.
        momentum: decay of the running sum of gradients.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every matrix that has a gradient, all of one shape together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                running = self.state[parameter].setdefault("running", torch.zeros_like(parameter))
                running.mul_(group["momentum"]).add_(parameter.grad)
                update = parameter.grad + group["momentum"] * running
                wide = update if update.shape[0] <= update.shape[1] else update.T
                by_shape.setdefault(wide.shape, []).append((parameter, wide))
            for members in by_shape.values():
                updates = orthogonalize(torch.stack([wide for _, wide in members]))
                for (parameter, _), update in zip(members, updates, strict=True):
                    rows, columns = parameter.shape
                    shaped = update if rows <= columns else update.T
                    parameter.add_(shaped, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def imitate(
    model: Any,
    rows: Sequence[Row],
    *,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    matrix_learning_rate: float = 0.02,
    prompt_weight: float = 0.3,
    seed: int = 0,
    report: Callable[[int, int, float], None] | None = None,
) -> None:
    """One pass over `rows`: cross-entropy of the responses plus `prompt_weight` times that of the prompts.

    The prompts are full of names that come again, so predicting them teaches copying early.

    Args:
        model: a causal language model, trained in place.
        rows: (prompt ids, response ids).
        batch_size: rows per step.
        learning_rate: peak for embeddings and norms (AdamW); 50 steps of warm-up, then a cosine down to 3 percent.
        matrix_learning_rate: peak for the hidden matrices (`OrthogonalMomentum`), same schedule.
        prompt_weight: weight of the prompts' mean cross-entropy.
        seed: of the order of the rows.
        report: called as ``(step, steps, response cross-entropy in nats per token)``.
    """
    batches = _batches(rows, batch_size, random.Random(seed))
    hidden = [
        p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name
    ]
    chosen = {id(parameter) for parameter in hidden}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers = {
        OrthogonalMomentum(hidden): matrix_learning_rate,
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0): learning_rate,
    }
    model.train()
    for step, batch in enumerate(batches):
        scale = min(1.0, (step + 1) / 50) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / len(batches))))
        loss, response_loss = imitation_loss(model, batch, prompt_weight)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
        if report is not None:
            report(step, len(batches), response_loss)
    model.eval()


def imitation_loss(model: Any, batch: Sequence[Row], prompt_weight: float):
    """The loss to minimise, and the mean cross-entropy of the response tokens as a float."""
    ids, is_response, is_prompt = _pad(batch)
    hidden = model.model(ids).last_hidden_state[:, :-1]
    used = is_response | is_prompt
    losses = F.cross_entropy(model.lm_head(hidden[used]).float(), ids[:, 1:][used], reduction="none")
    response_loss = losses[is_response[used]].mean()
    return response_loss + prompt_weight * losses[is_prompt[used]].mean(), response_loss.item()


def _pad(batch: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids ``[B, S]``, and which targets ``[B, S - 1]`` belong to a response and to a prompt."""
    width = max(len(prompt) + len(response) for prompt, response in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    is_response = torch.zeros(len(batch), width - 1, dtype=torch.bool)
    is_prompt = torch.zeros_like(is_response)
    for row, (prompt, response) in enumerate(batch):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor([*prompt, *response])
        is_prompt[row, : len(prompt) - 1] = True
        is_response[row, len(prompt) - 1 : end - 1] = True
    return ids, is_response, is_prompt


def _batches(rows: Sequence[Row], size: int, rng: random.Random) -> list:
    """Shuffled batches of rows of similar length: rows are sorted within windows of twenty batches."""
    rows = list(rows)
    rng.shuffle(rows)
    batches = []
    for start in range(0, len(rows), size * 20):
        window = sorted(rows[start : start + size * 20], key=lambda row: len(row[0]) + len(row[1]))
        found = [window[first : first + size] for first in range(0, len(window), size)]
        rng.shuffle(found)
        batches += found
    return batches
