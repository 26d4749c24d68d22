"""Starts two processes of a test script with the environment that a launcher would give them; imports no torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
"""The folder from which a program finds `helpers`."""


def start(script: Path, *arguments: str, world: int = 2, **environment: str) -> list[subprocess.Popen]:
    """`world` processes of `script`, told where to meet; output is captured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")},
        "OMP_NUM_THREADS": "1",
        # DeepSpeed compiles with the ninja it finds, and once more when it finds another one the next time
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]),
        **environment,
    }
    if world == 1:
        common = {name: value for name, value in common.items() if not name.endswith("WORLD_SIZE")}
    processes = []
    for rank in range(world):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}
        # a file, as nobody reads while they run: one that fills its pipe would wait for ever, and the other for it
        output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [sys.executable, str(script), *arguments]
        process = subprocess.Popen(command, env={**common, **own}, stdout=output, stderr=subprocess.STDOUT)
        process.output = output
        processes.append(process)
    return processes


def finish(processes: list[subprocess.Popen], timeout: float) -> list[tuple[int, str]]:
    """Exit code and output of each; whatever still runs after `timeout` seconds is killed and shows as -9.

    As a launcher does, the others get SIGTERM once one has failed, and SIGKILL ten seconds later.
    """
    import time

    deadline = time.monotonic() + timeout
    told = False
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if not told and any(process.poll() not in (None, 0) for process in processes):
            told, deadline = True, min(deadline, time.monotonic() + 10)
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    results = []
    for process in processes:
        if process.poll() is None:
            process.kill()
        code = process.wait()
        process.output.seek(0)
        results.append((code, process.output.read()))
    return results
