"""A signal of one's own, its provider, and a credit function that reads it: surprising turns get more credit."""

import torch

from turncredit.credit import Credit, CreditInputs, grpo, register_credit, register_signal
from turncredit.trainers import provides

register_signal("surprise", axes="M", low=0, fix="score the turn again", doc="mean of -log pi over the turn, nats")


@provides("surprise")
def surprise(batch, run, *, floor: float = 0.0):
    """How unlikely every turn is under the frozen reference."""
    scores = run.score(batch.prompts, batch.responses, weights="reference")
    return (-scores.logprobs.sum(1) / scores.mask.sum(1).clamp(min=1)).clamp(min=floor)


@register_credit("surprising_turns", requires=("surprise",))
def surprising_turns(inputs: CreditInputs, *, strength: float = 0.5) -> Credit:
    """GRPO, more of it where the turn was a surprise."""
    base = grpo(inputs)
    weights = 1 + strength * torch.tanh(inputs.surprise)
    return Credit(base.advantages * weights[:, None], weights, {"surprise": float(inputs.surprise.mean())})
