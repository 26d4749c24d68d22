# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of credit from branches, and of comparing credit with what was measured."""

FOLDER = "credit"
TESTS = ("credit/test_baselines.py", "credit/test_measured.py")
MUTATIONS = (
    ("baselines/vineppo", "if scale_rewards:", "if not scale_rewards:", "VinePPO: divided where it should not be"),
    ("baselines/vineppo", "torch.where(size > 0, size + eps, 1.0)", "(size + eps)", "VinePPO: groups of equal returns blown up"),
    ("baselines/vineppo", "size + eps, 1.0", "size, 1.0", "VinePPO: no stabiliser"),
    ("baselines/tree_grpo", "for ids in (trees, inputs.group_index)", "for ids in (inputs.group_index,)", "Tree-GRPO: nothing within the tree"),
    ("baselines/tree_grpo", "for ids in (trees, inputs.group_index)", "for ids in (trees,)", "Tree-GRPO: nothing between trees"),
    ("baselines/tree_grpo", "trees = joined(inputs.group_index, trees - trees.min())", "trees = trees - trees.min()", "Tree-GRPO: trees of two tasks taken for one"),
    ("baselines/tree_grpo", "torch.where(differ, ", "torch.where(differ | True, ", "Tree-GRPO: rounding of equal returns divided"),
    ("lab/measured", "if count:", "if True:", "trajectories without a pair count"),
    ("lab/measured", "2 * errors[:, 1].square()", "0 * errors[:, 1].square()", "neighbours taken for independent"),
    ("lab/measured", "(1 + signs", "(1 - signs", "the order turned round"),
    ("lab/measured", "truth.abs() > resolution", "truth.abs() >= 0 * resolution", "signs of noise judged"),
    ("lab/measured", "(one * two).sum()", "(a * a).sum()", "noise in the truth lowers the correlation"),
    ("lab/measured", "value[both] - value[both].mean()", "value[both]", "correlation between trajectories"),
    ("lab/measured", "apart.triu(1)", "apart.triu(2)", "neighbours are no pairs"),
    ("lab/measured", "wrong / turns", "wrong / len(accuracies or [0])", "sign errors over trajectories"),
    ("lab/measured", "known = ~truth.isnan()", "known = truth == truth.nan_to_num()", "unmeasured turns judged"),
)  # fmt: skip
