"""Faults of divergences over the whole vocabulary."""

FOLDER = "rollout"
TESTS = ("rollout/test_divergence.py",)
MUTATIONS = (
    ("divergence", "return -(log_q.exp() * gap).sum(-1)", "return (log_q.exp() * gap).sum(-1)", "forward: sign"),
    ("divergence", "(log_p.exp() * gap)", "(log_q.exp() * gap)", "reverse: weighed by the teacher"),
    ("divergence", "for log in (log_p, log_q) for top in tops", "for top in tops for log in (log_p, log_q)",
     "tops swapped"),
    ("divergence", "log_q.clamp(min=lowest)", "log_q", "ruled out tokens are NaN"),
    ("scoring", "(self.beside or (self,))[0], len(hidden)", "self, len(hidden)", "another teacher's head ignored"),
    ("scoring", "teacher_hidden[own]", "teacher_hidden[: len(targets[own])]", "the first chunk's teacher everywhere"),
    ("scoring", "logits if temperature in (0.0, 1.0) else logits / temperature).log", "logits).log",
     "teacher without temperature"),
    ("scoring", "log_all if picks is None else log_all[picks]", "log_all", "shared places not spread"),
    ("scoring", "gap if order is None else torch.zeros_like(gap).index_copy(0, order, gap)", "gap",
     "divergences in another order"),
)  # fmt: skip
