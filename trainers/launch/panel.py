"""A panel of training runs, methods by seeds: each a script's command in a process of its own; killed, it goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..loggers import append_line, read_metrics

CURVES = ("success", "reward", "turns", "invalid_turns")
RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Arm:
    """One method of a panel.

    Args:
        label: its name in tables; the method's unless options change it.
        credit: method by name.
        options: its options, as the command line writes them.
    """

    label: str
    credit: str
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Arm:
        """``"method"``, ``"method:option=value,.."`` or ``"label=method:option=value"``.

        Raises:
            ValueError: there is no method's name.

        >>> Arm.parse("slow=gigpo:outcome_discount=0.95")
        Arm(label='slow', credit='gigpo', options=('outcome_discount=0.95',))
        """
        head, _, options = text.partition(":")
        label, named, credit = head.partition("=")
        credit = credit if named else label
        if not label or not credit:
            raise ValueError(f"Arm: methods must be given as NAME or LABEL=NAME:OPTION=VALUE, got {text!r}; name one")
        given = tuple(option for option in options.split(",") if option)
        return cls(label if named or not given else text, credit, given)


@dataclass(frozen=True)
class Job:
    """One run of a panel.

    Args:
        environment: name of the environment.
        script: the training script.
        arm: the method.
        seed: of the run.
        flags: further flags of the script, the same for every method.
    """

    environment: str
    script: str
    arm: Arm
    seed: int
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> dict[str, Any]:
        """What says that a record is this run's."""
        given = {"credit": self.arm.credit, "options": list(self.arm.options), "flags": list(self.flags)}
        return {"environment": self.environment, "method": self.arm.label, "seed": self.seed, **given}


@dataclass(frozen=True)
class Panel:
    """Where a panel is kept and how it is run.

    Args:
        folder: results and the runs' folders.
        facts: further facts of every record, such as the commit.
        workers: processes side by side.
        threads: threads of each.
    """

    folder: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 2
    threads: int = 1

    def run(self, jobs: Sequence[Job], say: Callable[[str], None] = print) -> list[str]:
        """Run what has no record yet; one JSON line per finished run goes into the folder.

        Returns:
            What went wrong, a line for every run that failed.
        """
        done = {_frozen(record) for record in read_results([self.folder / RESULTS])}
        waiting = [job for job in jobs if _frozen(job.key) not in done]
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there; {len(waiting)} to do in {self.folder}")
        failed = []
        with ThreadPoolExecutor(self.workers) as pool:
            for number, (job, problem) in enumerate(pool.map(self._tried, waiting), 1):
                name = f"{job.environment} {job.arm.label} seed {job.seed}"
                say(f"[{number}/{len(waiting)}] {name}: {problem or 'done'}")
                if problem:
                    failed.append(f"{name}: {problem}")
        return failed

    def _tried(self, job: Job) -> tuple[Job, str]:
        try:
            self._run(job)
        except (OSError, RuntimeError, KeyError) as error:
            return job, f"{type(error).__name__}: {error}"
        return job, ""

    def _run(self, job: Job) -> None:
        folder = self.folder / "runs" / job.environment / _safe(job.arm.label) / f"seed{job.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        again = ["--resume"] if any(folder.glob("checkpoints/step-*")) else []
        options = [part for option in job.arm.options for part in ("--credit-option", option)]
        command = [sys.executable, job.script, "--credit", job.arm.credit, *options, *job.flags]
        command += ["--seed", str(job.seed), "--output-dir", str(folder), *again]
        limits = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        began = time.monotonic()
        with open(folder / "log.txt", "ab") as log:
            code = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **limits}, check=False
            ).returncode
        if code:
            raise RuntimeError(f"it ended with {code}; see {folder / 'log.txt'}")
        took = {"wall_seconds": round(time.monotonic() - began, 1), "resumed": bool(again)}
        record = {**job.key, **summary(read_metrics(folder / "metrics.jsonl")), **took, **self.facts}
        append_line(self.folder / RESULTS, (json.dumps(record) + "\n").encode())
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a panel keeps of a run's metrics: training curves, and the evaluations before and after.

    Raises:
        RuntimeError: there is no evaluation after the last update.
    """
    updates = [line for line in lines if "rollout/success" in line]
    evaluations = [line for line in lines if "eval/success" in line]
    if not updates or not evaluations or evaluations[-1]["step"] < updates[-1]["step"]:
        raise RuntimeError("the run left no evaluation after its last update; look into its log")
    curves = {name: [round(line[f"rollout/{name}"], 5) for line in updates] for name in CURVES}
    before, after = evaluations[0], evaluations[-1]
    kept = ("success", "reward", "turns", "invalid_turns", "episodes")
    return {
        "updates": len(updates),
        **curves,
        "before": {name: round(before[f"eval/{name}"], 5) for name in kept} if before["step"] == 0 else {},
        "after": {name: round(after[f"eval/{name}"], 5) for name in kept},
        "train_seconds": round(sum(line["time/total_seconds"] for line in updates), 1),
    }


def read_results(paths: Iterable[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Records of panels, in the order of their lines; a torn last line is left out, the last record of a run counts."""
    found: dict[str, dict[str, Any]] = {}
    for path in map(Path, paths):
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(text)
                found[_frozen(record)] = record
            except (ValueError, KeyError):
                continue
    return list(found.values())


def jobs_of(
    scripts: Mapping[str, str], arms: Sequence[Arm], seeds: Sequence[int], flags: Mapping[str, Sequence[str]]
) -> Iterator[Job]:
    """Every arm with every seed in every environment; seed by seed, so that a stopped panel is still paired.

    Args:
        scripts: environment -> its training script.
        arms: the methods.
        seeds: of the runs.
        flags: environment -> further flags.
    """
    for environment, script in scripts.items():
        for seed in seeds:
            for arm in arms:
                yield Job(environment, script, arm, seed, tuple(flags.get(environment, ())))


def _frozen(record: Mapping[str, Any]) -> str:
    return json.dumps([record[name] for name in ("environment", "method", "seed", "credit", "options", "flags")])


def _safe(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in label)
