"""Where a training script begins: its flags are read before torch is loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from .benchmark import Settings
from .flags import make_parser

if TYPE_CHECKING:
    from ...envs import TaskSuite


def main(
    name: str,
    make_suite: Callable[[argparse.Namespace], TaskSuite],
    settings: Settings = MappingProxyType({}),
    *,
    parser: argparse.ArgumentParser | None = None,
    embedded: str | os.PathLike[str] | None = None,
    words: Sequence[str] | None = None,
) -> None:
    """Read the flags, make suite and model, and train or evaluate.

    Method and options are checked before `make_suite` is called or a model is loaded.

    Args:
        name: of the suite; the run's folder is ``outputs/NAME`` unless another one is asked for.
        make_suite: called with the parsed flags, first on one process of a machine and then on the others; that
            ``args.embedded`` holds says that the policy is the embedded one, trained further or not.
        settings: options that differ from `GRPOConfig`'s, or a function of the flags that returns them and raises a
            ValueError for flags that do not go together; flags and ``--config`` win over them.
        parser: of `make_parser`, with flags of one's own.
        embedded: folder of the policy that is trained without ``--model``; None asks for a model.
        words: the command line; None is that of the process.
    """
    parser = make_parser() if parser is None else parser
    args = parser.parse_args(words)
    from .script import start

    start(args, name, make_suite, settings, parser=parser, embedded=embedded)
