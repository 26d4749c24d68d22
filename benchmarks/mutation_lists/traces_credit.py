"""Faults of batches made of trajectories, of their reprs and of what they warn of."""

FOLDER = "credit"
TESTS = ("rollout/test_traces_score.py", "credit/test_inputs.py")
MUTATIONS = (
    ("records", '[getattr(t, "replayed", 0) :]', "[:]", "replayed turns have rows"),
    (
        "records",
        "for part in parts for place in range(len(part))",
        "for part in parts for place in reversed(range(len(part)))",
        "turns from last to first",
    ),
    (
        "records",
        "(columns >= ends[:, :1]) & (columns < ends[:, 1:]) & mask",
        "(columns >= ends[:, :1]) & mask",
        "spans to the end of the turn",
    ),
    (
        "records",
        'getattr(turn, "anchor", "") or getattr(turn, "observation", "")',
        'getattr(turn, "anchor", "")',
        "observations are no anchors",
    ),
    ("records", "labels.setdefault(row, len(labels))", "labels.setdefault(row, 0)", "all turns share an anchor"),
    ("records", "    if not any(seen):\n        return None\n", "", "anchors of nothing"),
    ("records", "    if len(told) < len(given):\n", "    if False:\n", "a teacher for some turns"),
    (
        "records",
        "if imported and not any(value for turn in imported for value in turn.logprobs):",
        "if False:",
        "turns that were not scored",
    ),
    ("records", "        if failure is not None:", "        if False:", "failed episodes are rewarded"),
    ("records", "    if len(above):\n", "    if False:\n", "log-probs above 0"),
    ("records", "row = int((mask.sum(1).cumsum(0) <= place).sum())", "row = place", "the row of a log-prob above 0"),
    ("display", "if int(members.max()) == 1:", "if False:", "groups of one are not warned of"),
    ("display", "        if bool(off.any()):\n", "        if False:\n", "rewards that do not sum up are not warned of"),
    ("display", "value = value[mask]", "value = value", "what stands outside the mask is shown"),
    ("display", "escape(cell)", "cell", "names are HTML"),
    ("display", "and not _equal(sums, inputs, count)", "", "warned where no turn earned anything"),
    (
        "display",
        "return _equal(inputs.rewards.detach().double(), inputs, count) and not",
        "return not",
        "warned though returns differ",
    ),
    (
        "registry",
        "if loses_turn_rewards(inputs) and not bool(credit.advantages.any()):",
        "if loses_turn_rewards(inputs):",
        "methods that read the rewards warn too",
    ),
    (
        "checks",
        "above = (values[part].detach() > _ROUNDING) & mask[part]",
        "above = values[part].detach() > _ROUNDING",
        "log-probs outside the mask count",
    ),
    (
        "checks",
        "above = (values[part].detach() > _ROUNDING) & mask[part]",
        "above = (values[part].detach() > 0) & mask[part]",
        "rounding is refused",
    ),
    ("signals", "    check=check_logprobs,\n", "", "log-probs above 0 are let through"),
    (
        "inputs",
        "extras = {name: value for name, value in signals.items() if name not in _FIELDS}",
        "extras: dict[str, Any] = {}",
        "further signals are dropped",
    ),
)
