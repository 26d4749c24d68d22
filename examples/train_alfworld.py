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

import common
from accelerate import Accelerator  # pyright: ignore[reportAttributeAccessIssue]
from policies import resolve_policy
from tiny_policy.prompt import compact_messages, trained_hint

from turncredit.envs import TaskSuite
from turncredit.envs.alfworld import AlfWorldSuite, generate_games

EMBEDDED = Path(__file__).parent / "assets" / "alfworld_tiny"

# a 3B model on the official games: the papers' settings (docs/equations.md#policy-objective)
OFFICIAL = {"output_dir": "outputs/alfworld", "credit": "agent_opsd"}

# a named model on generated games: the same, for less long
NAMED = OFFICIAL | {"max_steps": 20, "num_tasks": 8}

# the embedded policy: small numbers, a large step; prompt and response fit into its 512 positions
GENERATED = common.EMBEDDED_SETTINGS | {
    "output_dir": "outputs/alfworld",
    "credit": "agent_opsd",
    "max_completion_length": 20,
    "max_prompt_length": 492,
    "num_eval_tasks": 64,
}


def generated_suite(args: argparse.Namespace, accelerator: Accelerator) -> TaskSuite:
    """Small houses, generated once into a folder that later runs reuse."""
    folder = Path(args.games_dir)
    with accelerator.local_main_process_first():
        for split, count in (("train", args.num_games), ("eval", GENERATED["num_eval_tasks"])):
            if len(list((folder / "json_2.1.1" / split).glob("*/*/game.tw-pddl"))) < count:
                generate_games(folder, count, seed=0, split=split, house_size="small", num_workers=2)
    return AlfWorldSuite(
        folder,
        splits={"train": "train", "eval": "eval"},
        privileged=_privileged(args),
        max_turns=args.max_turns or 14,
        build_messages=compact_messages if common.is_embedded(args) else None,
        build_hint=trained_hint if common.is_embedded(args) else None,
    )


def official_suite(args: argparse.Namespace) -> TaskSuite:
    """The official games: trained on `train`, evaluated on `valid_unseen` (or --eval-split)."""
    return AlfWorldSuite(
        args.data,
        splits={"train": "train", "eval": args.eval_split},
        privileged=_privileged(args),
        max_turns=args.max_turns or 50,
        limits={"eval": args.num_eval_games} if args.num_eval_games else None,
        build_messages=compact_messages if common.is_embedded(args) else None,
        build_hint=trained_hint if common.is_embedded(args) else None,
    )


def _privileged(args: argparse.Namespace) -> Any:
    return getattr(args, "privileged", None) or ("hint" if common.is_embedded(args) else "skills")


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--max-turns", type=int, help="turns per episode: 14 on generated games, 50 on official ones")
    parser.add_argument(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    parser.add_argument("--eval-split", default="valid_unseen", help="official split of the evaluation panel")
    parser.add_argument("--num-eval-games", type=int, help="a balanced panel of so many official games")
    parser.add_argument("--games-dir", default="outputs/alfworld_games", help="folder of generated games")
    parser.add_argument("--num-games", type=int, default=192, help="generated training games")
    args = parser.parse_args()
    output_dir = common.given_options(args).get("output_dir", OFFICIAL["output_dir"])
    resolve_policy(args, EMBEDDED, "alfworld", output_dir)
    settings = GENERATED if common.is_embedded(args) else NAMED if args.data is None else OFFICIAL
    config = common.make_config(args, settings)
    accelerator = common.make_accelerator(args)
    suite = generated_suite(args, accelerator) if args.data is None else official_suite(args)
    common.run(args, suite, config, EMBEDDED, accelerator)


if __name__ == "__main__":
    main()
