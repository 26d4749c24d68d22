# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of branches of episodes."""

FOLDER = "rollout"
TESTS = ("rollout/test_branching.py",)
MUTATIONS = (
    ("branching", "one.reward - before for one", "one.reward for one", "rewards before the branch counted"),
    ("branching", "None if one.failure is not None else", "0.0 if one.failure is not None else", "failures scored 0"),
    ("branching", "[trajectory.replayed :]:", "[0:]:", "replayed turns played on from"),
    ("branching", "done = (*done, turn.action)", "done = (turn.action,)", "states know the last action alone"),
    ("branching", "append((state, text))", "append((state, None))", "continuations shared across contexts"),
    ("branching", "turn, context=text, **changes)", "turn, **changes)", "the context is not read"),
    ("branching", "*(() if common else (len(start.prefix),)), ", "", "neighbouring turns share random numbers unsaid"),
    ("branching", "if len(played) != len(starts):", "if False:", "missing continuations shift the others"),
    ("branching", "(len(values) - 1) / len(values)", "len(values) / len(values)", "population deviation for the error"),
    ("branching", "math.hypot(one, other)", "max(one, other)", "error of one value for that of a difference"),
    ("branching", "_paired_errors(some)\n        if common", "_paired_errors(some)\n        if False", "common numbers, independent errors"),
    ("branching", "[after - before for before", "[after + before for before", "sums for differences"),
    ("branching", "pairwise([*some, zeros])", "pairwise([*some, some[-1]])", "the end is worth what is before it"),
    ("branching", "slice(0, None, 2), slice(1, None, 2)", "slice(0, None, 2), slice(0, None, 2)", "one half twice"),
    ("branching", "(0.0, 0.0)]", "(1.0, 0.0)]", "the end is worth something"),
    ("branching", "reward + after - before", "after - before", "the turn's own reward left out"),
    ("branching", "len(one.turns) - one.replayed for one", "len(one.turns) for one", "replayed steps counted twice"),
    ("branching", '!= len(others):', '== -1:', "a file cut short is read"),
)  # fmt: skip
