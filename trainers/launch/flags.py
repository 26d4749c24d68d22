"""The flags of every training script, one for every option of `GRPOConfig`; loads neither torch nor the library."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .benchmark import list_benchmarks
from .known import Option, known_options
from .parser import OWN_FLAGS, Parser, value_of

PANEL = (
    "grpo", "dr_grpo", "faded_grpo", "gigpo", "rlsd", "step_opsd", "agent_opsd", "agent_opsd_calibrated", "align_opsd",
    "align_opsd_turn", "sdar", "posterior_anchors", "posterior",
)  # fmt: skip
"""Methods that a comparison runs where none are named."""

_TITLES = {
    "": "further options of the run",
    "sampling": "sampling",
    "environments": "environments",
    "objective": "objective",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "saving": "saving",
}
_LEFT_OUT = (*OWN_FLAGS, "credit_options")  # --credit-option is the flag of these
_TRAINING_ONLY = ("max_steps", "seeds", "lora_rank", "lora_alpha", "lora_targets", "gradient_checkpointing")
_NEEDS = {"allow_changed_config": "resume", "lora_alpha": "lora_rank", "lora_targets": "lora_rank"}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lines of one width everywhere."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=110)


def make_parser(description: str | None = None, *, prog: str | None = None) -> Parser:
    """Flags of every training script: those of the script, then one for every option of `GRPOConfig`."""
    parser = Parser(prog=prog, description=description, usage="%(prog)s [flags]", formatter_class=_Formatter)
    add = parser.add_argument
    add("--model", help="model name, folder or checkpoint of a run; without it the embedded policy is trained")
    add("--data", help="data folder; without it tasks are generated")
    add("--credit", help="method by name (default: grpo; the benchmarks': agent_opsd)")
    add("--credit-option", action="append", default=[], metavar="NAME=VALUE", help="of the method, repeatable")
    add(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of one's own, or FILE.py",
    )
    add("--max-steps", type=int, help="updates (default: 150; 20 on generated tasks)")
    add("--output-dir", help="metrics, completions, trajectories, checkpoints, learning curve (default: outputs/NAME)")
    add("--seed", type=int, help="of sampling and of the task order (default: 0)")
    add("--seeds", type=int, nargs="+", metavar="SEED", help="a run with each, in folders of their own, and their mean")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any option by its name, repeatable")
    add("--config", metavar="FILE", help="YAML or JSON file of options and flags; what is typed wins over it")
    add("--eval-only", action="store_true", help="evaluate with and without privileged context")
    add(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="CHECKPOINT",
        help="continue from the newest checkpoint in the output folder, or from this one; with --eval-only evaluate it",
    )
    add("--mixed-precision", choices=("no", "bf16"), default="no")
    add("--attn-implementation", help="sdpa, flash_attention_2 or eager")
    add("--gradient-checkpointing", action="store_true")
    add("--lora-rank", type=int, help="train a LoRA adapter of this rank (needs turncredit[lora])")
    add("--lora-alpha", type=int, help="its scale; twice the rank by default")
    add("--lora-targets", default="all-linear", help="names of modules with commas, or all-linear")
    add("--allow-changed-config", action="store_true", help="with --resume: go on although options differ")
    groups = {name: parser.add_argument_group(title) for name, title in _TITLES.items()}
    for option in known_options():
        if option.name not in _LEFT_OUT:
            _add_option(groups[option.group], option)
    return parser


def make_compare_parser(description: str | None = None, *, prog: str | None = None) -> Parser:
    """Flags of a comparison of methods in training."""
    parser = Parser(prog=prog, description=description, usage="%(prog)s [flags]", formatter_class=_Formatter)
    add = parser.add_argument
    add("--methods", nargs="+", default=list(PANEL), help="NAME, or LABEL=NAME:OPTION=VALUE,..")
    add("--environments", nargs="+", choices=list_benchmarks(), default=["alfworld"], help="(default: alfworld)")
    add("--seeds", type=_positive, default=5, help="runs of a method (default: 5)")
    add("--first-seed", type=int, default=0, help="seeds are this and those after it (default: 0)")
    add("--num-eval", type=_positive, default=256, help="held-out tasks of the evaluation (default: 256)")
    add("--import", dest="imports", action="append", default=[], metavar="MODULE", help="of methods, or FILE.py")
    add("--flags", nargs=argparse.REMAINDER, default=[], help="last: flags for every run")
    add("--baseline", default="grpo", help="the method to compare with (default: grpo)")
    add("--workers", type=_positive, default=2, help="runs side by side (default: 2)")
    add("--threads", type=_positive, default=1, help="threads of each (default: 1)")
    add("--results", nargs="+", type=Path, help="only print and plot these files of results")
    add("--output", type=Path, default=Path("outputs/compare_training"), help="(default: outputs/compare_training)")
    return parser


def refuse_idle(args: argparse.Namespace) -> None:
    """Raise where a flag was typed that would change nothing.

    Raises:
        ValueError: names the flag and what it goes with.
    """
    given = getattr(args, "given", set())
    training = {f"option_{o.name}" for o in known_options() if o.group in ("objective", "optimizer", "saving")}
    if args.eval_only and (idle := sorted(given & {*training, *_TRAINING_ONLY})):
        raise ValueError(f"{_flag(idle[0])} must be left out in an evaluation: nothing is trained")
    if args.eval_only and args.resume and "model" in given:
        raise ValueError("--model and --resume must not be given together in an evaluation; leave one out")
    for name, other in _NEEDS.items():
        if name in given and getattr(args, other) in (None, False):
            raise ValueError(f"{_flag(name)} must be given with {_flag(other)}; it changes nothing without")
    if args.seeds and ("seed" in given or isinstance(args.resume, str)):
        other = "--seed" if "seed" in given else "--resume CHECKPOINT"
        raise ValueError(f"--seeds must not be given with {other}; leave one out")
    if args.seeds and len(set(args.seeds)) < len(args.seeds):
        raise ValueError(f"--seeds must be different, got {' '.join(map(str, args.seeds))}; a seed gives one run")


def refuse_given(args: argparse.Namespace, names: Iterable[str], rule: str) -> None:
    """Raise where one of the flags is given, typed or in the file, that a rule forbids.

    Raises:
        ValueError: ``--flag must rule``.
    """
    for name in names:
        if getattr(args, name, None) is not None:
            raise ValueError(f"--{name.replace('_', '-')} must {rule}; leave it out")


def _add_option(group: Any, option: Option) -> None:
    flag, kind = f"--{option.name.replace('_', '-')}", option.kind.removesuffix(" | None")
    default = option.default if not isinstance(option.default, tuple) else " ".join(option.default) or "none"
    text = f"{option.help} (default: {'none' if default is None else default})".replace("%", "%%")
    how: dict[str, Any] = {"dest": f"option_{option.name}", "default": argparse.SUPPRESS, "help": text}
    if kind == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **how)
    elif kind.startswith("tuple"):
        group.add_argument(flag, nargs="+", metavar="NAME", **how)
    else:
        read = {"int": int, "float": float, "str": str}.get(kind, value_of)
        how["metavar"] = {"int": "N", "float": "X", "str": "NAME"}.get(kind, "JSON")
        group.add_argument(flag, type=_or_none(read) if option.kind != kind else read, **how)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        return None if text.lower() in ("none", "null") else read(text)

    value.__name__ = getattr(read, "__name__", "value")  # argparse names it where it fails
    return value


def _flag(name: str) -> str:
    return f"--{name.removeprefix('option_').replace('_', '-')}"
