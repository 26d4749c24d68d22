"""Train a model to shop in WebShop with turn-level credit.

Without --data the shop is generated; a model has to be named, because there is no embedded policy for this benchmark.

    python examples/train_webshop.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 20
    python examples/train_webshop.py --model FOLDER --eval-only

With the official files (WEBSHOP_DATA or --data), on as many processes as Accelerate starts:

    accelerate launch examples/train_webshop.py --model Qwen/Qwen2.5-3B-Instruct --data "$WEBSHOP_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from turncredit.envs.webshop import ShopConfig, WebShopSuite

# the papers' settings (METHODS, section 5)
OFFICIAL = {"output_dir": "outputs/webshop", "credit": "agent_opsd", "max_prompt_length": 4096}
GENERATED = OFFICIAL | {"max_steps": 20, "num_tasks": 8}


def make_suite(args: argparse.Namespace) -> WebShopSuite:
    """The official shop where there is one, else the generated shop; its own eval split is the panel."""
    return WebShopSuite(
        ShopConfig(data=args.data, goals=args.goals),
        privileged=args.privileged,
        max_turns=args.max_turns,
        limits={"eval": args.num_eval_goals},
        reward=args.reward,
    )


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--goals", choices=("synthetic", "human"), default="synthetic")
    parser.add_argument("--reward", choices=("score", "success"), default="score")
    parser.add_argument("--privileged", choices=("skills", "hint", "both", "none"), default="skills")
    parser.add_argument("--max-turns", type=int, default=15)
    parser.add_argument("--num-eval-goals", type=int, default=64, help="the first so many goals of the eval split")
    args = parser.parse_args()
    if args.model is None:
        parser.error("--model must be given; any instruct model with a chat template will do")
    suite = make_suite(args)
    defaults = (GENERATED if suite.config.folder is None else OFFICIAL) | {"num_eval_tasks": args.num_eval_goals}
    common.run(args, suite, common.make_config(args, defaults), Path(args.model))


if __name__ == "__main__":
    main()
