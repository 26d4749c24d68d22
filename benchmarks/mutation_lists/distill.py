# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of divergences over the whole vocabulary."""

FOLDER = "rollout"
TESTS = ("rollout/test_divergence.py",)
COMPARING = "trainers/test_comparing.py"
MUTATIONS = (
    ("divergence", "return -(log_q.exp() * gap).sum(-1)", "return (log_q.exp() * gap).sum(-1)", "forward: sign"),
    ("divergence", "(log_p.exp() * gap)", "(log_q.exp() * gap)", "reverse: weighed by the teacher"),
    ("divergence", "for log in (log_p, log_q) for top in tops", "for top in tops for log in (log_p, log_q)", "tops swapped"),
    ("divergence", "log_q.clamp(min=lowest)", "log_q", "ruled out tokens are NaN"),
    ("divergence", "log_q.gather(-1, targets[:, None])", "log_p.gather(-1, targets[:, None])", "compared: the policy's log-prob for the teacher's"),
    ("divergence", "values[..., 6:8].long()", "values[..., 6:8].long().flip(-1)", "compared: the other one's likeliest token", COMPARING),
    ("divergence", "values[..., 2:4],\n            values[..., 4:6],", "values[..., 4:6],\n            values[..., 2:4],", "compared: log-probs of the wrong model", COMPARING),
    ("divergence", "values if len(mask) else torch.zeros(*mask.shape, 8)", "values", "compared: a process without a row fails", COMPARING),
    ("scoring", "return self if kind in OWN else (self.beside or (self,))[0]", "return self", "another teacher's head ignored"),
    ("scoring", "return self if kind in OWN else", "return", "one's own head is another teacher's", "trainers/test_lens_opd.py"),
    ("scoring", "teacher_hidden[own]", "teacher_hidden[: len(targets[own])]", "the first chunk's teacher everywhere"),
    ("scoring", "logits if temperature in (0.0, 1.0) else logits / temperature).log", "logits).log", "teacher without temperature"),
    ("scoring", "log_all if picks is None else log_all[picks]", "log_all", "shared places not spread"),
    ("scoring", "gap if order is None else torch.zeros_like(gap).index_copy(0, order, gap)", "gap", "divergences in another order"),
    ("scoring", "if kind and kind not in KINDS:", "if False:", "an unknown kind passes", COMPARING),
)  # fmt: skip
