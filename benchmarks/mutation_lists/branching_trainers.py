# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of methods that play on from recorded turns."""

FOLDER = "trainers"
TESTS = ("trainers/test_branches.py",)
MUTATIONS = (
    ("methods/branches", 'rules={"continuations": count(1)}', "rules={}", "an option unchecked until the first rollouts are played"),
    ("methods/branches", "any(run.all_gather([problem is not None]))", "problem is not None", "another process's error is waited for"),
    ("methods/branches", "raise problem or RuntimeError", "raise RuntimeError", "one's own error is lost"),
    ("methods/branches", "0.0 if math.isnan(value) else value", "value * 0 if math.isnan(value) else 0.0", "measured advantages lost"),
    ("methods/branches", "range(max(one.replayed, 1), len(one.turns))", "range(0, len(one.turns))", "Tree-GRPO: branches at the first turn, which share nothing"),
    ("methods/branches", "found[group][tree::trees]", "found[group]", "Tree-GRPO: a tree branches off another"),
    ("methods/branches", "(trajectory.group_id, trajectory.rollout_index % trees)", "(trajectory.group_id, trajectory.rollout_index)", "Tree-GRPO: leaves do not share their turns"),
    ("methods/branches", "keys += steps[trajectory.replayed :]", "keys += steps[: len(steps) - trajectory.replayed]", "Tree-GRPO: returns of other turns"),
    ("methods/branches", "keys += steps[trajectory.replayed :]\n    means = [math.fsum(taken[key]) / len(taken[key])", "keys += steps[trajectory.replayed :]\n    means = [math.fsum(taken[key])", "Tree-GRPO: sums of leaves"),
    ("methods/branches", "ids = [trajectory.rollout_index % trees", "ids = [trajectory.rollout_index // trees", "Tree-GRPO: other trees in credit"),
    ("play", "    with together(trainer.accelerator, trainer.shared_errors):\n        trainer.run.step", "    with contextlib.nullcontext():\n        trainer.run.step", "other processes wait for a method's rollouts"),
    ("play", "len(set(places)) < len(places)", "False", "two trajectories in one place"),
)  # fmt: skip
