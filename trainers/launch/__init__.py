"""What a training script and the command line are made of: flags, configuration, model, run, report; see
docs/launching.md. Names load what they need when they are used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .benchmark import (
        EMBEDDED_SETTINGS,
        Benchmark,
        embedded_policy,
        get_benchmark,
        list_benchmarks,
        register_benchmark,
    )
    from .flags import make_parser
    from .options import check_method, given_options, import_methods, make_config
    from .policy import load_model, load_policy, resolve_policy
    from .report import plot_learning_curve
    from .run_curves import plot_runs
    from .script import make_accelerator, run
    from .start import main

__all__ = [
    "EMBEDDED_SETTINGS",
    "Benchmark",
    "check_method",
    "embedded_policy",
    "get_benchmark",
    "given_options",
    "import_methods",
    "list_benchmarks",
    "load_model",
    "load_policy",
    "main",
    "make_accelerator",
    "make_config",
    "make_parser",
    "plot_learning_curve",
    "plot_runs",
    "register_benchmark",
    "resolve_policy",
    "run",
]

_ROOMS = {
    "benchmark": (
        "EMBEDDED_SETTINGS",
        "Benchmark",
        "embedded_policy",
        "get_benchmark",
        "list_benchmarks",
        "register_benchmark",
    ),
    "flags": ("make_parser",),
    "options": ("check_method", "given_options", "import_methods", "make_config"),
    "policy": ("load_model", "load_policy", "resolve_policy"),
    "report": ("plot_learning_curve",),
    "run_curves": ("plot_runs",),
    "script": ("make_accelerator", "run"),
    "start": ("main",),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # flags are read before torch is loaded
        for room, names in _ROOMS.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(f".{room}", __name__), name)
        raise AttributeError(f"turncredit.trainers.launch has no attribute {name!r}")
