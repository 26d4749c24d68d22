"""The configuration that flags and a file of options make, and the modules of one's own that they name."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import GRPOConfig
from ..methods import get_method, list_methods
from ..methods.tryout import try_options
from .imports import import_methods
from .parser import pairs, typed_options


def check_method(config: GRPOConfig) -> None:
    """Raise unless the run's method exists and takes its options; needs no model and no games."""
    try_options(get_method(config.credit, **config.credit_options).credit_method, config.num_generations)


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
    """What the user asked for: the file of ``--config``, then flags.

    Raises:
        SystemExit: a flag is no ``NAME=VALUE``.
    """
    file: dict[str, Any] = getattr(args, "file_options", {})
    options = {**file, **typed_options(args)}
    if args.credit_option:
        of_file = file.get("credit_options") if options.get("credit") == file.get("credit") else None
        options["credit_options"] = {**(of_file or {}), **pairs(args.credit_option, "--credit-option")}
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
