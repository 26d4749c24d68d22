"""Make the embedded policy for WebShop: a language model of under a million parameters that shops badly.

    python examples/warm_start_webshop.py --output examples/assets/webshop_tiny

A scripted player with bad habits (`tiny_shop/player.py`) plays training goals of the generated shop with and without
the hint; a tokenizer is built, a small Llama is trained to imitate the player, and what came out is measured on goals
of the test split, which neither the demonstrations nor the example's evaluation use. The result is an ordinary
Hugging Face folder. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from tiny_policy.demonstrations import Demonstration
from tiny_policy.training import build_model, encode, imitate
from tiny_shop.demonstrations import MAX_TURNS, demonstrate, embedded_suite
from tiny_shop.player import Habits
from tiny_shop.vocabulary import copying_rows, shop_tokenizer

from turncredit.envs.webshop import WebShopSuite
from turncredit.rollout import RolloutCollector, SamplingConfig

DEMONSTRATION_TURNS = 15


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", default="outputs/webshop_tiny", help="folder to write the policy to")
    parser.add_argument("--episodes-per-goal", type=int, default=2, help="episodes without, and as many with the hint")
    parser.add_argument("--rows", type=int, default=30000, help="turns to train on, at most; one pass")
    parser.add_argument("--copying-rows", type=int, default=12800, help="lists of names to repeat before that")
    parser.add_argument("--eval-goals", type=int, default=200, help="unseen goals to measure on; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Demonstrations, tokenizer, training, measurement, in this order."""
    arguments = parse_arguments()
    suite = embedded_suite()
    rows = collect(arguments, suite)
    tokenizer = shop_tokenizer(suite.shop)
    model = build_model(tokenizer, seed=arguments.seed)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size} parameters, {len(tokenizer)} tokens in the vocabulary, {len(rows)} turns", flush=True)
    start = time.time()

    def report(step: int, steps: int, loss: float) -> None:
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}/{steps}: {loss:.3f} nats a token, {time.time() - start:.0f} s", flush=True)

    imitate(
        model,
        copying_rows(tokenizer, arguments.copying_rows, arguments.seed),
        batch_size=64,
        prompt_weight=0.0,
        seed=arguments.seed,
        report=report,
    )
    imitate(model, [encode(tokenizer, row) for row in rows], seed=arguments.seed, report=report)
    tokenizer.save_pretrained(arguments.output)
    model.save_pretrained(arguments.output)
    if arguments.eval_goals:
        lines = measure(model, tokenizer, suite, arguments)
        print("\n".join(lines), flush=True)
        Path(arguments.output, "figures.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def collect(arguments: argparse.Namespace, suite: WebShopSuite) -> list[Demonstration]:
    """All demonstrated turns, at most as many as asked for, and a line on how well the scripted player did."""
    start = time.time()
    played = demonstrate(
        suite,
        suite.tasks("train"),
        episodes_per_goal=arguments.episodes_per_goal,
        max_turns=DEMONSTRATION_TURNS,
        habits=Habits(),
        seed=arguments.seed,
    )
    for hinted in (False, True):
        some = [episode for episode in played if episode.hinted == hinted]
        within = sum(episode.success and len(episode.turns) <= MAX_TURNS for episode in some) / len(some)
        print(
            f"scripted player, hint {hinted}: {within:.2f} bought the right thing within {MAX_TURNS} turns", flush=True
        )
    print(f"{len(played)} episodes in {time.time() - start:.0f} s", flush=True)
    return [turn for episode in played for turn in episode.turns][: arguments.rows]


def measure(model, tokenizer, suite: WebShopSuite, arguments: argparse.Namespace) -> list[str]:
    """Success and score on unseen goals, without and with the hint, at the training and the evaluation temperature."""
    tasks = suite.tasks("test")[: arguments.eval_goals]
    lines = []
    with RolloutCollector(model, tokenizer, suite, num_envs=64, num_workers=0) as collector:
        for temperature in (1.0, 0.4):
            for privileged in (False, True):
                trajectories = collector.collect(
                    tasks,
                    seed=arguments.seed,
                    privileged=privileged,
                    sampling=SamplingConfig(temperature=temperature, max_completion_length=20),
                )
                count = len(trajectories)
                turns = [turn for trajectory in trajectories for turn in trajectory.turns]
                score = 100 * sum(turn.reward for turn in turns) / count
                invalid = 1 - sum(turn.valid for turn in turns) / len(turns)
                lines.append(
                    f"temperature {temperature}, {'with' if privileged else 'without'} hint: success "
                    f"{sum(t.success for t in trajectories) / count:.2f}, score {score:.1f} of {count} goals, "
                    f"{len(turns) / count:.1f} turns, {invalid:.3f} invalid"
                )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    main()
