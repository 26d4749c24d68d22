"""What credit costs: every method beside its plain loop and beside one pass over the two log-prob tensors.

    export PYTHONPATH=tests                    # where the plain loops lie
    python benchmarks/credit.py                # 1 thread, CPU time: sizes, ratios, loops, memory; some minutes
    python benchmarks/credit.py --threads 2    # 2 threads, elapsed time
    python benchmarks/credit.py --only ratios  # or sizes, loops, memory

``pass`` is ``(teacher - student).sum()``, as PyTorch runs it: it reads both tensors, and writes and reads their
difference. What stands in a row is measured in turns, round after round, and medians are compared, so that another load
on the machine meets all of it. ``CreditInputs`` is the construction of a batch with all its checks, which reads
log-probs and masks once; ``with it`` is that and the method together. CPU time counts the work of one thread and so
leaves out another load; with several threads only elapsed time makes sense, and threads wait passively, as spinning
ones take the cores from each other on a busy machine. Peak memory is that of a fresh process, above what its inputs
take. AlignOPSD has its own table of times in ``benchmarks/align.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is imported

import torch

from turncredit.credit import CreditInputs, get_credit, list_credits
from turncredit.credit.align import Correspondence, Sources, TaskBlock

try:
    from helpers import reference
except ModuleNotFoundError:
    raise SystemExit("the plain loops lie with the tests: PYTHONPATH=tests python benchmarks/credit.py") from None
import align
from timing import RETURNING, forget_peak, in_turns, memory

METHODS = ("grpo", "agent_opsd", "agent_opsd_token", "rlsd", "step_opsd", "gigpo", "posterior_anchors", "posterior")
LOOPS = {
    "grpo": reference.grpo,
    "agent_opsd": reference.agent_opsd,
    "rlsd": reference.rlsd,
    "step_opsd": reference.step_opsd,
}
SIZES = ((128, 8, 512), (512, 8, 512), (1024, 8, 512), (1024, 8, 128), (1024, 32, 128))
ASKED = (1024, 8, 512)
FIELDS = CreditInputs.__dataclass_fields__


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


def size_of(value: object) -> int:
    """Bytes of the tensors of a batch, those of its correspondence included."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(size_of, value))
    if isinstance(value, CreditInputs | Correspondence | Sources | TaskBlock):
        return sum(size_of(getattr(value, key)) for key in value.__dataclass_fields__)
    return 0


def peak(name: str) -> None:
    """Print the peak of one call above the inputs, as a multiple of their size. Runs in a process of its own."""
    torch.set_num_threads(1)
    method = get_credit(name)
    if "correspondence" in method.requires:
        small, inputs = (align.batch(*size, **align.selection(name)) for size in ((16, 2, 16), ASKED))
    else:
        small, inputs = batch(8, 2, 16), batch(*ASKED)
    method(small)
    forget_peak()
    before = memory("VmRSS")
    method(inputs)
    print(f"{(memory('VmHWM') - before) / size_of(inputs):.2f}")


def one_pass(inputs: CreditInputs) -> Callable[[], object]:
    teacher, student = inputs.teacher_logprobs, inputs.student_logprobs
    assert teacher is not None
    return lambda: (teacher - student).sum()


def construction(inputs: CreditInputs) -> Callable[[], CreditInputs]:
    given = {name: getattr(inputs, name) for name in FIELDS}
    return lambda: CreditInputs(**given)


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def time_sizes(clock: Callable[[], float]) -> None:
    """Median milliseconds over sizes."""
    row("trajectories x turns x tokens", "pass", "CreditInputs", *METHODS)
    row(*["---"] * (3 + len(METHODS)))
    for size in SIZES:
        inputs = batch(*size)
        functions = {"pass": one_pass(inputs), "CreditInputs": construction(inputs)}
        functions |= {name: partial(get_credit(name), inputs) for name in METHODS}
        cells = in_turns(functions, clock, 5)
        row(" x ".join(map(str, size)), *(f"{cell:.1f} ms" for cell in cells.values()))


def time_ratios(clock: Callable[[], float], rounds: int) -> None:
    """Each method over one pass, at the size asked for, alone and with the construction of the batch."""
    inputs = batch(*ASKED)
    build = construction(inputs)
    row("method", "pass, ms", "method, ms", "method / pass", "with CreditInputs, ms", "with it / pass")
    row(*["---"] * 6)
    for name in METHODS:
        method = get_credit(name)
        slow = name.endswith("_token")
        cells = in_turns(
            {"pass": one_pass(inputs), "method": lambda m=method: m(inputs), "both": lambda m=method: m(build())},
            clock,
            5 if slow else rounds,
        )
        plain, alone, both = cells.values()
        row(name, f"{plain:.1f}", f"{alone:.1f}", f"{alone / plain:.1f}", f"{both:.1f}", f"{both / plain:.1f}")


def time_loops(clock: Callable[[], float]) -> None:
    """Each method over its plain loop of the tests."""
    inputs = batch(*ASKED)
    row("method", "method, ms", "plain loop, ms", "loop / method")
    row(*["---"] * 4)
    for name, loop in LOOPS.items():
        one = in_turns({name: partial(get_credit(name), inputs)}, clock, 9)[name]
        start = clock()
        loop(inputs)
        plain = 1e3 * (clock() - start)
        row(name, f"{one:.1f}", f"{plain:.0f}", f"{plain / one:.0f}")


def measure_memory() -> None:
    row("method", "peak extra memory / inputs")
    row("---", "---")
    for name in (name for name in list_credits() if not get_credit(name).extras):
        child = [sys.executable, __file__, "--peak", name]
        row(name, subprocess.run(child, capture_output=True, text=True, check=True, env=RETURNING).stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--wall", action="store_true", help="elapsed time with one thread too")
    parser.add_argument("--rounds", type=int, default=31, help="rounds of the table of ratios")
    parser.add_argument("--only", choices=("sizes", "ratios", "loops", "memory"), help="one table")
    parser.add_argument("--peak", choices=list_credits(), help="only print this method's peak memory")
    options = parser.parse_args()
    if options.peak:
        return peak(options.peak)
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall or options.threads > 1 else time.process_time
    tables = {
        "sizes": lambda: time_sizes(clock),
        "ratios": lambda: time_ratios(clock, options.rounds),
        "loops": lambda: time_loops(clock),
        "memory": measure_memory,
    }
    for name, table in tables.items():
        if options.only in (None, name):
            print(f"\n{name}, {options.threads} thread(s), {'CPU' if clock is time.process_time else 'elapsed'} time\n")
            table()


if __name__ == "__main__":
    main()
