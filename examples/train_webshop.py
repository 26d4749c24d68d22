"""Train an agent to shop in WebShop with turn-level credit.

Without arguments: a shop is generated, a policy of under a million parameters (examples/assets/webshop_tiny, made by
examples/warm_start_webshop.py) is trained with AgentOPSD on two CPU cores, and success on held-out goals is printed
before and after. Nothing is downloaded.

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

import common
from policies import resolve_policy
from tiny_shop.demonstrations import MAX_TURNS, embedded_suite

from turncredit.envs.webshop import ShopConfig, WebShopSuite

EMBEDDED = Path(__file__).parent / "assets" / "webshop_tiny"

# the papers' settings (docs/equations.md#policy-objective)
OFFICIAL = {"output_dir": "outputs/webshop", "credit": "agent_opsd", "max_prompt_length": 4096}

# the embedded policy in the generated shop: small numbers, a large step
GENERATED = common.EMBEDDED_SETTINGS | {
    "output_dir": "outputs/webshop",
    "credit": "agent_opsd",
    "max_completion_length": 20,
    "max_prompt_length": 384,
    "num_workers": 0,
}


def make_suite(args: argparse.Namespace) -> WebShopSuite:
    """The generated shop for the embedded policy; with a model the official shop where there is one."""
    limits = {"eval": args.num_eval_goals}
    if common.is_embedded(args):
        options = {"privileged": args.privileged or "hint", "max_turns": args.max_turns or MAX_TURNS}
        return embedded_suite(limits=limits, reward=args.reward, **options)
    return WebShopSuite(
        ShopConfig(data=args.data, goals=args.goals),
        privileged=args.privileged or "skills",
        max_turns=args.max_turns or 15,
        limits=limits,
        reward=args.reward,
    )


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--goals", choices=("synthetic", "human"), default="synthetic")
    parser.add_argument("--reward", choices=("score", "success"), default="score")
    parser.add_argument(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    parser.add_argument("--max-turns", type=int, help="turns per episode: 8 with the embedded policy, 15 with a model")
    parser.add_argument("--num-eval-goals", type=int, default=64, help="the first so many goals of the eval split")
    args = parser.parse_args()
    output_dir = common.given_options(args).get("output_dir", OFFICIAL["output_dir"])
    resolve_policy(args, EMBEDDED, "webshop", output_dir)
    if common.is_embedded(args) and (args.data or args.goals != "synthetic"):
        parser.error(
            "--model must name another model with --data or --goals human: the embedded policy knows the generated shop"
        )
    suite = make_suite(args)
    if common.is_embedded(args):
        defaults = GENERATED
    else:
        defaults = OFFICIAL if suite.config.folder else OFFICIAL | {"max_steps": 20, "num_tasks": 8}
    config = common.make_config(args, defaults | {"num_eval_tasks": args.num_eval_goals})
    common.run(args, suite, config, EMBEDDED)


if __name__ == "__main__":
    main()
