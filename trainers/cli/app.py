"""The command ``turncredit``: which of its parts was asked for. Nothing heavy is loaded before flags are checked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..launch.benchmark import EMBEDDED_SETTINGS, SHIPPED, Benchmark, get_benchmark, list_benchmarks
from ..launch.flags import make_compare_parser, make_parser
from ..launch.imports import import_methods
from ..launch.known import advice
from ..launch.parser import Parser, read_options
from ..launch.start import main as run
from .doctor import doctor, library_version

USAGE = """usage: turncredit COMMAND [flags]

Turn-level credit for multi-turn language-model agents.

commands:
  train NAME    train a policy, by default the embedded one; NAME is one of
                  {names}
                or is registered by a module that --import names
  eval NAME     evaluate a policy, a checkpoint, or with --resume the newest checkpoint of a run
  compare NAME  train several methods with several seeds and compare them
  doctor        what is installed, found and missing

turncredit COMMAND --help lists the flags of a command, turncredit train NAME --help those of a benchmark too.
"""
COMMANDS = ("train", "eval", "compare", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the console script ``turncredit``.

    Args:
        argv: its words; None is those of the process.

    Returns:
        The exit status.

    Raises:
        SystemExit: the words are wrong, or the run ended early; its text says why.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words else "--help"
    if command in ("-h", "--help", "help"):
        print(USAGE.format(names=", ".join(SHIPPED)), end="")
        return 0
    if command == "--version":
        print(f"turncredit {library_version()}")
        return 0
    if command not in COMMANDS:
        return _wrong(f"there is no command {command!r}; {advice(command, COMMANDS)}")
    if command == "doctor":
        Parser(prog="turncredit doctor", description="What is installed, found and missing.").parse_args(words)
        return doctor(lambda text: print(text, flush=True))
    return _compare(words) if command == "compare" else _play(command, words)


def _play(command: str, words: list[str]) -> int:
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is None and {"-h", "--help"} & set(words):
        make_parser(_about(command, None), prog=f"turncredit {command} NAME").parse_args(words)
    if name is None:
        return _wrong(f"{command} must be given a name first, one of {', '.join(list_benchmarks())}")
    if name not in list_benchmarks():
        import_methods(_imports(words))
    try:
        benchmark = get_benchmark(name)
    except ValueError:
        known = list_benchmarks()
        fix = advice(name, known, f"known are {', '.join(known)}; --import the module that registers another one")
        return _wrong(f"{command}: there is no {name!r}; {fix}")
    parser = make_parser(_about(command, benchmark), prog=f"turncredit {command} {name}")
    benchmark.add_flags(parser)
    words = [*(["--eval-only"] if command == "eval" else []), *words]
    run(name, benchmark.make_suite, benchmark.settings, parser=parser, embedded=benchmark.embedded, words=words)
    return 0


def _compare(words: list[str]) -> int:
    places = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    import_methods(_imports(words[places:]))
    names = ["--environments", *words[:places]] if places else []
    about = "Methods by seeds: what is missing is run, then tables are printed and curves are plotted."
    args = make_compare_parser(about, prog="turncredit compare NAME ..").parse_args([*names, *words[places:]])
    from ..launch.comparison import compare

    compare(args)
    return 0


def _imports(words: Sequence[str]) -> list[str]:
    """Modules that a command line, or its file, wants imported; other flags are not looked at."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--import", dest="imports", action="append", default=[])
    parser.add_argument("--config")
    args = parser.parse_known_args(words)[0]
    of_file = read_options(args.config).get("import", []) if args.config else []
    return [*([of_file] if isinstance(of_file, str) else of_file), *args.imports]


def _about(command: str, benchmark: Benchmark | None) -> str:
    verb = {"train": "Train a policy", "eval": "Evaluate a policy, without and with privileged context"}[command]
    if benchmark is None:
        return f"{verb} on NAME: {', '.join(list_benchmarks())}. Their own flags: turncredit {command} NAME --help"
    lines = [f"{verb}: {benchmark.name}{benchmark.about and f', {benchmark.about}'}."]
    if benchmark.embedded is not None:
        settings = {name: value for name, value in EMBEDDED_SETTINGS.items() if name != "method_options"}
        said = ", ".join(f"{name} {value:g}" for name, value in settings.items())
        lines.append(f"\nWithout --model the embedded policy is used, with settings of its own:\n{said}.")
    return "\n".join(lines)


def _wrong(message: str) -> int:
    print(f"turncredit: {message}", file=sys.stderr)
    return 2
