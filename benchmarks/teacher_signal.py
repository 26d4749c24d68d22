"""Is the teacher worth listening to? Success with and without privileged context, and what its evidence says.

    python benchmarks/teacher_signal.py [--tasks 60] [--rollouts 8]

The embedded policy as warm-started, on held-out generated games. The evidence of a turn is the sum of its token gaps
(teacher minus student log-prob); it agrees with the outcome when it is positive in a won and negative in a lost
trajectory. Agreement is counted raw, and after subtracting the group's mean evidence, over groups with both outcomes.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld.compact import compact_suite
from turncredit.rollout import PolicyScorer, RolloutCollector, SamplingConfig, score_responses
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.teacher import score_teacher, teacher_prompts

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(EMBEDDED), AutoTokenizer.from_pretrained(EMBEDDED)
    sampling = SamplingConfig(max_completion_length=20, max_prompt_length=512)
    with tempfile.TemporaryDirectory() as folder:
        generate_games(folder, args.tasks, seed=args.seed, split="probe", num_workers=2)
        suite = compact_suite(folder, ["probe"])
        tasks = suite.tasks("probe")
        with RolloutCollector(model, tokenizer, suite, sampling) as collector:
            for temperature in (1.0, 0.4):
                settings = SamplingConfig(temperature=temperature, max_completion_length=20, max_prompt_length=512)
                for privileged in (False, True):
                    played = collector.collect(tasks, 1, seed=args.seed, privileged=privileged, sampling=settings)
                    success = np.mean([t.success for t in played])
                    print(f"temperature {temperature}, hint {privileged!s:<5}: success {success:.2f} of {len(played)}")
            trajectories = usable(collector.collect(tasks, args.rollouts, seed=args.seed + 1))
        batch = make_batch(trajectories)
        contexts = [suite.privileged_context(next(x for x in tasks if x.id == t.task_id)) for t in trajectories]
        texts = [contexts[i] for i in batch.trajectory_ids.tolist()]
        scores = score_teacher(
            functools.partial(score_responses, PolicyScorer(model), pad_token_id=tokenizer.pad_token_id),
            batch,
            teacher_prompts(tokenizer, batch, texts),
            batch.sampled_logprobs,
        )
    evidence = ((scores.logprobs - batch.sampled_logprobs) * batch.response_mask).sum(1)
    won = torch.tensor([t.success > 0 for t in trajectories])[batch.trajectory_ids]
    group = batch.group_ids[batch.trajectory_ids]
    mixed = torch.tensor([len(set(won[group == g].tolist())) == 2 for g in group.unique()])[group]
    centred = evidence - torch.stack([evidence[group == g].mean() for g in group.unique()])[group]
    sign = torch.where(won, 1.0, -1.0)
    print(
        f"{len(trajectories)} trajectories, {len(evidence)} turns; {int(mixed.sum())} turns in groups of both outcomes"
    )
    means = [float(evidence[mixed & (won == w)].mean()) for w in (True, False)]
    print(f"mean evidence of a turn: {means[0]:.2f} in won, {means[1]:.2f} in lost trajectories")
    for name, values in (("raw", evidence), ("minus the group's mean", centred)):
        agree = (values.sign() == sign)[mixed].float().mean()
        balanced = torch.stack(
            [(values.sign() == sign)[mixed & (won == w)].float().mean() for w in (True, False)]
        ).mean()
        print(f"sign of the evidence ({name}) agrees with the outcome: {agree:.2f} of turns, {balanced:.2f} balanced")


if __name__ == "__main__":
    main()
