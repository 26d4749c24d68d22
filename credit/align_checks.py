"""Checks that a correspondence and a batch belong together, before AlignOPSD reads them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._masks import row_blocks, zero_outside_
from .correspondence import Correspondence
from .inputs import CreditInputs
from .sources import Sources


def check_correspondence(correspondence: Correspondence, inputs: CreditInputs) -> None:
    """Raise unless blocks and scored pairs describe the rows of this batch.

    Raises:
        TypeError: it is no Correspondence.
        ValueError: a row, a trajectory, a turn, a device or a shape differs from the batch, a block mixes tasks, or a
            cross score is not finite on a sampled token.
    """
    where = "check_correspondence"
    if not isinstance(correspondence, Correspondence):
        raise TypeError(
            f"{where}: correspondence must be a Correspondence, got {type(correspondence).__name__}; "
            "call build_correspondence"
        )
    device, rows = inputs.response_mask.device, inputs.num_rows
    for block in correspondence.blocks:
        if block.rows.device != device:
            raise ValueError(
                f"{where}: correspondence must be on the device of the batch ({device}), got {block.rows.device}; "
                f"call correspondence.to('{device}')"
            )
    if correspondence.blocks:
        row, trajectory, turn = (
            torch.cat([getattr(block, name) for block in correspondence.blocks])
            for name in ("rows", "trajectory_ids", "turn_ids")
        )
        outside = (row < 0) | (row >= rows)
        wrong = outside | (inputs.trajectory_ids[row.clamp(0, rows - 1)] != trajectory)
        wrong |= inputs.turn_ids[row.clamp(0, rows - 1)] != turn
        if bool(wrong.any()):
            bad = int(wrong.int().argmax())
            raise ValueError(
                f"{where}: correspondence must name the rows of this batch, got row {int(row[bad])} as turn "
                f"{int(turn[bad])} of trajectory {int(trajectory[bad])}; build it from the same trajectory_ids and "
                "turn_ids, in the same order of rows"
            )
        task = inputs.group_ids[trajectory]
        sizes = torch.tensor([block.rows.numel() for block in correspondence.blocks], device=device)
        first = (sizes.cumsum(0) - sizes).clamp(max=max(task.numel() - 1, 0)).repeat_interleave(sizes)
        if bool((task != task[first]).any()):
            raise ValueError(
                f"{where}: correspondence must hold one task per block, got several group_ids in one; build it from "
                "the group_ids of the batch"
            )
    if correspondence.sources is not None and correspondence.cross_logprobs is not None:
        _check_pairs(where, correspondence.sources, correspondence.cross_logprobs, inputs)


def scored_pairs(inputs: CreditInputs, similarity_threshold: float, top_k: int) -> tuple[Sources, Tensor]:
    """The selected pairs and their scores.

    Raises:
        ValueError: they are missing, or were selected with another threshold or K.
    """
    where = "align_opsd"
    correspondence = inputs.correspondence
    if correspondence is None or correspondence.sources is None or correspondence.cross_logprobs is None:
        lacking = "correspondence" if correspondence is None else "correspondence.sources and cross_logprobs"
        raise ValueError(
            f"{where}: inputs.{lacking} must be given while alpha_max > 0, got None; attach them with "
            "correspondence.with_scores(select_sources(correspondence), scores), or set alpha_max=0"
        )
    check_correspondence(correspondence, inputs)
    sources = correspondence.sources
    for name, used, wanted in (
        ("similarity_threshold", sources.similarity_threshold, similarity_threshold),
        ("top_k", sources.top_k, top_k),
    ):
        if used != wanted:
            raise ValueError(
                f"{where}: {name} must be the one the sources were selected with ({used}), got {wanted}; "
                f"call select_sources(.., {name}={wanted}) and score those pairs"
            )
    return sources, correspondence.cross_logprobs


def _check_pairs(where: str, sources: Sources, scores: Tensor, inputs: CreditInputs) -> None:
    mask = inputs.response_mask
    if scores.device != mask.device or sources.target.device != mask.device:
        raise ValueError(
            f"{where}: cross_logprobs must be on the device of the batch ({mask.device}), got {scores.device}; "
            f"call correspondence.to('{mask.device}')"
        )
    if scores.shape[1] != mask.shape[1]:
        raise ValueError(
            f"{where}: cross_logprobs must be [P, T] with T = {mask.shape[1]}, got T = {scores.shape[1]}; "
            "pad them like the responses"
        )
    if not sources.target.numel():
        return
    for name in ("source", "target"):
        index = getattr(sources, name)
        if int(index.min()) < 0 or int(index.max()) >= inputs.num_rows:
            raise ValueError(
                f"{where}: sources.{name} must index the {inputs.num_rows} rows of this batch, got {int(index.min())} "
                f".. {int(index.max())}; select sources from this batch's correspondence"
            )
    for pairs in row_blocks(scores):
        block, sampled = scores[pairs].detach(), mask[sources.target[pairs]]
        wide = block.to(torch.promote_types(block.dtype, torch.float32), copy=True)
        if math.isfinite(float(zero_outside_(wide, sampled).sum())):
            continue
        bad = ~torch.isfinite(block) & sampled
        if bool(bad.any()):
            pair, token = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{where}: cross_logprobs must be finite on the sampled tokens of the target, got "
                f"{float(block[pair, token])} in pair {pairs.start + pair}, token {token}; check the scoring pass"
            )
