"""Before credit, every trajectory is played again from its middle, with and without the hint; the difference is logged
and weighs the turns behind it."""

import torch

from turncredit.credit import Credit, CreditInputs, grpo, register_credit, register_signal
from turncredit.rollout import EpisodeStart, context_text
from turncredit.trainers import Method, register_method

register_signal("hint_gain", axes="M", low=-1, high=1, doc="success with the hint minus success without it")


def replay(batch, run):
    """``hint_gain``; every process plays its own trajectories."""
    starts = []
    for trajectory in batch.trajectories:
        hint = context_text(run.suite, run.tasks[trajectory.task_id], "privileged")
        turn = len(trajectory.turns) // 2
        starts += [EpisodeStart.at_turn(trajectory, turn, context=text, seed=("again",)) for text in (None, hint)]
    played = run.rollout(starts)
    success = torch.tensor([0.0 if t.failure else t.success for t in played]).reshape(-1, 2)
    gain = success[:, 1] - success[:, 0]
    run.log("diverged", sum("replay_diverged" in (t.failure or "") for t in played), reduce="sum")
    run.log("hint_gain", float(gain.mean()) if len(gain) else 0.0, count=len(gain))
    return {"hint_gain": gain[batch.trajectory_ids]}


@register_credit("hinted", requires=("hint_gain",))
def hinted(inputs: CreditInputs, *, strength: float = 0.5) -> Credit:
    """GRPO, more of it where a hint would not have helped."""
    base = grpo(inputs)
    weights = 1 - strength * inputs.hint_gain
    return Credit(base.advantages * weights[:, None], weights)


@register_method("hint_rollouts")
def hint_rollouts() -> Method:
    """GRPO weighed by what a hint is worth."""
    return Method("hinted", prepare=replay, gives=("hint_gain",))
