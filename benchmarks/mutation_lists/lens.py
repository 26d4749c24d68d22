"""Faults of LENS-OPD's decisions."""

FOLDER = "credit"
TESTS = ("credit/test_lens.py",)
MUTATIONS = (
    ("lens/locate", "(turn_ids == depth - 1)", "(turn_ids == depth)", "the frontier one turn further"),
    ("lens/locate", ".clamp(max=0).exp()", ".exp()", "support above 1"),
    ("lens/locate", "support.sum(1) / mask[at].sum(1)", "support.mean(1)", "mean over the padded width"),
    (
        "lens/locate",
        "(self.entry + self.eps) / (gap + self.eps)",
        "(gap + self.eps) / (self.entry + self.eps)",
        "pace turned",
    ),
    ("lens/locate", "elif not self.fixed_clock:", "else:", "the clock is not fixed"),
    ("lens/locate", "self.elapsed -= self.eta", "self.elapsed = 0.0", "the remainder is lost"),
    ("lens/locate", "self.depth + 1, math.nan", "self.depth + 1, self.entry", "the entry of the depth before"),
    ("lens/locate", "if self.depth < self.k_max:", "if True:", "deeper than the largest depth"),
    ("lens/locate", "/ tokens.clamp(min=1)", "", "sums for means"),
    ("lens/locate", "turn_ids.double() if last else means", "means", "the last turn is not proposed"),
    ("lens/locate", "torch.where(tokens > 0, value, -torch.inf)", "value", "turns without a token proposed"),
    ("lens/validate", "hinted.double() - base.double()", "base.double() - hinted.double()", "gain turned"),
    ("lens/validate", "gains > 0)", "gains >= 0)", "no gain counts as one"),
    ("lens/focus", ".clamp(min=0) *", ".abs() *", "agreement counts as disagreement"),
    ("lens/focus", "teacher_students) / tau)", "teacher_students) * tau)", "temperature turned"),
    ("lens/focus", ".clamp(max=cap)", "", "no cap"),
    ("lens/focus", "raw / (mean + eps)[:, None]", "raw", "budget not kept"),
    ("lens/focus", "mask & focused[:, None]", "mask", "all turns focused"),
    ("lens/bridge", "turn_ids < last[trajectory_ids]", "turn_ids <= last[trajectory_ids]", "the last turn bridged"),
    ("lens/bridge", "allowed & (", "(", "every turn may be replaced"),
    ("lens/bridge", "logprobs - teacher_logprobs, mask", "teacher_logprobs - logprobs, mask", "the turn that it likes"),
    ("lens/bridge", "(teacher_logprobs > logprobs)", "(teacher_logprobs >= logprobs)", "equal tokens liked"),
    ("lens/bridge", "mask & (teacher", "(teacher", "padding liked"),
    ("lens/bridge", "inside = owners >= 0", "inside = owners >= -1", "rows of no continuation"),
)
