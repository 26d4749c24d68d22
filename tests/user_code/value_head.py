"""A value head that is trained with the policy: what a turn earns beyond its expectation is its credit."""

from dataclasses import dataclass

from torch import nn

from turncredit.credit import Credit, CreditInputs, register_credit
from turncredit.trainers import LossTerm, Method, register_method


@register_credit("beyond_expectation", requires=("values",))
def beyond_expectation(inputs: CreditInputs) -> Credit:
    """The trajectory's return minus the value at the turn's start."""
    returns = inputs.rewards[inputs.trajectory_ids].to(inputs.dtype)
    gain = returns - inputs.values
    metrics = {"value": float(inputs.values.mean()), "value_error": float(gain.abs().mean())}
    return Credit(gain[:, None] * inputs.response_mask, gain.new_ones(len(gain)), metrics, {"returns": returns})


@dataclass(frozen=True)
class ValueTerm(LossTerm):
    """Half the squared error of the value at every token."""

    name: str = "value"
    coef: float = 0.5
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("returns",)
    modules: tuple[str, ...] = ("value",)

    def per_token(self, batch):
        error = batch.outputs["value"].squeeze(-1) - batch.signals["returns"]
        return 0.5 * error**2, {"value_gap": error.abs()}


def heads(hidden_size: int) -> dict[str, nn.Module]:
    """A linear value head that learns faster than the policy."""
    head = nn.Linear(hidden_size, 1)
    head.lr_scale = 10.0
    return {"value": head}


@register_method("value_head")
def value_head(*, coef: float = 0.5) -> Method:
    """An actor and its critic."""
    return Method("beyond_expectation", (ValueTerm(coef=coef),), modules=heads, gives=("returns",))
