"""What the command line can train on, by name: a suite, its settings, its flags and the policy that comes with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .known import advice

Settings = Mapping[str, Any] | Callable[[argparse.Namespace], Mapping[str, Any]]

EMBEDDED_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "max_steps": 20,
        "num_tasks": 8,
        "num_generations": 8,
        "learning_rate": 5e-4,
        "beta": 0.0,
        "entropy_coef": 0.0,
        "num_minibatches": 2,
        "method_options": {"invalid_penalty": 0.0, "encoder": "hashing"},
        "eval_steps": 5,
        "save_steps": 0,
    }
)
"""Settings of a policy of a million parameters: small numbers, a large step, no KL and no penalty."""

NO_POLICY = "the embedded policies lie in a checkout's examples/assets, which is not here; name a model, or go there"

SHIPPED = ("alfworld", "webshop", "search_qa")
"""Names of the library's own benchmarks."""


def _no_flags(parser: argparse.ArgumentParser) -> None:
    """There are none."""


@dataclass(frozen=True)
class Benchmark:
    """Something to train on.

    Args:
        name: on the command line; runs are kept in ``outputs/NAME``.
        make_suite: suite of the parsed flags, see `main`.
        settings: options that differ from `GRPOConfig`'s, or a function of the flags that returns them, see `main`.
        add_flags: adds flags of its own to a parser.
        about: a line for ``--help``.
        panel_flag: the flag that says how many held-out tasks there are, where it has one.
        extra: the extra of the installation that it needs; empty for none.
        modules: the modules that the extra brings.
        embedded: folder of the policy that is trained without ``--model``; None asks for a model.
    """

    name: str
    make_suite: Callable[[argparse.Namespace], Any]
    settings: Settings = field(default_factory=dict)
    add_flags: Callable[[argparse.ArgumentParser], None] = _no_flags
    about: str = ""
    panel_flag: str = "--num-eval-tasks"
    extra: str = ""
    modules: tuple[str, ...] = ()
    embedded: Path | None = None

    def settings_for(self, args: argparse.Namespace) -> dict[str, Any]:
        """Its settings with those flags."""
        return dict(self.settings(args) if callable(self.settings) else self.settings)


_BENCHMARKS: dict[str, Benchmark] = {}


def register_benchmark(benchmark: Benchmark) -> Benchmark:
    """Make a benchmark known by its name, for ``turncredit train NAME --import MODULE``.

    Raises:
        ValueError: the name is that of another one.
    """
    name = benchmark.name
    if name in SHIPPED or _BENCHMARKS.get(name, benchmark) != benchmark:
        raise ValueError(f"register_benchmark: name must be new, got {name!r}; choose another name")
    _BENCHMARKS[name] = benchmark
    return benchmark


def list_benchmarks() -> list[str]:
    """Names of the library's benchmarks and of those that were registered."""
    return [*SHIPPED, *sorted(_BENCHMARKS)]


def get_benchmark(name: str) -> Benchmark:
    """The benchmark of that name.

    Raises:
        ValueError: there is none.
    """
    known = list_benchmarks()
    if name not in known:
        raise ValueError(
            f"get_benchmark: name must be one of {', '.join(known)}, got {name!r}; "
            + advice(name, known, "pick one of them, or --import the module that registers it")
        )
    if name in SHIPPED:
        return import_module(f".suites.{name}", __package__).BENCHMARK
    return _BENCHMARKS[name]


def embedded_policy(name: str) -> Path | None:
    """Folder of a shipped policy of a million parameters: in the checkout that this file, or the user, is in, or None.

    They are not in wheels.
    """
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    folders = [place / "examples" / "assets" / f"{name}_tiny" for place in places]
    return next((folder for folder in folders if folder.is_dir()), None)
