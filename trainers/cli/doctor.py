"""What a computer has for turncredit: versions, devices, compilers, data, and what is missing for what."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..launch.benchmark import SHIPPED, embedded_policy
from ..launch.suites.alfworld import GAMES_DIR

CORE = (
    "torch", "transformers", "accelerate", "deepspeed", "numpy", "filelock", "datasets", "sentence-transformers",
    "wandb",
)  # fmt: skip
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {  # extra -> what it is for, its packages
    "alfworld": ("ALFWorld games", ("alfworld", "textworld")),
    "webshop": ("WebShop", ("bm25s", "PyStemmer")),
    "search": ("Search-QA", ("bm25s", "PyStemmer", "pyarrow")),
    "viz": ("learning curves and other pictures", ("matplotlib",)),
    "lora": ("--lora-rank, adapters", ("peft",)),
    "pandas": ("traces as tables", ("pandas",)),
    "trl": ("credit in TRL's trainer", ("trl",)),
}


def doctor(say: Callable[[str], None]) -> int:
    """Say what is there and what is missing for what.

    Args:
        say: called with every line.

    Returns:
        1 where a package is missing that the library needs, else 0.
    """
    missing = [name for name in CORE if _version(name) is None]
    for title, lines in (
        ("versions", _versions()),
        ("devices", _devices()),
        ("compilers", _compilers()),
        ("data", _data()),
        ("extras", _extras()),
    ):
        say(title)
        for line in lines:
            say(f"  {line}")
    if missing:
        say(f"missing, and needed: {', '.join(missing)}; run: pip install {' '.join(missing)}")
    return 1 if missing else 0


def library_version() -> str:
    """Of the installed library, or that it is used from a checkout."""
    return _version("turncredit") or "from a checkout, not installed"


def _versions() -> Iterator[str]:
    yield _row("turncredit", library_version())
    yield _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in CORE:
        yield _row(name, _version(name) or "MISSING")


def _devices() -> Iterator[str]:
    yield _row("cpu", f"{_usable_cores()} cores")
    if importlib.util.find_spec("torch") is None:
        yield "torch is missing: no other device can be used"
        return
    import torch

    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        yield _row(f"cuda:{index}", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.is_available():
        yield _row("cuda", "none; the embedded policies train on a CPU, larger models want a GPU")
    if torch.backends.mps.is_available():
        yield _row("mps", "available")


def _compilers() -> Iterator[str]:
    for name, purpose in (("cc", "torch.compile, DeepSpeed's own kernels"), ("nvcc", "DeepSpeed's CUDA kernels")):
        found = shutil.which(name) or (shutil.which("gcc") if name == "cc" else None)
        yield _row(name, "found" if found else f"none; needed for {purpose}, the library itself runs without")


def _data() -> Iterator[str]:
    for variable, purpose in (("ALFWORLD_DATA", "official ALFWorld games"), ("WEBSHOP_DATA", "official WebShop files")):
        folder = os.environ.get(variable)
        if not folder:
            said = f"not set: no {purpose}; generated ones are used"
        else:
            found = Path(folder).expanduser().is_dir()
            said = folder if found else f"{folder} is no folder; set it to the {purpose}, or unset it"
        yield _row(variable, said)
    games = Path(GAMES_DIR)
    count = sum(1 for _ in games.rglob("*.tw-pddl")) if games.is_dir() else 0
    yield _row("generated games", f"{count} in {GAMES_DIR}" if count else "none here; the first run makes them")
    found = [name for name in SHIPPED if embedded_policy(name) is not None]
    yield _row("embedded policies", ", ".join(found) or "none here: run in a checkout, or pass --model")


def _extras() -> Iterator[str]:
    for extra, (purpose, packages) in EXTRAS.items():
        absent = [name for name in packages if _version(name) is None]
        if absent:
            yield _row(extra, f'missing {", ".join(absent)} for {purpose}; run: pip install "turncredit[{extra}]"')
        else:
            yield _row(extra, f"{', '.join(f'{name} {_version(name)}' for name in packages)}: {purpose}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _row(name: str, text: str) -> str:
    return f"{name:<22}{text}"
