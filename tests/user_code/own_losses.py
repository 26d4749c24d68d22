"""Two auxiliary losses at once, each with its own averaging; one reads a tensor of its own."""

from dataclasses import dataclass

import torch

from turncredit.credit import register_signal
from turncredit.trainers import LossTerm, Method, provides, register_method

register_signal("brevity", axes="MT", low=0, doc="the place of every token in its turn, from 0 to 1")


@provides("brevity")
def brevity(batch, run):
    """Late tokens weigh more."""
    mask = batch.response_mask
    return torch.arange(mask.shape[1]) / max(mask.shape[1], 1) * mask


@dataclass(frozen=True)
class BrevityTerm(LossTerm):
    """Makes late tokens less likely."""

    name: str = "brevity"
    coef: float = 0.01
    average: str = "seq-mean-token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("brevity",)

    def per_token(self, batch):
        return batch.signals["brevity"] * batch.logprobs, {"brevity_weight": batch.signals["brevity"]}


def likelihood(batch):
    """Makes what was sampled more likely."""
    return -batch.logprobs


@register_method("brief_and_likely")
def brief_and_likely(*, brevity_coef: float = 0.01, likelihood_coef: float = 0.02) -> Method:
    """GRPO and both."""
    likely = LossTerm("likelihood", coef=likelihood_coef, average="token-mean", function=likelihood)
    return Method("grpo", (BrevityTerm(coef=brevity_coef), likely))
