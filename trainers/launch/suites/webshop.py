"""WebShop to train on: a generated shop, or the official one with a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..benchmark import EMBEDDED_SETTINGS, Benchmark, embedded_policy

if TYPE_CHECKING:
    from ....envs.webshop import WebShopSuite


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy in the generated shop; or of the papers, for less long where the shop is generated."""
    from ....envs.webshop import ShopConfig
    from ....envs.webshop.compact import BUDGETS

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
    from ....envs.webshop import ShopConfig, WebShopSuite
    from ....envs.webshop.compact import MAX_TURNS, compact_suite

    options = {"limits": {"eval": args.num_eval_goals}, "reward": args.reward}
    if args.embedded:
        return compact_suite(privileged=args.privileged or "hint", max_turns=args.max_turns or MAX_TURNS, **options)
    shop = ShopConfig(data=args.data, goals=args.goals)
    return WebShopSuite(shop, privileged=args.privileged or "skills", max_turns=args.max_turns or 15, **options)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the benchmark's own."""
    add = parser.add_argument_group("webshop").add_argument
    add("--goals", choices=("synthetic", "human"), default="synthetic", help="(default: synthetic)")
    add("--reward", choices=("score", "success"), default="score", help="what a purchase earns (default: score)")
    add(
        "--privileged",
        choices=("skills", "hint", "both", "none"),
        help="what the teacher reads: the hint with the embedded policy, skills with a model",
    )
    add("--max-turns", type=int, help="turns per episode: 8 with the embedded policy, 15 with a model")
    add("--num-eval-goals", type=int, default=64, help="of the eval split (default: 64)")


BENCHMARK = Benchmark(
    "webshop",
    make_suite,
    settings,
    add_flags,
    about="shopping, in a generated or the official shop",
    panel_flag="--num-eval-goals",
    extra="webshop",
    modules=("bm25s", "Stemmer"),
    embedded=embedded_policy("webshop"),
)
