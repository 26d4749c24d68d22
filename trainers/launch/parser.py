"""A parser of flags that reads a file of options too and answers a typo before anything is loaded."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .known import advice, flat, is_option, known_methods, known_options

OWN_FLAGS = ("credit", "max_steps", "output_dir", "seed")
"""Options whose flags stand first; `argparse` keeps them by these names, all others as ``option_NAME``."""


class Parser(argparse.ArgumentParser):
    """Reads ``--config`` too, takes ``--like_this`` for ``--like-this``, and asks "did you mean" of what it does not
    know. ``given`` of the result holds the names of the flags that were typed, ``file_options`` the file's options."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, rest = self.parse_known_args(args, namespace)
        flags = [word.partition("=")[0] for word in rest if word.startswith("-")]
        if flags:
            self.error(f"there is no flag {flags[0]}; {advice(flags[0], self._flags(), 'see --help')}")
        if rest:
            self.error(f"there is nothing that {rest[0]!r} could be; see --help")
        check_names(parsed)
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        file = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        file.add_argument("--config")
        path = file.parse_known_args(words)[0].config if "--config" in self._flags() else None
        options, more = self._of_file(path) if path else ({}, [])
        parsed, rest = super().parse_known_args([*more, *words], namespace)
        heads = {word.partition("=")[0] for word in words}
        parsed.given = {action.dest for action in self._actions if heads & set(action.option_strings)}
        parsed.file_options = options
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """One line: the flags are too many to list them with every mistake."""
        self.exit(2, f"{self.prog}: {message}\n")

    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _of_file(self, path: str) -> tuple[dict[str, Any], list[str]]:
        """A file's options of `GRPOConfig`, and its other entries as the flags that they are."""
        entries = flat(read_options(path))
        own = {action.dest: action for action in self._actions if not action.dest.startswith("option_")}
        named = {
            flag.lstrip("-").replace("-", "_"): action for action in own.values() for flag in action.option_strings
        }
        fields = {option.name for option in known_options()}
        words: list[str] = []
        options: dict[str, Any] = {}
        for name, value in ((str(name).replace("-", "_"), value) for name, value in entries.items()):
            if name in named and name not in fields and name not in ("config", "help"):
                words += _words(named[name], value)
            elif is_option(name):
                options[name] = value
            else:
                known = [*named, *fields]
                raise SystemExit(f"--config: {path} must hold known options, got {name!r}; {advice(name, known)}")
        return options, words


def check_names(args: argparse.Namespace) -> None:
    """Raise unless options and method are known by name; values are looked at when the configuration is made.

    Raises:
        SystemExit: one is not.
    """
    for name in pairs(args.set, "--set") if hasattr(args, "set") else ():
        if not is_option(name):
            known = [option.name for option in known_options()]
            raise SystemExit(f"--set: options must be known, got {name!r}; {advice(name, known)}")
    if getattr(args, "imports", None):
        return
    for flag, credit in _methods(args):
        if credit not in (known := known_methods()):
            raise SystemExit(
                f"{flag}: name must be one of {', '.join(known)}, got {credit!r}; "
                + advice(credit, known, "pick one of them, or --import the module that registers it")
            )


def _methods(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Names of methods in a command line, each with its flag; of a comparison, without labels and options."""
    if hasattr(args, "methods"):
        heads = [text.partition(":")[0] for text in args.methods]
        return [("--methods", head.rpartition("=")[2]) for head in heads if head]
    credit = {**args.file_options, **typed_options(args)}.get("credit") if hasattr(args, "credit") else None
    return [("--credit", credit)] if isinstance(credit, str) else []


def typed_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags, and ``--set``, say of options; a flag of an option's own wins over ``--set``.

    Raises:
        SystemExit: a flag is no ``NAME=VALUE``.
    """
    first = {name: getattr(args, name, None) for name in OWN_FLAGS}
    own = {name.removeprefix("option_"): value for name, value in vars(args).items() if name.startswith("option_")}
    return {**pairs(args.set, "--set"), **own, **{name: value for name, value in first.items() if value is not None}}


def read_options(path: str) -> dict[str, Any]:
    """The mapping in a file of options, YAML by its name (``.yaml``, ``.yml``) or JSON.

    Raises:
        SystemExit: there is no such file, or no mapping in it.
    """
    yaml = Path(path).suffix in (".yaml", ".yml")
    try:
        text = Path(path).read_text(encoding="utf-8")
        options = _yaml(text) if yaml else json.loads(text)
    except (OSError, ValueError) as error:
        kind = "YAML" if yaml else "JSON"
        raise SystemExit(f"--config: {path} must be a {kind} file of options ({error})") from None
    if not isinstance(options, dict):
        raise SystemExit(f"--config: {path} must hold one object of options")
    return options


def pairs(items: Iterable[str], flag: str) -> dict[str, Any]:
    """``NAME=VALUE`` words as names and values.

    Raises:
        SystemExit: one has no equals sign.
    """
    values: dict[str, Any] = {}
    for item in items:
        name, found, text = item.partition("=")
        if not found:
            raise SystemExit(f"{flag}: expected NAME=VALUE, got {item!r}")
        values[name.strip().replace("-", "_")] = value_of(text)
    return values


def value_of(text: str) -> Any:
    """A value as Python or as JSON writes it (true, false, null); anything else is text."""
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text.strip())
    return text


def _dashed(word: str) -> str:
    """``--learning_rate=1`` as ``--learning-rate=1``."""
    if not word.startswith("--"):
        return word
    head, found, value = word.partition("=")
    return head.replace("_", "-") + found + value


def _words(action: argparse.Action, value: Any) -> list[str]:
    """An entry of a file as one would type it."""
    flag = action.option_strings[-1]
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, dict):
        value = [f"{name}={item}" for name, item in value.items()]
    values = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    return [flag, *values] if action.nargs == "+" else [word for item in values for word in (flag, item)]


def _yaml(text: str) -> Any:
    """Of YAML, with ``1e-6`` as the number that it is in YAML 1.2; PyYAML reads text."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's, whose table of patterns is copied by the first addition."""

    number = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
