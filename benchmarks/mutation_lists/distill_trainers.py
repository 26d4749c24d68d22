# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of distillation in training, and of rows of one's own."""

FOLDER = "trainers"
DISTILL, COMPARING = "trainers/test_distill.py", "trainers/test_comparing.py"
TESTS = (DISTILL,)
MUTATIONS = (
    ("methods/distill", "(logprobs - teacher_logprobs).detach()", "(teacher_logprobs - logprobs).detach()", "sampled estimator: sign"),
    ("methods/distill", "ratio * (logprobs - teacher_logprobs).detach()", "(logprobs - teacher_logprobs)", "sampled estimator: another gradient"),
    ("methods/distill", 'if estimator == "full" else', 'if estimator == "sampled" else', "estimators swapped"),
    ("methods/distill", "depth = k_start + run.step // eta", "depth = k_start + run.step", "depth: eta ignored", "trainers/test_distill.py::test_depth_waits_eta_updates"),
    ("methods/distill", "depth = k_start + run.step // eta", "depth = 1 + run.step // eta", "depth: k_start ignored", "trainers/test_distill.py::test_depth_waits_eta_updates"),
    ("methods/distill", "max(len(shows.turns) - depth, 0)", "max(len(shows.turns) - depth - 1, 0)", "B2F: a turn too early"),
    ("methods/distill", "max(len(shows.turns) - depth, 0)", "min(depth, len(shows.turns))", "B2F: ever more of the teacher"),
    ("methods/distill", "else EpisodeStart(**own, max_turns=depth)", "else EpisodeStart(**own)", "B2F: whole episodes without a success"),
    ("methods/distill", 'run.rollout(starts, weights="teacher")', "run.rollout(starts)", "B2F: the policy shows itself"),
    ("methods/distill", "g, context=texts[g], seed", "g, seed", "B2F: the teacher reads nothing"),
    ("methods/distill", 'seed=("teacher", number)', 'seed=("teacher",)', "B2F: every attempt the same"),
    ("methods/distill", "played.failure is None and played.success >= 1.0", "played.failure is None", "B2F: failures are shown"),
    ("methods/distill", "left = [group for group, one in enumerate(found) if one is None]", "left = list(range(len(found)))", "B2F: successes are played again"),
    ("methods/distill", "if callable(context) or context in CONTEXTS:", "if False:", "B2F: a context of hindsight passes"),
    ("methods/distill", "if type(value) is not int or value < 1:", "if False:", "counts are not checked"),
    ("methods/comparing", "weights=\"teacher\", modules", "modules", "compared: the policy for the teacher", COMPARING),
    ("methods/comparing", "prompts if teacher_prompts is None else teacher_prompts", "prompts", "compared: the teacher reads the student's prompts", COMPARING),
    ("methods/comparing", "    check_head(run, \"Run.compare\")\n", "", "compared: a lagging teacher's head", COMPARING),
    ("methods/checks", "    if twice:\n", "    if False:\n", "a second term of one name", COMPARING),
    ("methods/checks", "    check_terms(terms, rows.signals, modules)\n", "", "a signal that added rows lack", COMPARING),
    ("methods/run", "check_added(self.method.name, rows, terms, [term.name for term in beside], own.attached)", "pass", "added rows are not checked", COMPARING),
    ("terms", "if len(kinds) > 1:", "if False:", "two divergences in one objective", COMPARING),
    ("terms", 'if self.divergence and not (self.divergence in LOSSES and "teacher_hidden" in self.reads):', "if False:", "a divergence that there is not", COMPARING),
    ("rows", "slots = torch.tensor(list(slot_ids), dtype=torch.long)", "slots = torch.zeros(len(slot_ids), dtype=torch.long)", "added rows in another minibatch", COMPARING),
    ("update", "for number in held:\n", "for number in held[-1:]:\n", "only the last rows are trained", COMPARING),
    ("update", "if number == 0 or name in names", "", "numbers of added rows hide the batch's", COMPARING),
    ("update", "loss += found", "loss = found", "the loss of the last rows alone", COMPARING),
    ("update", 'if trainer.first is not None and "log_ratio_abs" in metrics:', "if trainer.first is not None:", "rows beside none of the batch fail", COMPARING),
    ("update", "added=number != held[0]", "added=False", "running out of memory loses the batch's gradient", COMPARING),
)  # fmt: skip
