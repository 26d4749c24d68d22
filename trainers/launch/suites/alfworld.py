"""ALFWorld to train on: generated games with the embedded policy or a model, or the official games with a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..benchmark import EMBEDDED_SETTINGS, Benchmark, embedded_policy
from ..flags import refuse_given

if TYPE_CHECKING:
    from ....envs.alfworld import AlfWorldSuite

NUM_EVAL_GAMES = 64
NUM_GAMES = 192
GAMES_DIR = "outputs/alfworld_games"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy; or of the papers, for less long on generated games."""
    from ....envs.alfworld.compact import BUDGETS

    if args.data is None:
        refuse_given(args, ["eval_split"], "be given with --data: generated games have one panel")
    else:
        refuse_given(args, ["games_dir", "num_games"], "be left out with --data: no games are generated")
    common = {"credit": "agent_opsd", "num_eval_tasks": args.num_eval_games or NUM_EVAL_GAMES}
    if args.embedded:
        return {**EMBEDDED_SETTINGS, **BUDGETS, **common}
    return common | ({"max_steps": 20, "num_tasks": 8} if args.data is None else {})


def make_suite(args: argparse.Namespace) -> AlfWorldSuite:
    """Small houses, generated once into a folder that later runs reuse; or the official games of --data."""
    from ....envs.alfworld import AlfWorldSuite
    from ....envs.alfworld.compact import MAX_TURNS, compact_suite, generate_once

    generated = args.data is None
    limits = {"eval": args.num_eval_games} if args.num_eval_games else {}
    if generated:
        counts = {"train": args.num_games or NUM_GAMES, "eval": args.num_eval_games or NUM_EVAL_GAMES}
        limits = generate_once(args.games_dir or GAMES_DIR, counts)
    make = compact_suite if args.embedded else AlfWorldSuite
    return make(
        (args.games_dir or GAMES_DIR) if generated else args.data,
        splits={"train": "train", "eval": "eval" if generated else args.eval_split or "valid_unseen"},
        privileged=args.privileged or ("hint" if args.embedded else "skills"),
        max_turns=args.max_turns or (MAX_TURNS if generated else 50),
        limits=limits,
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the benchmark's own."""
    add = parser.add_argument_group("alfworld").add_argument
    add("--max-turns", type=int, help="turns per episode: 14 on generated games, 50 on official ones")
    add(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    add("--eval-split", help="official split of the evaluation panel (default: valid_unseen)")
    add("--num-eval-games", type=int, help="size of the panel, balanced over the task types (default: 64)")
    add("--games-dir", help=f"folder of generated games (default: {GAMES_DIR})")
    add("--num-games", type=int, help=f"generated training games (default: {NUM_GAMES})")


BENCHMARK = Benchmark(
    "alfworld",
    make_suite,
    settings,
    add_flags,
    about="household text games, generated or official",
    panel_flag="--num-eval-games",
    extra="alfworld",
    modules=("alfworld", "textworld"),
    embedded=embedded_policy("alfworld"),
)
