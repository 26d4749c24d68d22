"""LENS-OPD's diagnostics: is the turn at which teacher and student differ most the one at which a hint helps most?

    python benchmarks/lens_diagnostics.py exact
    python benchmarks/lens_diagnostics.py alfworld --teacher outputs/alfworld_diligent

Of every turn of sampled trajectories: the divergence KL(pi || pi_T), and the gain of a hint in that turn alone.
*agree*: share of trajectories whose turn of maximal KL is the turn of maximal gain; *chance*: the same of a turn picked
at random; *no help*: share of turns at which the hint does not help (gain <= 0), of those that have a gain at all;
*correlation* of both within trajectories.

Exact: processes with known values; the hinted student acts as the teacher would, pi_T prop. to pi exp(hint), and
gain = sum_a (pi_T - pi)(a | s) Q(s, a). Where no action changes anything there is no gain.

ALFWorld: the embedded policy, in each turn with the suite's hint and without, `--pairs` times, three turns each. Gain
is the difference of the teacher's mean log-likelihood (the paper's evaluator), or of the return with `--evaluator
return --horizon 14`. *no help* counts single pairs, as the method sees one; *agree* is by the mean over pairs. The
teacher is --teacher, or the policy under the hint.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile

import torch
from torch import Tensor


def per_trajectory(kl: Tensor, gain: Tensor, owners: Tensor) -> dict[str, float]:
    """The measures of one batch. Args: kl, gain ``[M]``, NaN gains left out; owners ``[M]``: the trajectories."""
    agree, chance, correlations = [], [], []
    for owner in owners.unique().tolist():
        rows = ((owners == owner) & ~gain.isnan()).nonzero().flatten()
        if len(rows) < 2 or float(gain[rows].amax() - gain[rows].amin()) == 0:
            continue
        best = gain[rows] == gain[rows].amax()
        agree.append(float(best[kl[rows].argmax()]))
        chance.append(float(best.double().mean()))
        if float(kl[rows].std()) > 0:
            correlations.append(float(torch.corrcoef(torch.stack([kl[rows], gain[rows]]))[0, 1]))
    mean = {"agree": agree, "chance": chance, "correlation": correlations}
    return {"trajectories": float(len(agree)), **{name: sum(v) / max(len(v), 1) for name, v in mean.items()}}


def exact(groups: int, seed: int) -> None:
    """A line for every process and teacher."""
    from turncredit.credit.lab.synthetic import (
        EXACT_PROCESSES,
        PROCESSES,
        PUBLISHED_TEACHERS,
        TEACHERS,
        synthetic_batch,
    )

    print(
        "| process | teacher | trajectories | agree | chance | no help | correlation |\n|---|---|---|---|---|---|---|"
    )
    for name in EXACT_PROCESSES:
        for who in PUBLISHED_TEACHERS:
            batch = synthetic_batch(
                PROCESSES[name](), TEACHERS[who], groups=groups, generator=torch.Generator().manual_seed(seed)
            )
            trajectory, turn = batch.episodes.turns
            state = batch.episodes.states[trajectory, turn]
            policy, action = batch.episodes.process.policy[state], batch.values.action[turn, state]
            hinted = (policy.log() + batch.hints).softmax(-1)
            kl = (policy * (policy.clamp(min=1e-300).log() - hinted.clamp(min=1e-300).log())).sum(-1)
            gain = ((hinted - policy) * action).sum(-1)
            open_turns = action.amax(-1) - action.amin(-1) > 1e-9
            gain = torch.where(open_turns, gain, torch.nan)
            found = per_trajectory(kl, gain, trajectory)
            known = gain[open_turns]
            useless = float((known <= 1e-12).double().mean()) if len(known) else 0.0
            print(
                f"| {name} | {who} | {found['trajectories']:.0f} | {found['agree']:.2f} | {found['chance']:.2f} | "
                f"{useless:.2f} | {found['correlation']:.2f} |",
                flush=True,
            )


def alfworld(args: argparse.Namespace) -> None:
    """One line; progress on the way."""
    from turncredit.trainers import GRPOTrainer
    from turncredit.trainers.batch import make_batch, usable
    from turncredit.trainers.launch import load_policy, make_config, make_parser
    from turncredit.trainers.methods import lens_opd

    script = importlib.import_module("train_alfworld")
    given = make_parser().parse_args([])
    facts = {"privileged": None, "max_turns": None, "data": None, "num_eval_games": None, "num_games": 192}
    for name, value in {**facts, "games_dir": "outputs/alfworld_games", "eval_split": "", "embedded": True}.items():
        setattr(given, name, value)
    with tempfile.TemporaryDirectory() as folder:
        settings = {**script.settings(given), "output_dir": folder, "seed": args.seed, "num_tasks": args.groups}
        settings |= {"num_generations": 2, "credit": "opd", "num_envs": 128, "preflight": False}
        settings |= {"credit_options": {"teacher": args.teacher}} if args.teacher else {}
        config = make_config(given, settings)
        model, tokenizer = load_policy(str(script.EMBEDDED))
        with GRPOTrainer(model, tokenizer, script.make_suite(given), config) as trainer:
            run = trainer.run
            batch = make_batch(usable(trainer.rollout(trainer.tasks_of(0))))
            run.begin(batch, 0)
            found = run.compare(batch.prompts, batch.responses, run.teacher_prompts())
            kl = found.kl.double().sum(1) / found.mask.sum(1)
            rows = range(len(batch.turns))
            cues = lens_opd._cues(batch, run, rows, "privileged")
            pairs = [(row, cue) for row, cue in zip(rows, cues, strict=True) if cue]
            gains = []
            for number in range(args.pairs):
                run.step = number  # another draw
                played = lens_opd._continue(batch, run, pairs, args.horizon)
                base, hinted = (lens_opd._values(batch, run, pairs, part, args.evaluator) for part in played)
                gains.append(hinted - base)
                print(
                    f"pair {number + 1} of {args.pairs}: no help {float((gains[-1] <= 0).double().mean()):.3f}",
                    flush=True,
                )
    single = torch.stack(gains)
    mean = torch.full((len(batch.turns),), torch.nan, dtype=torch.float64)
    mean[[row for row, _ in pairs]] = single.mean(0)
    found_all = per_trajectory(kl, mean, batch.trajectory_ids)
    useless = float((single[~single.isnan()] <= 0).double().mean())
    never = float((mean[~mean.isnan()] <= 0).double().mean())
    proposed = torch.zeros(len(kl), dtype=torch.bool)
    for owner in batch.trajectory_ids.unique().tolist():
        mine = (batch.trajectory_ids == owner).nonzero().flatten()
        proposed[mine[kl[mine].argmax()]] = True
    at = proposed[[row for row, _ in pairs]]
    there = float((single[:, at] <= 0).double().mean())
    print(f"{len(batch.trajectories)} trajectories, {len(pairs)} turns, {args.pairs} pairs of {args.horizon} turns")
    print(f"by {args.evaluator}: agree {found_all['agree']:.3f}, chance {found_all['chance']:.3f}")
    print(f"no help {useless:.3f}, by the mean over pairs {never:.3f}, at the proposed turns {there:.3f}")
    print(f"correlation {found_all['correlation']:.3f}, mean gain {float(mean.nanmean()):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=("exact", "alfworld"))
    parser.add_argument(
        "--groups", type=int, help="exact: groups of 8 trajectories, 200; alfworld: tasks, two each, 24"
    )
    parser.add_argument("--seed", type=int, default=200)
    parser.add_argument("--teacher", help="alfworld: a model's folder; without it the policy under the hint")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--horizon", type=int, default=3)
    parser.add_argument("--evaluator", choices=("likelihood", "return"), default="likelihood")
    args = parser.parse_args()
    if args.where == "exact":
        exact(args.groups or 200, args.seed)
    else:
        args.groups = args.groups or 24
        alfworld(args)


if __name__ == "__main__":
    main()
