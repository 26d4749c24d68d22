"""Random batches for the AlignOPSD tests: plain data first, so that rows and names can be shuffled before assembly."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from turncredit.credit.align import Correspondence, correspondence_from_similarity, select_sources
from turncredit.credit.inputs import CreditInputs

Case = dict[str, Any]


def random_case(
    seed: int, *, groups: int = 2, rollouts: int = 3, max_turns: int = 9, tokens: int = 5, scale: float = 0.4
) -> Case:
    """A case of plain lists with smooth decisions, empty thinking here and there, and ragged lengths."""
    rng = random.Random(seed)
    case: Case = {key: [] for key in ("trajectory", "turn", "group", "reward", "mask", "student", "teacher", "valid")}
    angles = []
    for g in range(groups):
        for _ in range(rollouts):
            i = len(case["group"])
            case["group"].append(100 - 7 * g)
            case["reward"].append(float(rng.random() < 0.5) * 10)
            phase = 0.0
            for k in range(rng.randint(1, max_turns)):
                phase += rng.choice([0.02, 0.05, 0.5])
                angles.append((phase, rng.uniform(-0.2, 0.2)))
                size = rng.randint(1, tokens)
                case["trajectory"].append(i)
                case["turn"].append(k)
                case["mask"].append([t < size for t in range(tokens)])
                case["student"].append([-rng.expovariate(1.0) for _ in range(tokens)])
                case["teacher"].append([s + rng.gauss(-0.05, scale) for s in case["student"][-1]])
                case["valid"].append(rng.random() < 0.9)
    rows = range(len(angles))
    case["similarity"] = [[math.cos(angles[v][0] - angles[u][0] + angles[v][1]) for u in rows] for v in rows]
    case["source_valid"] = [rng.random() < 0.95 for _ in rows]
    case["target_valid"] = [rng.random() < 0.95 for _ in rows]
    case["cross"] = {
        (v, u): [s + rng.gauss(0.1, scale) for s in case["student"][u]]
        for v in rows
        for u in rows
        if case["group"][case["trajectory"][v]] == case["group"][case["trajectory"][u]]
    }
    return case


def shuffled(case: Case, seed: int) -> tuple[Case, list[int], list[int]]:
    """The same case with rows, trajectories and group names permuted; also ``new row -> old row`` and the same of
    trajectories."""
    rng = random.Random(seed)
    rows = list(range(len(case["trajectory"])))
    trajectories = list(range(len(case["group"])))
    rng.shuffle(rows)
    rng.shuffle(trajectories)
    new_name = {old: new for new, old in enumerate(trajectories)}
    new_row = {old: new for new, old in enumerate(rows)}
    moved: Case = {
        key: [case[key][m] for m in rows]
        for key in ("turn", "mask", "student", "teacher", "valid", "source_valid", "target_valid")
    }
    moved["trajectory"] = [new_name[case["trajectory"][m]] for m in rows]
    names = {g: rng.randint(-(10**6), 10**6) for g in set(case["group"])}
    moved["group"] = [names[case["group"][i]] for i in trajectories]
    moved["reward"] = [case["reward"][i] for i in trajectories]
    moved["similarity"] = [[case["similarity"][v][u] for u in rows] for v in rows]
    moved["cross"] = {(new_row[v], new_row[u]): scores for (v, u), scores in case["cross"].items()}
    return moved, rows, trajectories


def correspondence_of(case: Case, dtype: torch.dtype = torch.float64) -> Correspondence:
    """Blocks of a case."""
    return correspondence_from_similarity(
        torch.tensor(case["similarity"], dtype=dtype),
        torch.tensor(case["trajectory"]),
        torch.tensor(case["turn"]),
        torch.tensor(case["group"]),
        torch.tensor(case["source_valid"]),
        torch.tensor(case["target_valid"]),
    )


def scored(case: Case, dtype: torch.dtype = torch.float64, *, threshold: float = 0.8, top_k: int = 3) -> Correspondence:
    """Blocks with the selected pairs and their cross scores."""
    blocks = correspondence_of(case, dtype)
    sources = select_sources(blocks, similarity_threshold=threshold, top_k=top_k)
    pairs = zip(sources.source.tolist(), sources.target.tolist(), strict=True)
    tokens = len(case["mask"][0])
    cross = torch.tensor([case["cross"][pair] for pair in pairs], dtype=dtype).reshape(-1, tokens)
    return blocks.with_scores(sources, cross)


def inputs_of(
    case: Case,
    dtype: torch.dtype = torch.float64,
    *,
    threshold: float = 0.8,
    top_k: int = 3,
    with_valid: bool = False,
    padding: int = 0,
) -> CreditInputs:
    """The batch of a case; ``padding`` appends columns of NaN outside the mask."""
    correspondence = scored(case, dtype, threshold=threshold, top_k=top_k)

    def pad(rows: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, padding), value=value)

    assert correspondence.sources is not None
    assert correspondence.cross_logprobs is not None
    return CreditInputs(
        response_mask=pad(torch.tensor(case["mask"]), False),
        trajectory_ids=torch.tensor(case["trajectory"]),
        turn_ids=torch.tensor(case["turn"]),
        group_ids=torch.tensor(case["group"]),
        rewards=torch.tensor(case["reward"], dtype=dtype),
        successes=(torch.tensor(case["reward"]) > 0).to(dtype),
        student_logprobs=pad(torch.tensor(case["student"], dtype=dtype), math.nan),
        teacher_logprobs=pad(torch.tensor(case["teacher"], dtype=dtype), math.nan),
        valid_actions=torch.tensor(case["valid"]) if with_valid else None,
        correspondence=correspondence.with_scores(correspondence.sources, pad(correspondence.cross_logprobs, math.nan)),
    )
