"""A method with a state of its own: a running baseline that checkpoints save."""

import torch

from turncredit.credit import register_signal
from turncredit.trainers import Method, register_method
from turncredit.trainers.terms import LossTerm

register_signal("baseline", axes="M", doc="running mean of returns")


class Baseline:
    """A running mean, alike on every process."""

    def __init__(self):
        self.mean = 0.0

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]

    def __call__(self, batch, run):
        rewards = run.all_gather([trajectory.reward for trajectory in batch.trajectories])
        self.mean = 0.9 * self.mean + 0.1 * sum(rewards) / max(len(rewards), 1)
        run.log("baseline", self.mean, reduce="max")
        return {"baseline": torch.full((len(batch.turns),), self.mean)}


@register_method("running_baseline")
def running_baseline() -> Method:
    """GRPO and a term scaled by the baseline."""
    baseline = Baseline()
    term = LossTerm("pull", coef=0.1, reads=("baseline",), function=lambda b: -b.signals["baseline"] * b.logprobs)
    return Method("grpo", (term,), prepare=baseline, gives=("baseline",), state={"baseline": baseline})
