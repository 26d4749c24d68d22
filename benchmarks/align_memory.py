"""What correspondences cost in memory: one block per task against one matrix over the batch.

    python benchmarks/align_memory.py

For 16 tasks of 400 turns the blocks hold 16 x 400^2 cosines; a matrix over all 6,400 turns would hold 16 times that.
The peak is the growth of the resident set of a process of its own that builds the blocks, selects sources and computes
divergences (Linux only).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from turncredit.credit.align import Correspondence, build_correspondence, profile_divergence, select_sources

MIB = 2**20


def build(tasks: int, turns: int, rollouts: int = 8, width: int = 64) -> Correspondence:
    """Correspondence of ``tasks`` tasks with ``turns`` turns each, shared by ``rollouts`` rollouts."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(tasks * turns)
    valid = torch.ones(rows.numel(), dtype=torch.bool)
    vectors = torch.randn(rows.numel(), width, generator=generator)
    trajectory = rows // turns * rollouts + rows % turns % rollouts
    groups = torch.arange(tasks).repeat_interleave(rollouts)
    return build_correspondence(vectors, vectors, trajectory, rows % turns // rollouts, groups, valid, valid)


def stored_bytes(correspondence: Correspondence) -> int:
    """Bytes of similarities and eligibilities."""
    return sum(
        tensor.untyped_storage().nbytes()
        for block in correspondence.blocks
        for tensor in (block.similarity, block.eligible)
    )


def peak_growth(tasks: int, turns: int) -> int:
    """Bytes by which building, selecting and comparing raise the peak resident set of a fresh process."""
    command = [sys.executable, __file__, "--child", str(tasks), str(turns)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _resident(field: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (peak) of this process, from Linux's procfs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def _child(tasks: int, turns: int) -> None:
    torch.set_num_threads(1)
    profile_divergence(build(2, 16), 32)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak reached while importing
    correspondence = build(tasks, turns)
    select_sources(correspondence, similarity_threshold=0.1)
    profile_divergence(correspondence, tasks * turns, similarity_threshold=0.1)
    print(_resident("VmHWM") - before)


def main() -> None:
    """Print the table."""
    print("| tasks x turns | blocks, MiB | one matrix, MiB | peak of building and comparing, MiB |")
    print("|---|---|---|---|")
    for tasks, turns in ((16, 100), (16, 200), (16, 400), (32, 400), (64, 400)):
        rows = tasks * turns
        stored, dense = stored_bytes(build(tasks, turns)), 5 * rows**2
        print(f"| {tasks} x {turns} | {stored / MIB:.1f} | {dense / MIB:.1f} | {peak_growth(tasks, turns) / MIB:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
