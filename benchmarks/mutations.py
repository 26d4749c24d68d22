"""Break the credit core on purpose, one line at a time, and name the test that notices.

    python benchmarks/mutations.py                 # prints the table of docs/mutations.md; about ten minutes
    python benchmarks/mutations.py StepOPSD        # only mutations whose description holds a word

Every mutation is made in a temporary copy of the package and of its tests; the working tree is never written to. The
exit status is 1 if a mutation survives, or if its line is no longer in the code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("hand", "reference", "golden", "inputs", "groups", "gigpo", "registry", "properties")
# file of credit/, what stands there, what replaces it, what that breaks
MUTATIONS = (
    ("_segments", "lag >= 0", "lag > 0", "decayed sum leaves out the turn's own evidence"),
    ("_segments", "decay ** (places + 1)", "decay**places", "decay carried between blocks off by one"),
    ("_segments", "segment_mean(centred.square(), ids, count).sqrt()",
     "(segment_sum(centred.square(), ids, count) / (segment_sum(torch.ones_like(values), ids, count) - 1)"
     ".clamp(min=1)).sqrt()", "ddof 1 for 0 in the z-scores"),
    ("_masks", "values.view(bits).mul_(mask.view(torch.int8).to(bits))", "pass", "nothing zeroed outside the mask"),
    ("_masks", "(inner.view(torch.int8) - outer.view(torch.int8))", "(outer.view(torch.int8) - inner.view(torch.int8))",
     "span and mask swapped in the check"),
    ("_masks", "dtype=torch.int32, out=counts[rows])\n    return counts.long()",
     "dtype=torch.int32, out=counts[rows])\n    return counts.long().clamp(max=4)", "token counts capped"),
    ("_gaps", "torch.sub(teacher.to(out.dtype), student.to(out.dtype), out=out)",
     "torch.sub(student.to(out.dtype), teacher.to(out.dtype), out=out)", "gap of student and teacher swapped"),
    ("_gaps", "zero_outside_(buffer, mask[rows]).sum(-1)", "zero_outside_(buffer, mask[rows]).mean(-1)",
     "mean for sum of the evidence"),
    ("_gaps", "zero_outside_(buffer, mask[rows]).sum(-1)", "buffer.sum(-1)", "evidence not masked"),
    ("_units", "evidence / inputs.token_counts", "evidence / inputs.response_mask.shape[1]",
     "mean evidence over the padded width"),
    ("_units", "trajectory, place, rows, members)\n\n\ndef whole",
     "trajectory, place.flip(0), rows, members)\n\n\ndef whole", "tokens of a part from last to first"),
    ("_units", "order = inputs.turn_ids.argsort(stable=True)", "order = torch.arange(inputs.num_rows)",
     "tokens not in the order of turns"),
    ("beliefs", "logits[:, :-1]], dim=1)", "logits[:, 1:]], dim=1)", "previous belief off by one"),
    ("beliefs", "torch.cat([prior_logits[:, None], logits[:, :-1]], dim=1)",
     "torch.cat([0 * prior_logits[:, None], logits[:, :-1]], dim=1)", "first revision ignores the prior"),
    ("beliefs", "torch.where(new >= old, size, -size)", "torch.where(new <= old, size, -size)",
     "sign of the revision"),
    ("beliefs", "torch.expm1(low - high)", "torch.expm1(high - low)", "high and low swapped in the revision"),
    ("beliefs", "evidence / float(scale)", "evidence * float(scale)", "times for divided by the temperature"),
    ("beliefs", 'if centering == "trajectory"', 'if centering == "group"', "scopes of centring swapped"),
    ("beliefs", "torch.full_like(successes, 0.5)", "torch.full_like(successes, 0.4)", "no prior is not 1/2"),
    ("beliefs", "[ids].clamp(eps, 1 - eps)", "[ids].clamp(eps, 1)",
     "prior not clipped above"),
    ("agent_opsd", "moved * sign if signed", "-moved * sign if signed", "AgentOPSD: sign of q"),
    ("agent_opsd", "moved.abs()", "moved", "AgentOPSD: magnitude without abs"),
    ("agent_opsd", "(1 + band * scores)", "(1 - band * scores)", "AgentOPSD: sign of the weight"),
    ("agent_opsd", "rows * (1 + lam * (found.turn_weights - 1))", "rows * (1 + lam * found.turn_weights)",
     "AgentOPSD: lambda does not mix with 1"),
    ("agent_opsd", "(1 + lam * (weights - 1))", "(1 + lam * weights)",
     "AgentOPSD: lambda does not mix with 1, token level"),
    ("agent_opsd", "segment_std(scores, ids, count) + eps", "segment_std(scores, ids, count) + 1e-9",
     "AgentOPSD: eps of the z-scores left out"),
    ("agent_opsd", 'evidence if revision == "gap" else moves', 'moves if revision == "gap" else evidence',
     "AgentOPSD: gap and belief swapped"),
    ("_agent_report", "cumsum(0) - 1", "cumsum(0) - 2", "AgentOPSD: belief before the last token"),
    ("_agent_report", "units.per_turn(weights, mean=True)", "units.per_turn(weights)",
     "AgentOPSD: sum for mean of token weights"),
    ("_agent_report", "[units.line] == 0", "[units.line] == 1", "AgentOPSD: first-turn share of the second turn"),
    ("_agent_report", "beliefs > 1 - _SATURATED", "beliefs > 1 + _SATURATED", "AgentOPSD: saturation of one side"),
    ("_agent_report", '(sums["offset"] / sums["units"]).square()', '(sums["offset"] / sums["units"])',
     "AgentOPSD: deviation of the weights"),
    ("groups", "count) - 1).clamp", "count)).clamp", "ddof 0 for 1 in the group's deviation"),
    ("groups", "(variance.sqrt() + eps)", "variance.sqrt()", "eps of the group left out"),
    ("groups", "advantages.masked_fill(equal[ids], 0.0)", "advantages", "rounding in equal rewards amplified"),
    ("groups", "_ROUNDING = 1e-6", "_ROUNDING = 1e-2", "different rewards taken as equal"),
    ("groups", 'per_turn = normalization_scope == "turn"', 'per_turn = normalization_scope != "turn"',
     "trajectory and turn scope swapped"),
    ("groups", "values - segment_mean(values, ids, count, weights)[ids]", "values - values.mean()",
     "GRPO: baseline of the batch, not the group"),
    ("grpo", "advantages[inputs.trajectory_ids]", "advantages[inputs.trajectory_ids.flip(0)]",
     "GRPO: advantage of another row's trajectory"),
    ("grpo", '"scale_rewards": False', '"scale_rewards": True', "Dr.GRPO: divides by the deviation"),
    ("rlsd", "advantage.sign() * _LOG2_E", "advantage.sign().abs() * _LOG2_E", "RLSD: sign dropped"),
    ("rlsd", "advantage.sign() * _LOG2_E", "advantage.sign()", "RLSD: base 2 for e"),
    ("rlsd", "advantage * (1 - share)", "advantage * share", "RLSD: lambda and 1 - lambda swapped"),
    ("rlsd", "clamp_(1 - band, 1 + band)", "clamp_(1 - band, 1 + 2 * band)", "RLSD: upper edge of the weight"),
    ("rlsd", "zero_outside_(weight.mul_(scale[rows]).add_(offset[rows]), mask[rows])",
     "weight.mul_(scale[rows]).add_(offset[rows])", "RLSD: not masked"),
    ("rlsd", "sums / inputs.token_counts", "sums / mask.shape[1]", "RLSD: turn weight over the padded width"),
    ("step_opsd", "shift = (advantage.sign() / (2 * share) - 0.5)", "shift = (1 / (2 * share) - 0.5)"
     " * torch.ones_like(advantage)", "StepOPSD: sign dropped"),
    ("step_opsd", "weight.add_(shift[rows]), span[rows])", "weight.add_(shift[rows]), mask[rows])",
     "StepOPSD: gap outside the span"),
    ("step_opsd", "clamp_((1 - band) / 2, (1 + band) / 2)", "clamp_(1 - band, 1 + band)",
     "StepOPSD: clip of the sigmoid, not its double"),
    ("step_opsd", "(spans >= 2)", "(spans >= 1)", "StepOPSD: a single span is normalised"),
    ("step_opsd", "mean[trajectory_ids] / (strength + _STEP_EPS)", "(strength + _STEP_EPS) / mean[trajectory_ids]",
     "StepOPSD: coefficient inverted"),
    ("step_opsd", "_STEP_RANGE = (0.5, 2.0)", "_STEP_RANGE = (0.1, 10.0)", "StepOPSD: range of the coefficient"),
    ("step_opsd", "weights=has_span)", "weights=None)", "StepOPSD: empty spans enter the mean"),
    ("step_opsd", "sizes.clamp(min=1)", "counts", "StepOPSD: strength over the turn, not the span"),
    ("step_opsd", "mask[rows] ^ span[rows]", "mask[rows]", "StepOPSD: plain credit added inside the span"),
    ("step_opsd", "advantage * (counts - sizes)", "advantage * counts", "StepOPSD: turn weight counts the span twice"),
    ("step_opsd", "if share == 0:", "if share < 0:", "StepOPSD: no special case for the end of the schedule"),
    ("schedules", "1.0 - step / decay_steps", "1.0 - step / (decay_steps + 1)", "schedule one update too long"),
    ("gigpo", "left = counts[trajectory] - 1 - inputs.turn_ids", "left = inputs.turn_ids",
     "GiGPO: returns of the past, not the future"),
    ("gigpo", "left == 0, inputs.rewards", "inputs.turn_ids == 0, inputs.rewards",
     "GiGPO: reward at the first turn"),
    ("gigpo", "inputs.group_index[inputs.trajectory_ids] * (anchors.max() + 1) + anchors", "anchors",
     "GiGPO: anchors shared across groups"),
    ("gigpo", "rows + step_weight * steps", "rows - step_weight * steps", "GiGPO: sign of the step advantage"),
    ("gigpo", "[anchors] > 1", "[anchors] > 0", "GiGPO: lone anchors counted as shared"),
    ("gigpo", "spread_labels = spread_labels[spread_labels]", "return spread_labels",
     "GiGPO: similarity not transitive"),
    ("_validation", "turn < counts[trajectory]", "turn <= counts[trajectory]", "turn id K accepted"),
    ("_validation", "(times == 1).all()", "(times >= 0).all()", "duplicate turns accepted"),
    ("_validation", "(~torch.isfinite(inputs.masked_sums))", "torch.isnan(inputs.masked_sums)",
     "infinite log-probs accepted"),
    ("_validation", "~torch.isfinite(value.detach()[suspects]) & mask", "~torch.isfinite(value.detach()[suspects])",
     "padding blamed for a bad row"),
    ("_validation", "row = int(suspects[suspect])", "row = suspect", "bad row named by its place among suspects"),
    ("registry", "{**defaults, **entry.preset, **options}", "{**defaults, **options, **entry.preset}",
     "a preset beats the caller's option"),
    ("registry", "with torch.no_grad():", "if True:", "gradient leaks"),
)  # fmt: skip
RUNNER = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path[:0] = [sys.argv[1]]
import turncredit.credit
assert turncredit.credit.__file__.startswith(sys.argv[1]), turncredit.credit.__file__
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE", *sys.argv[2:]]))
"""


def copy(target: Path) -> Path:
    """The package and its tests in ``target``; returns the folder of the credit files."""
    for source in (ROOT / "credit", ROOT / "tests"):
        place = target / ("turncredit/credit" if source.name == "credit" else "tests")
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("rollout", "trainers", "envs"):
        (target / "turncredit" / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", target)
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (target.parent / "shared").symlink_to(shared)
    return target / "turncredit" / "credit"


def run(target: Path) -> str | None:
    """The first test that fails in the copy, or None."""
    tests = [f"tests/credit/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-c", RUNNER, str(target), *tests]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    if failed is None:
        raise RuntimeError(f"run: the tests must start in the copy, got\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return re.sub(r"tests/credit/|\[.*", "", failed[1])


def main() -> int:
    words = sys.argv[1:]
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "copy"
        files = copy(target)
        if (broken := run(target)) is not None:
            raise RuntimeError(f"main: the tests must pass before anything is broken, got a failure of {broken}")
        print("| file | broken | caught by |\n|---|---|---|", flush=True)
        for name, old, new, description in MUTATIONS:
            if words and not any(word in description or word in name for word in words):
                continue
            path = files / f"{name}.py"
            text = path.read_text()
            if text.count(old) != 1:
                verdict = f"the line is there {text.count(old)} times"
            else:
                path.write_text(text.replace(old, new))
                verdict = run(target)
                path.write_text(text)
                verdict = "**survived**" if verdict is None else f"`{verdict}`"
            lost += not verdict.startswith("`")
            print(f"| `{name}` | {description} | {verdict} |", flush=True)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
