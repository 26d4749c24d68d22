"""A panel of training runs, methods by seeds: each a script's command in a process of its own; killed, it goes on."""

from __future__ import annotations

import hashlib
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

from filelock import FileLock, Timeout

from ..loggers import append_line, read_metrics
from .benchmark import EMBEDDED_SETTINGS
from .flags import make_parser
from .options import make_config

CURVES = ("success", "reward", "turns", "invalid_turns")
RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Arm:
    """One method of a panel.

    Args:
        label: its name in tables; the method's unless options change it.
        credit: method by name.
        options: its options, as the command line writes them.
        source: digest of the code of a method of one's own: what was run with other code is run again.
    """

    label: str
    credit: str
    options: tuple[str, ...] = ()
    source: str = ""

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
        script: the training script, or what stands before its flags in a command of Python's, ``("-m", module)``.
        arm: the method.
        seed: of the run.
        flags: further flags of the script, the same for every method.
        imports: modules or files of methods, see `import_methods`; they are no setting of the run.
    """

    environment: str
    script: str | tuple[str, ...]
    arm: Arm
    seed: int
    flags: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

    @property
    def key(self) -> dict[str, Any]:
        """What says that a record is this run's."""
        given = {"credit": self.arm.credit, "options": list(self.arm.options), "flags": list(self.flags)}
        given |= {"source": self.arm.source} if self.arm.source else {}
        return {"environment": self.environment, "method": self.arm.label, "seed": self.seed, **given}

    @property
    def words(self) -> list[str]:
        """Flags of the script, but for where it writes."""
        options = [part for option in self.arm.options for part in ("--credit-option", option)]
        imports = [part for module in self.imports for part in ("--import", module)]
        return [*imports, "--credit", self.arm.credit, *options, *self.flags, "--seed", str(self.seed)]

    @property
    def folder(self) -> Path:
        """Where it writes, below the panel's folder; other settings are another folder: no checkpoint is mixed up."""
        digest = hashlib.sha256(_frozen(self.key).encode()).hexdigest()[:8]
        return Path("runs", self.environment, _safe(self.arm.label), f"seed{self.seed}-{digest}")

    def check(self) -> None:
        """Find what the run would fail by; methods are imported already, flags of the script's own are not looked at.

        Raises:
            SystemExit: a method or an option is unknown, or a value is out of range.
        """
        args, _ = make_parser().parse_known_args(self.words)
        make_config(args, EMBEDDED_SETTINGS)


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
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set, init=False, repr=False, compare=False)

    def run(self, jobs: Sequence[Job], say: Callable[[str], None]) -> list[str]:
        """Run what has no record yet; one JSON line per finished run goes into the folder.

        An interrupt ends the runs too: they save where they are, and go on from there next time.

        Args:
            jobs: the runs; one that comes twice is done once.
            say: called with a line at the start and one for every run.

        Returns:
            What went wrong, a line for every run that failed.

        Raises:
            RuntimeError: another panel is at work in the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                return self._run_all(list(dict.fromkeys(jobs)), say)
        except Timeout:
            raise RuntimeError(
                f"Panel: folder must belong to one panel at a time, got {str(self.folder)!r}, in which another one is "
                "at work; wait for it or choose another folder"
            ) from None

    def _run_all(self, jobs: Sequence[Job], say: Callable[[str], None]) -> list[str]:
        done = {_frozen(record) for record in read_results([self.folder / RESULTS])}
        waiting = [job for job in jobs if _frozen(job.key) not in done]
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there; {len(waiting)} to do in {self.folder}")
        failed = []
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                for number, (job, problem) in enumerate(pool.map(self._tried, waiting), 1):
                    name = f"{job.environment} {job.arm.label} seed {job.seed}"
                    say(f"[{number}/{len(waiting)}] {name}: {problem or 'done'}")
                    if problem:
                        failed.append(f"{name}: {problem}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    process.terminate()
                raise
        return failed

    def _tried(self, job: Job) -> tuple[Job, str]:
        try:
            self._run(job)
        except Exception as error:  # whatever one run did, the others go on
            return job, f"{type(error).__name__}: {error}"
        return job, ""

    def _run(self, job: Job) -> None:
        folder = self.folder / job.folder
        folder.mkdir(parents=True, exist_ok=True)
        again = ["--resume"] if any(folder.glob("checkpoints/step-*")) else []
        script = [job.script] if isinstance(job.script, str) else job.script
        command = [sys.executable, *script, *job.words, "--output-dir", str(folder), *again]
        limits = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        began = time.monotonic()
        if code := self._call(command, {**os.environ, **limits}, folder / "log.txt"):
            raise RuntimeError(f"it ended with {code}; see {folder / 'log.txt'}")
        took = {"wall_seconds": round(time.monotonic() - began, 1), "resumed": bool(again)}
        record = {**job.key, **summary(read_metrics(folder / "metrics.jsonl")), **took, **self.facts}
        append_line(self.folder / RESULTS, (json.dumps(record) + "\n").encode())
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    def _call(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        with open(log, "ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        self._running.add(process)
        try:
            return process.wait()
        finally:
            self._running.discard(process)


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
            except (ValueError, KeyError, TypeError):
                continue
    return list(found.values())


def newest(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without those of a method's earlier code: the last of a method under its flags says what counts."""

    def arm(record: Mapping[str, Any]) -> str:
        return json.dumps([record[name] for name in ("environment", "method", "flags")])

    codes = {arm(record): record.get("source") for record in records}
    return [record for record in records if codes[arm(record)] == record.get("source")]


def jobs_of(
    scripts: Mapping[str, str | tuple[str, ...]],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    flags: Mapping[str, Sequence[str]],
    imports: Sequence[str] = (),
) -> Iterator[Job]:
    """Every arm with every seed in every environment; seed by seed, so that a stopped panel is still paired.

    Args:
        scripts: environment -> its training script.
        arms: the methods.
        seeds: of the runs.
        flags: environment -> further flags.
        imports: modules or files of methods.
    """
    for environment, script in scripts.items():
        for seed in seeds:
            for arm in arms:
                yield Job(environment, script, arm, seed, tuple(flags.get(environment, ())), tuple(imports))


def _frozen(record: Mapping[str, Any]) -> str:
    names = ("environment", "method", "seed", "credit", "options", "flags")
    return json.dumps([*(record[name] for name in names), *([record["source"]] if "source" in record else [])])


def _safe(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in label)
