"""Train an agent to shop in WebShop with turn-level credit.

Without arguments: a shop is generated, a policy of under a million parameters (examples/assets/webshop_tiny, made by
examples/warm_start.py) is trained with AgentOPSD on two CPU cores, and success on held-out goals is printed before and
after. Nothing is downloaded.

    python examples/train_webshop.py
    python examples/train_webshop.py --credit grpo --output-dir outputs/webshop_grpo
    python examples/train_webshop.py --eval-only
    python examples/train_webshop.py --eval-only --resume

Any instruct model with a chat template, in the generated shop or, on as many processes as Accelerate starts, with the
official files (WEBSHOP_DATA or --data):

    python examples/train_webshop.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 20
    accelerate launch examples/train_webshop.py --model Qwen/Qwen2.5-3B-Instruct --data "$WEBSHOP_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from turncredit.envs.webshop import ShopConfig, WebShopSuite
from turncredit.envs.webshop.compact import BUDGETS, MAX_TURNS, compact_suite
from turncredit.trainers.launch import EMBEDDED_SETTINGS, main, make_parser

EMBEDDED = Path(__file__).parent / "assets" / "webshop_tiny"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy in the generated shop; or of the papers, for less long where the shop is generated."""
    common = {"credit": "agent_opsd", "num_eval_tasks": args.num_eval_goals}
    if args.embedded:
        if args.data or args.goals != "synthetic":
            raise ValueError(
                "--model must name another model with --data or --goals human: "
                "the embedded policy knows the generated shop"
            )
        return {**EMBEDDED_SETTINGS, **BUDGETS, **common, "num_workers": 0}
    short = {} if ShopConfig(data=args.data).folder else {"max_steps": 20, "num_tasks": 8}
    return common | {"max_prompt_length": 4096} | short


def make_suite(args: argparse.Namespace) -> WebShopSuite:
    """The generated shop for the embedded policy; with a model the official shop where there is one."""
    options = {"limits": {"eval": args.num_eval_goals}, "reward": args.reward}
    if args.embedded:
        return compact_suite(privileged=args.privileged or "hint", max_turns=args.max_turns or MAX_TURNS, **options)
    shop = ShopConfig(data=args.data, goals=args.goals)
    return WebShopSuite(shop, privileged=args.privileged or "skills", max_turns=args.max_turns or 15, **options)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--goals", choices=("synthetic", "human"), default="synthetic")
    parser.add_argument("--reward", choices=("score", "success"), default="score")
    parser.add_argument(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    parser.add_argument("--max-turns", type=int, help="turns per episode: 8 with the embedded policy, 15 with a model")
    parser.add_argument("--num-eval-goals", type=int, default=64, help="the first so many goals of the eval split")
    main("webshop", make_suite, settings, parser=parser, embedded=EMBEDDED)
