"""A teacher's context per turn; whose weights it has is chosen by arguments."""

from turncredit.trainers import Method, Teacher, register_context, register_method


@register_context("what_came_next")
def what_came_next(batch, run):
    """Every turn is shown what its action led to; the last one of a trajectory is shown nothing."""
    texts = []
    for trajectory in batch.trajectories:
        texts += [f"hint {turn.observation}" for turn in trajectory.turns[1:]] + [None]
    return texts


@register_method("foresight")
def foresight() -> Method:
    """AgentOPSD under a teacher that knows one turn more."""
    return Method("agent_opsd", teacher=Teacher(context="what_came_next"))
