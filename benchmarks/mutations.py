"""Break the library on purpose, one line at a time, and name the test that notices.

    python benchmarks/mutations.py                     # the credit core; prints its table of docs/mutations.md
    python benchmarks/mutations.py trainers            # another area: a module of benchmarks/mutation_lists
    python benchmarks/mutations.py credit StepOPSD     # only mutations whose description or file holds a word

A list names files of one folder of the package; each mutation is (file, what stands there, what replaces it, what that
breaks) and may end with the tests that must notice instead of the area's. Every mutation is made in a temporary copy of
the folder and of the tests; the working tree is never written to. The exit status is 1 if a mutation survives, or if
its line is no longer in the code.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
import accelerate  # noqa: F401  (imported once, before the forks)
import torch  # noqa: F401
import transformers  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("credit", "rollout", "trainers", "envs", "examples")
LIMIT = 600.0  # seconds


def copy(target: Path, folder: str) -> Path:
    """The package and its tests in ``target``, one folder as a copy; returns that folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", target / "tests", ignore=ignore)
    for name in PACKAGES:
        if name == folder:
            shutil.copytree(ROOT / name, target / "turncredit" / name, ignore=ignore)
        else:
            (target / "turncredit").mkdir(exist_ok=True, parents=True)
            (target / "turncredit" / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", target)
    shutil.copytree(ROOT / "docs", target / "docs", ignore=shutil.ignore_patterns("*.png"))
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (target.parent / "shared").symlink_to(shared)
    return target / "turncredit" / folder


def run(target: Path, folder: str, tests: tuple[str, ...]) -> str | None:
    """The first test that fails in the copy, or None; in a fork, which has torch and transformers imported already."""
    log = target / "log"
    child = os.fork()
    if child == 0:
        try:
            code = _pytest(target, folder, tests, log)
        except BaseException:
            traceback.print_exc()
            code = 99
        os._exit(code)
    deadline = time.monotonic() + LIMIT
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "no end within ten minutes"
        time.sleep(0.05)
    if os.waitstatus_to_exitcode(ended[1]) == 0:
        return None
    output = log.read_text(errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
    if failed is None:
        raise RuntimeError(f"run: the tests must start in the copy, got\n{output[-1000:]}")
    return re.sub(r"tests/\w+/|\[.*", "", failed[1])


def _pytest(target: Path, folder: str, tests: tuple[str, ...], log: Path) -> int:
    """In the child: the tests on the copy, output to ``log``."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(target)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), str(target / "tests")])  # for processes that tests start
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.path[:0] = [str(target)]
    module = importlib.import_module(f"turncredit.{folder}")
    if not str(module.__file__).startswith(str(target)):
        raise RuntimeError(f"run: turncredit must come from the copy, got {module.__file__}")
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE", "-m", "not slow"]
    return int(pytest.main([*options, *(f"tests/{name}" for name in tests)]))


def chosen(area: ModuleType, words: list[str]) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """The area's mutations that hold one of the words, each with the tests that must notice."""
    for name, old, new, description, *tests in area.MUTATIONS:
        if not words or any(word in description or word in name for word in words):
            yield name, old, new, description, tuple(tests) or area.TESTS


def main() -> int:
    words = sys.argv[1:]
    known = sorted(path.stem for path in (Path(__file__).parent / "mutation_lists").glob("[a-z]*.py"))
    area = importlib.import_module(f"mutation_lists.{words.pop(0) if words and words[0] in known else 'credit'}")
    mutations = list(chosen(area, words))
    if not mutations:
        raise SystemExit(f"mutations.py: words must stand in a mutation, got {words}; areas are {known}")
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "copy"
        files = copy(target, area.FOLDER)
        every = tuple(sorted({test for *_, tests in mutations for test in tests}))
        if (broken := run(target, area.FOLDER, every)) is not None:
            raise RuntimeError(f"main: the tests must pass before anything is broken, got a failure of {broken}")
        print("| file | broken | caught by |\n|---|---|---|", flush=True)
        for name, old, new, description, tests in mutations:
            path = files / f"{name}.py"
            text = path.read_text()
            if text.count(old) != 1:
                verdict = f"the line is there {text.count(old)} times"
            else:
                path.write_text(text.replace(old, new))
                verdict = run(target, area.FOLDER, tests)
                path.write_text(text)
                verdict = "**survived**" if verdict is None else f"`{verdict}`"
            lost += not verdict.startswith("`")
            print(f"| `{name}` | {description} | {verdict} |", flush=True)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
