"""Faults of FutureBridge and of the budget of environment steps."""

FOLDER = "trainers"
TESTS = ("trainers/test_futurebridge.py",)
MUTATIONS = (
    ("methods/futurebridge", ".tolist(), strict=True) if gain > 0", ".tolist(), strict=True)", "all kept"),
    ("methods/futurebridge", "gains = after - before", "gains = before - after", "gain turned"),
    ("methods/futurebridge", "not failed_only or one.success < 1.0", "True", "successes bridged"),
    ("methods/futurebridge", "(later >= 1) & ", "", "the replaced turn among its followers"),
    ("methods/futurebridge", 'run.rollout(starts, weights="teacher")', "run.rollout(starts)", "the student bridges"),
    ("methods/futurebridge", '"max_turns": horizon', '"max_turns": horizon + 1', "continuations too long"),
    ("methods/futurebridge", "weight * own / max(others, 1)", "weight", "a mean of its own"),
    ("methods/futurebridge", "weight=coef * bridge", "weight=bridge", "the base's coefficient forgotten"),
    ("methods/futurebridge", "one.played.turns[one.played.replayed] for", "batch.turns[one.row] for", "its own"),
    ("methods/futurebridge", "if curriculum else None", "", "always behind the teacher"),
    ("budget", "trainer.environment_steps += played", "trainer.environment_steps = played", "steps of one update"),
    ("budget", "trainer.environment_steps >= limit", "trainer.environment_steps > 2 * limit", "budget overrun"),
    ("budget", "trainer.run.environment_steps = 0", "pass", "counted again"),
    ("budget", 'state.get("environment_steps", 0)', "0", "a resumed run has its whole budget"),
    ("methods/run", "len(one.turns) - one.replayed for one", "len(one.turns) for one", "replays counted"),
)  # fmt: skip
