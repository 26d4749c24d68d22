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
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("credit", "rollout", "trainers", "envs", "examples")
RUNNER = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path[:0] = [sys.argv[1]]
import importlib
module = importlib.import_module("turncredit." + sys.argv[2])
assert module.__file__.startswith(sys.argv[1]), module.__file__
import pytest
options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE", "-m", "not slow"]
sys.exit(pytest.main([*options, *sys.argv[3:]]))
"""


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
    """The first test that fails in the copy, or None."""
    command = [sys.executable, "-c", RUNNER, str(target), folder, *(f"tests/{name}" for name in tests)]
    path = os.pathsep.join([str(target), str(target / "tests")])  # for processes that tests start
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "no end within ten minutes"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    if failed is None:
        raise RuntimeError(f"run: the tests must start in the copy, got\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return re.sub(r"tests/\w+/|\[.*", "", failed[1])


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
