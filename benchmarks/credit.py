"""What credit costs: every method beside its plain loop and beside one pass over the two log-prob tensors.

    python benchmarks/credit.py            # tables over sizes, the plain loop and the peak memory; about a minute
    python benchmarks/credit.py --threads 2 --wall

Times are the best of several calls: CPU seconds of one thread by default, so that another load on the machine does not
count; ``--wall`` takes elapsed time instead. ``pass`` is ``(teacher - student).sum()``; ``masked pass`` is the same sum
over the sampled tokens alone, ``torch.where(mask, teacher - student, 0).sum()``. Peak memory is that of a fresh
process, above what its inputs take. AlignOPSD has its own table in ``benchmarks/align.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from turncredit.credit import CreditInputs, get_credit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import reference

METHODS = ("grpo", "agent_opsd", "agent_opsd_token", "rlsd", "step_opsd", "gigpo")
LOOPS = {
    "grpo": reference.grpo,
    "agent_opsd": reference.agent_opsd,
    "rlsd": reference.rlsd,
    "step_opsd": reference.step_opsd,
}
SIZES = ((128, 8, 512), (512, 8, 512), (1024, 8, 512), (1024, 8, 128), (1024, 32, 128))
ASKED = (1024, 8, 512)
FIELDS = CreditInputs.__dataclass_fields__
RETURNING = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc then returns freed tensors to the system


def batch(trajectories: int, turns: int, tokens: int) -> CreditInputs:
    """Float32 turns in random order, an eighth of the width to all of it long, groups of eight rollouts."""
    draw = torch.Generator().manual_seed(0)
    rows = trajectories * turns
    order = torch.randperm(rows, generator=draw)
    lengths = torch.randint(max(1, tokens // 8), tokens + 1, (rows, 1), generator=draw)
    mask = torch.arange(tokens)[None] < lengths
    student = -torch.rand(rows, tokens, generator=draw)
    success = torch.randint(0, 2, (trajectories,), generator=draw).float()
    return CreditInputs(
        response_mask=mask,
        trajectory_ids=torch.arange(trajectories).repeat_interleave(turns)[order],
        turn_ids=torch.arange(turns).repeat(trajectories)[order],
        group_ids=torch.arange(trajectories) // 8,
        rewards=success,
        successes=success,
        student_logprobs=student,
        teacher_logprobs=student + 0.1 * torch.randn(rows, tokens, generator=draw),
        span_mask=mask & (torch.arange(tokens)[None] >= lengths // 2),
        anchor_ids=torch.randint(0, 20, (rows,), generator=draw),
    )


def best(function: Callable[[], object], clock: Callable[[], float], repeats: int = 7) -> float:
    """Milliseconds of the fastest of ``repeats`` calls, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return 1e3 * min(times)


def size_of(inputs: CreditInputs) -> int:
    """Bytes of the tensors of a batch."""
    return sum(value.nbytes for value in vars(inputs).values() if isinstance(value, torch.Tensor))


def memory(field: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (peak) of this process; Linux alone has them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"memory: this system reports no {field}; run the benchmark on Linux")


def peak(name: str) -> None:
    """Print the peak of one call above the inputs, as a multiple of their size. Runs in a process of its own."""
    torch.set_num_threads(1)
    method = get_credit(name)
    method(batch(8, 2, 16))
    inputs = batch(*ASKED)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    method(inputs)
    print(f"{(memory('VmHWM') - before) / size_of(inputs):.2f}")


def time_sizes(clock: Callable[[], float]) -> None:
    print("| trajectories x turns x tokens | pass | masked pass | CreditInputs | " + " | ".join(METHODS) + " |")
    print("|---" * (4 + len(METHODS)) + "|")
    for size in SIZES:
        inputs = batch(*size)
        teacher, student, mask = inputs.teacher_logprobs, inputs.student_logprobs, inputs.response_mask
        assert teacher is not None
        cells = [
            best(lambda t=teacher, s=student: (t - s).sum(), clock),
            best(lambda t=teacher, s=student, m=mask: torch.where(m, t - s, 0.0).sum(), clock),
            best(lambda i=inputs: CreditInputs(**{k: v for k, v in vars(i).items() if k in FIELDS}), clock),
        ]
        cells += [best(lambda i=inputs, n=name: get_credit(n)(i), clock, 3) for name in METHODS]
        print(
            f"| {size[0]} x {size[1]} x {size[2]} | " + " | ".join(f"{cell:.1f} ms" for cell in cells) + " |",
            flush=True,
        )


def time_loops(clock: Callable[[], float]) -> None:
    inputs = batch(*ASKED)
    teacher, student, mask = inputs.teacher_logprobs, inputs.student_logprobs, inputs.response_mask
    assert teacher is not None
    print("\n| method | ms | plain loop / method | method / pass | method / masked pass | peak extra memory / inputs |")
    print("|---|---|---|---|---|---|")
    for name in METHODS:
        method = get_credit(name)
        one = best(lambda m=method: m(inputs), clock)
        plain = best(lambda: (teacher - student).sum(), clock)
        masked = best(lambda: torch.where(mask, teacher - student, 0.0).sum(), clock)
        loop = "-"
        if name in LOOPS:
            start = clock()
            LOOPS[name](inputs)
            loop = f"{1e3 * (clock() - start) / one:.0f}"
        child = [sys.executable, __file__, "--peak", name]
        extra = subprocess.run(child, capture_output=True, text=True, check=True, env=RETURNING).stdout.strip()
        print(f"| {name} | {one:.1f} | {loop} | {one / plain:.1f} | {one / masked:.2f} | {extra} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--wall", action="store_true", help="elapsed time in place of CPU time")
    parser.add_argument("--peak", choices=METHODS, help="only print this method's peak memory")
    options = parser.parse_args()
    if options.peak:
        return peak(options.peak)
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    time_sizes(clock)
    time_loops(clock)


if __name__ == "__main__":
    main()
