"""How fast AlignOPSD shares credit, against the plain loop of its reference, in one run.

    PYTHONPATH=tests python benchmarks/align.py

prints a table over sizes. Times are CPU milliseconds of one thread, medians of rounds in which everything of a row is
measured once, so that another load on the machine meets all alike. At 1,024 trajectories and 8,192 turns of up to 512
tokens, segmentation with allocation takes less than a tenth of the loop's time.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from timing import in_turns

from turncredit.credit.align import (
    align_opsd,
    allocate,
    boundary_threshold,
    build_correspondence,
    profile_divergence,
    segment_spans,
    select_sources,
)
from turncredit.credit.inputs import CreditInputs
from turncredit.credit.registry import get_credit

try:
    from helpers import reference_align
except ModuleNotFoundError:
    raise SystemExit("the plain loops lie with the tests: PYTHONPATH=tests python benchmarks/align.py") from None


def selection(name: str) -> dict[str, Any]:
    """The options of a method's selection of sources."""
    options = get_credit(name).options
    return {key: options[key] for key in ("similarity_threshold", "top_k") if key in options}


def batch(
    trajectories: int, turns: int, tokens: int, *, rollouts: int = 8, width: int = 32, **selected: Any
) -> CreditInputs:
    """A float32 batch with correspondences of smoothly drifting decisions; ``turns`` per trajectory on average."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(max(1, turns // 2), turns + turns // 2 + 1, (trajectories // 2,), generator=generator)
    counts = torch.cat([counts, 2 * turns - counts])
    ids = torch.arange(trajectories).repeat_interleave(counts)
    turn = torch.arange(ids.numel()) - (counts.cumsum(0) - counts)[ids]
    groups = torch.arange(trajectories) // rollouts
    rows = ids.numel()
    phase = turn[:, None] * 0.3 + torch.rand(rows, 1, generator=generator)
    waves = torch.sin(phase * torch.linspace(0.5, 2.0, width) + groups[ids][:, None])
    valid = torch.ones(rows, dtype=torch.bool)
    correspondence = build_correspondence(waves, waves.roll(1, 0), ids, turn, groups, valid, valid)
    sources = select_sources(correspondence, **selected)
    student = -torch.rand(rows, tokens, generator=generator)
    sizes = torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    rewards = torch.randint(0, 2, (trajectories,), generator=generator).float()
    return CreditInputs(
        response_mask=torch.arange(tokens) < sizes,
        trajectory_ids=ids,
        turn_ids=turn,
        group_ids=groups,
        rewards=rewards,
        successes=rewards,
        student_logprobs=student,
        teacher_logprobs=student + 0.3 * torch.randn(rows, tokens, generator=generator),
        anchor_ids=turn,
        correspondence=correspondence.with_scores(sources, torch.full((sources.target.numel(), tokens), -0.5)),
    )


def measure(inputs: CreditInputs, rounds: int = 5) -> dict[str, float]:
    """CPU milliseconds of segmentation with allocation and of the same as a loop, and of what surrounds them.

    ``turns`` starts from the scores of the turns, ``tokens`` from the gaps of their tokens.
    """
    correspondence = inputs.correspondence
    assert correspondence is not None
    ids, turns, counts = inputs.trajectory_ids, inputs.turn_ids, inputs.token_counts
    found = profile_divergence(correspondence, inputs.num_rows)
    theta = boundary_threshold(found.values[found.defined])
    assert inputs.teacher_logprobs is not None
    gap = torch.where(inputs.response_mask, inputs.teacher_logprobs - inputs.student_logprobs, 0.0)
    scores = gap.sum(-1) / counts

    def fast_tokens() -> torch.Tensor:
        sizes = inputs.token_counts
        means = gap.sum(-1) / sizes
        spans = segment_spans(found.values, found.defined, ids, turns, threshold=theta)
        return allocate(means, sizes, spans, ids).weights

    def fast() -> torch.Tensor:
        spans = segment_spans(found.values, found.defined, ids, turns, threshold=theta)
        return allocate(scores, counts, spans, ids).weights

    values, defined, plain = found.values.tolist(), found.defined.tolist(), scores.tolist()
    sizes, owner, place = counts.tolist(), ids.tolist(), turns.tolist()
    gap_rows, mask_rows = gap.tolist(), inputs.response_mask.tolist()

    def loop_tokens() -> list[float]:
        means, lengths = [], []
        for row, sampled in zip(gap_rows, mask_rows, strict=True):
            kept = [value for value, real in zip(row, sampled, strict=True) if real]
            means.append(sum(kept) / len(kept))
            lengths.append(len(kept))
        return loop(means, lengths)

    def loop(plain: list[float], sizes: list[int]) -> list[float]:
        rows: list[list[int]] = [[] for _ in range(inputs.num_trajectories)]
        for row in sorted(range(len(owner)), key=place.__getitem__):
            rows[owner[row]].append(row)
        weights = [1.0] * len(owner)
        for mine in rows:
            spans = reference_align.segment([values[r] for r in mine], [defined[r] for r in mine], theta, 2, 8)
            shares, _, _ = reference_align.allocate(
                [plain[r] for r in mine], [sizes[r] for r in mine], spans, 0.5, 0.5, 0.0, 4.0,
                solve=reference_align.project_by_sorting,
            )  # fmt: skip
            for row, weight in zip(mine, shares, strict=True):
                weights[row] = weight
        return weights

    difference = (fast_tokens() - torch.tensor(loop_tokens())).abs().max().item()
    if difference > 1e-4:
        raise RuntimeError(f"measure: both ways must agree, got a difference of {difference}; one of them is broken")
    teacher, student = inputs.teacher_logprobs, inputs.student_logprobs
    functions = {
        "turns": fast,
        "turns_loop": lambda: loop(plain, sizes),
        "tokens": fast_tokens,
        "tokens_loop": loop_tokens,
        "divergence": lambda: profile_divergence(correspondence, inputs.num_rows),
        "align_opsd": lambda: align_opsd(inputs),
        "read_both": lambda: (teacher - student).sum(),
    }
    return in_turns(functions, time.process_time, rounds)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    columns = ("turns", "turns_loop", "tokens", "tokens_loop", "divergence", "align_opsd", "read_both")
    print(
        "| trajectories | turns | turns ratio | tokens ratio | " + " | ".join(f"{name}, ms" for name in columns) + " |"
    )
    print("|---" * (4 + len(columns)) + "|")
    for trajectories in (128, 256, 512, 1024, 2048):
        inputs = batch(trajectories, 8, 512)
        times = measure(inputs)
        ratios = [f"{times[f'{name}_loop'] / times[name]:.1f}" for name in ("turns", "tokens")]
        cells = [str(trajectories), str(inputs.num_rows), *ratios]
        print("| " + " | ".join(cells + [f"{times[name]:.1f}" for name in columns]) + " |")


if __name__ == "__main__":
    main()
