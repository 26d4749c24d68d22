"""Train an agent to play ALFWorld text games with turn-level credit.

Without arguments: games are generated, a policy of under a million parameters (examples/assets/alfworld_tiny, made by
examples/warm_start.py) is trained with AgentOPSD on two CPU cores, and success on held-out games is printed before and
after. Nothing is downloaded.

    python examples/train_alfworld.py
    python examples/train_alfworld.py --credit grpo --output-dir outputs/grpo
    python examples/train_alfworld.py --eval-only

With a model and the official games (ALFWORLD_DATA or --data), on as many processes as Accelerate starts:

    accelerate launch examples/train_alfworld.py --model Qwen/Qwen2.5-3B-Instruct --data "$ALFWORLD_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common
from accelerate import Accelerator  # pyright: ignore[reportAttributeAccessIssue]
from tiny_policy.prompt import compact_messages, trained_hint

from turncredit.envs import TaskSuite
from turncredit.envs.alfworld import AlfWorldSuite, generate_games

EMBEDDED = Path(__file__).parent / "assets" / "alfworld_tiny"

# a 3B model on the official games: the papers' settings (METHODS, section 5)
OFFICIAL = {"output_dir": "outputs/alfworld", "credit": "agent_opsd"}

# the embedded policy on generated games: small numbers, a large step
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
        privileged="hint",
        max_turns=args.max_turns or 14,
        build_messages=compact_messages if args.model is None else None,
        build_hint=trained_hint if args.model is None else None,
    )


def official_suite(args: argparse.Namespace) -> TaskSuite:
    """The official games: trained on `train`, evaluated on `valid_unseen` (or --eval-split)."""
    return AlfWorldSuite(
        args.data,
        splits={"train": "train", "eval": args.eval_split},
        privileged=args.privileged,
        max_turns=args.max_turns or 50,
        limits={"eval": args.num_eval_games} if args.num_eval_games else None,
    )


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--max-turns", type=int, help="turns per episode: 14 on generated games, 50 on official ones")
    parser.add_argument("--privileged", choices=("skills", "hint", "both", "none"), default="skills")
    parser.add_argument("--eval-split", default="valid_unseen", help="official split of the evaluation panel")
    parser.add_argument("--num-eval-games", type=int, help="a balanced panel of so many official games")
    parser.add_argument("--games-dir", default="outputs/alfworld_games", help="folder of generated games")
    parser.add_argument("--num-games", type=int, default=192, help="generated training games")
    args = parser.parse_args()
    config = common.make_config(args, GENERATED if args.data is None else OFFICIAL)
    accelerator = common.make_accelerator(args)
    suite = generated_suite(args, accelerator) if args.data is None else official_suite(args)
    common.run(args, suite, config, EMBEDDED, accelerator)


if __name__ == "__main__":
    main()
