"""Flags of a training script, and the configuration that they and a file of options make."""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import GRPOConfig, flat_options
from ..methods import get_method, list_methods
from ..methods.tryout import try_options


def check_method(config: GRPOConfig) -> None:
    """Raise unless the run's method exists and takes its options; needs no model and no games."""
    try_options(get_method(config.credit, **config.credit_options).credit_method, config.num_generations)


def make_parser(description: str | None = None) -> argparse.ArgumentParser:
    """Flags of every training script; ``--set`` reaches every option of `GRPOConfig`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help="model name, folder or checkpoint of a run; without it the embedded policy is trained"
    )
    parser.add_argument("--data", help="data folder; without it tasks are generated")
    parser.add_argument("--credit", help="method by name")
    parser.add_argument("--credit-option", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="methods of one's own, or FILE.py",
    )
    parser.add_argument("--max-steps", type=int, help="updates")
    parser.add_argument("--output-dir", help="metrics, completions, trajectories, checkpoints, learning curve")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other option, repeatable")
    parser.add_argument("--config", help="JSON file of options; flags win over it")
    parser.add_argument("--eval-only", action="store_true", help="evaluate with and without privileged context")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="CHECKPOINT",
        help="continue from the newest checkpoint in the output folder, or from this one; with --eval-only evaluate it",
    )
    parser.add_argument("--mixed-precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--attn-implementation", help="sdpa, flash_attention_2 or eager")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--lora-rank", type=int, help="train a LoRA adapter of this rank (needs turncredit[lora])")
    parser.add_argument("--lora-alpha", type=int, help="its scale; twice the rank by default")
    parser.add_argument("--lora-targets", default="all-linear", help="names of modules with commas, or all-linear")
    parser.add_argument(
        "--allow-changed-config", action="store_true", help="with --resume: go on although options differ"
    )
    return parser


def import_methods(modules: Iterable[str]) -> None:
    """Import modules, or files that end in ``.py``, so that the methods they register are there by name.

    Raises:
        SystemExit: there is no such module or file; what one raises itself is not touched.
    """
    for module in modules:
        path = Path(module)
        if path.suffix != ".py":
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # what it imports itself
                raise SystemExit(
                    f"--import: {module} must be a module that Python finds; give FILE.py, or set PYTHONPATH"
                ) from None
            continue
        if not path.is_file():
            raise SystemExit(f"--import: {module} must be a file, but there is none; give its path")
        if path.stem in sys.modules:  # taking its place would break whoever imports it
            raise SystemExit(f"--import: {module} must not be named like a module that is loaded; rename the file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # as an import would, for dataclasses and pickle
        spec.loader.exec_module(sys.modules[path.stem])


def import_own(modules: Sequence[str]) -> dict[str, str]:
    """`import_methods`, and what they brought: names of new methods -> digest of the imported code.

    Raises:
        SystemExit: see `import_methods`.
    """
    known = set(list_methods())
    import_methods(modules)
    names = [Path(module).stem if module.endswith(".py") else module for module in modules]
    files = [getattr(sys.modules[name], "__file__", None) for name in names]
    code = b"".join(Path(file).read_bytes() for file in files if file)
    return dict.fromkeys(sorted(set(list_methods()) - known), hashlib.sha256(code).hexdigest()[:12])


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the user asked for: the file of ``--config``, then flags; options may be grouped or not.

    Raises:
        SystemExit: the file holds no options, or a flag is no ``NAME=VALUE``.
    """
    options: dict[str, Any] = {}
    if args.config:
        try:
            options = json.loads(Path(args.config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"--config: {args.config} must be a JSON file of options ({error})") from None
        if not isinstance(options, dict):
            raise SystemExit(f"--config: {args.config} must hold one object of options")
        options = flat_options(options)
    options |= _pairs(args.set, "--set")
    for name in ("credit", "max_steps", "output_dir", "seed"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    if args.credit_option:
        options["credit_options"] = _pairs(args.credit_option, "--credit-option")
    return options


def make_config(args: argparse.Namespace, defaults: Mapping[str, Any]) -> GRPOConfig:
    """Defaults, then what the user asked for, method and its options included.

    Args:
        args: the flags.
        defaults: options of `GRPOConfig`, and under ``method_options`` values for the methods that take them.

    Raises:
        SystemExit: an option or a method is unknown, or a value is out of range.
    """
    options = {**defaults, **given_options(args)}
    wished = options.pop("method_options", {})
    try:
        config = GRPOConfig(**options)
        takes = get_method(config.credit).options
        own = {name: value for name, value in wished.items() if name in takes}
        config.credit_options = {**own, **config.credit_options}
        check_method(config)
    except (TypeError, ValueError) as error:
        raise SystemExit(str(error)) from None
    return config


def _pairs(items: list[str], flag: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        name, found, text = item.partition("=")
        if not found:
            raise SystemExit(f"{flag}: expected NAME=VALUE, got {item!r}")
        values[name.strip().replace("-", "_")] = _value(text)
    return values


def _value(text: str) -> Any:
    """A value as Python or as JSON writes it (true, false, null); anything else is text."""
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text.strip())
    return text
