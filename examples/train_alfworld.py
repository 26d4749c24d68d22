"""Train an agent to play ALFWorld text games with turn-level credit.

Without arguments: games are generated, a policy of under a million parameters (examples/assets/alfworld_tiny, made by
examples/warm_start.py) is trained with AgentOPSD on two CPU cores, and success on held-out games is printed before and
after. Nothing is downloaded.

    python examples/train_alfworld.py
    python examples/train_alfworld.py --credit grpo --output-dir outputs/grpo
    python examples/train_alfworld.py --eval-only
    python examples/train_alfworld.py --eval-only --resume

The last one evaluates the newest checkpoint of the output folder. A model of one's own on generated games gets the
papers' settings; the embedded policy keeps its own, and its compact prompts, on official games too.

With a model and the official games (ALFWORLD_DATA or --data), on as many processes as Accelerate starts:

    accelerate launch examples/train_alfworld.py --model Qwen/Qwen2.5-3B-Instruct --data "$ALFWORLD_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from turncredit.envs.alfworld import AlfWorldSuite
from turncredit.envs.alfworld.compact import BUDGETS, MAX_TURNS, compact_suite, generate_once
from turncredit.trainers.launch import EMBEDDED_SETTINGS, main, make_parser

EMBEDDED = Path(__file__).parent / "assets" / "alfworld_tiny"
NUM_EVAL_GAMES = 64


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy; or of the papers, for less long on generated games."""
    common = {"credit": "agent_opsd", "num_eval_tasks": args.num_eval_games or NUM_EVAL_GAMES}
    if args.embedded:
        return {**EMBEDDED_SETTINGS, **BUDGETS, **common}
    return common | ({"max_steps": 20, "num_tasks": 8} if args.data is None else {})


def make_suite(args: argparse.Namespace) -> AlfWorldSuite:
    """Small houses, generated once into a folder that later runs reuse; or the official games of --data."""
    generated = args.data is None
    limits = {"eval": args.num_eval_games} if args.num_eval_games else {}
    if generated:
        counts = {"train": args.num_games, "eval": args.num_eval_games or NUM_EVAL_GAMES}
        limits = generate_once(args.games_dir, counts)
    make = compact_suite if args.embedded else AlfWorldSuite
    return make(
        args.games_dir if generated else args.data,
        splits={"train": "train", "eval": "eval" if generated else args.eval_split},
        privileged=args.privileged or ("hint" if args.embedded else "skills"),
        max_turns=args.max_turns or (MAX_TURNS if generated else 50),
        limits=limits,
    )


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--max-turns", type=int, help="turns per episode: 14 on generated games, 50 on official ones")
    parser.add_argument(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    parser.add_argument("--eval-split", default="valid_unseen", help="official split of the evaluation panel")
    parser.add_argument("--num-eval-games", type=int, help="size of the panel: 64; balanced over the task types")
    parser.add_argument("--games-dir", default="outputs/alfworld_games", help="folder of generated games")
    parser.add_argument("--num-games", type=int, default=192, help="generated training games")
    main("alfworld", make_suite, settings, parser=parser, embedded=EMBEDDED)
