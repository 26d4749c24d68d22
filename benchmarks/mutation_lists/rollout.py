# ruff: noqa: E501  (a mutation is easier to read on one line)
"""Faults of rollouts: file, what stands there, what replaces it, what that breaks, tests that must notice."""

FOLDER = "rollout"
SAMPLING, SCORING, COLLECTOR = (f"rollout/test_{name}.py" for name in ("sampling", "scoring", "collector"))
STATEMENTS, PROMPTS = "rollout/test_statements.py", "rollout/test_prompts.py"
TESTS = (STATEMENTS, COLLECTOR, SAMPLING, SCORING, PROMPTS)
SEEDS = "(seed, step, episode.task.id, episode.rollout_index, len(episode.turns))"
MUTATIONS = (
    ("collector", SEEDS, "(seed, step, episode.task.id, episode.rollout_index)", "every turn draws the same uniforms",
     STATEMENTS),
    ("collector", SEEDS, "(seed, step, episode.task.id, len(episode.turns))", "rollouts of a group draw the same uniforms",
     STATEMENTS),
    ("collector", SEEDS, "(seed, step, episode.rollout_index, len(episode.turns))", "tasks draw the same uniforms", STATEMENTS),
    ("collector", SEEDS, "(seed, episode.task.id, episode.rollout_index, len(episode.turns))",
     "updates draw the same uniforms", STATEMENTS),
    ("collector", SEEDS, "(step, episode.task.id, episode.rollout_index, len(episode.turns))", "seed ignored", STATEMENTS),
    ("collector", "limit - used if limit", "limit if limit", "token budget per turn, not per trajectory", STATEMENTS),
    ("collector", "> sampling.max_prompt_length", ">= sampling.max_prompt_length", "prompt budget off by one", STATEMENTS),
    ("collector", "if privileged else None", "if True else None", "the skill stands in the student's prompt", COLLECTOR),
    ("collector", "shown = with_privileged_context(shown, context)",
     "shown = episode.messages = with_privileged_context(shown, context)", "messages hold the privileged text", STATEMENTS),
    ("collector", "HistoryEntry(observation.text, parsed.action)", "HistoryEntry(outcome.observation.text, parsed.action)",
     "history pairs an action with what it led to", COLLECTOR),
    ("collector", "parsed.valid and outcome.valid", "parsed.valid or outcome.valid", "inadmissible actions count as valid",
     COLLECTOR),
    ("collector", ">= self.suite.max_turns", "> self.suite.max_turns", "one turn more than the limit", COLLECTOR),
    ("collector", "reward=sum(turn.reward for turn in episode.turns)", "reward=episode.turns[-1].reward if episode.turns else 0.0",
     "return of the last turn alone", STATEMENTS),
    ("collector", "first_group_id + index", "first_group_id", "all tasks in one group", COLLECTOR),
    ("collector", "policy_version=policy_version", "policy_version=0", "policy version dropped", COLLECTOR),
    ("collector", "finish(slot, StopReason.SUCCESS if", "finish(slot, StopReason.DONE if", "success not recorded",
     COLLECTOR),
    ("prompts", "add_generation_prompt=True", "add_generation_prompt=False", "no generation prompt", PROMPTS),
    ("sampling", "scores.float() / (self.temperature or 1.0)", "scores.float()", "temperature dropped in sampling", SAMPLING),
    ("sampling", "self.uniforms[:, step : step + 1]", "self.uniforms[:, :1]", "one uniform for all tokens of a response",
     STATEMENTS),
    ("sampling", "mask[row, width - len(prompt) :] = 1", "mask[row] = 1", "padding is attended to", SAMPLING),
    ("sampling", "self.budgets <= length", "self.budgets < length", "a token over the budget", SAMPLING),
    ("sampling", "if config.top_p < 1", "if config.top_p < 0", "top-p ignored", SAMPLING),
    ("sampling", "TopKLogitsWarper(config.top_k)] if config.top_k", "TopKLogitsWarper(config.top_k)] if config.top_k < 0",
     "top-k ignored", SAMPLING),
    ("sampling", "self.model.eval()", "pass", "samples in training mode", COLLECTOR),
    ("sampling", "with _blank_generation_config(self.model):", "if True:", "generation config of the model inherited",
     SAMPLING),
    ("scoring", "for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True))",
     "for index, (prompt, response) in enumerate(reversed(list(zip(prompts, responses, strict=True))))",
     "rows of a micro-batch swapped", SCORING),
    ("scoring", "torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)",
     "torch.arange(len(prompt), len(prompt) + len(response)).clamp(max=width - 1)", "scores one place late", SCORING),
    ("scoring", "packed.targets, temperature, entropy, chunks)",
     "packed.targets, 1.0, entropy, chunks)", "scores at temperature 1", SAMPLING),
)  # fmt: skip
