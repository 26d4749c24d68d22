"""Faults of branches and of what is measured by them."""

FOLDER = "rollout"
TESTS = ("rollout/test_branching.py",)
MUTATIONS = (
    ("branching", "one.reward - before for one", "one.reward for one", "rewards before the branch counted"),
    ("branching", "None if one.failure is not None else", "0.0 if one.failure is not None else", "failures scored 0"),
    ("branching", "if turn >= trajectory.replayed:", "if turn >= 0:", "replayed turns played on from"),
    ("branching", "done = (*done, turn.action)", "done = (turn.action,)", "states know the last action alone"),
    ("branching", "(len(values) - 1) / len(values)", "len(values) / len(values)", "population deviation for the error"),
    ("branching", "math.hypot(one, other)", "max(one, other)", "error of one value for that of a difference"),
    ("branching", "slice(0, None, 2), slice(1, None, 2)", "slice(0, None, 2), slice(0, None, 2)", "one half twice"),
    ("branching", "(0.0, 0.0)]", "(1.0, 0.0)]", "the end is worth something"),
    ("branching", "reward + after - before", "after - before", "the turn's own reward left out"),
    ("branching", "len(one.turns) - one.replayed for one", "len(one.turns) for one", "replayed steps counted twice"),
)
