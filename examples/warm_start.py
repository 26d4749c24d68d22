"""Make the embedded default's policy: a language model of a million parameters that plays small ALFWorld houses badly.

    python examples/warm_start.py --output examples/assets/alfworld_tiny

Generates games, lets a scripted player that dawdles (`tiny_policy/demonstrator.py`) play them on the real engine with
and without the hint, builds a tokenizer, trains a small Llama to imitate it, measures what came out on games that it
has not seen, and writes an ordinary Hugging Face folder with a README of the figures. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from tiny_policy.demonstrations import Demonstration, demonstrate, make_suite
from tiny_policy.demonstrator import Habits
from tiny_policy.tokenizer import build_tokenizer
from tiny_policy.training import build_model, encode, imitate
from tiny_policy.vocabulary import PLAIN_WORDS, kinds_of_names

from turncredit.envs.alfworld import generate_games
from turncredit.rollout import RolloutCollector, SamplingConfig

MAX_TURNS = 14
DEMONSTRATION_TURNS = 18


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", default="outputs/alfworld_tiny", help="folder to write the policy to")
    parser.add_argument("--games", type=int, default=1000, help="generated games to demonstrate")
    parser.add_argument("--episodes-per-game", type=int, default=2, help="episodes without, and as many with the hint")
    parser.add_argument("--rows", type=int, default=40000, help="turns to train on, at most; one pass")
    parser.add_argument("--eval-games", type=int, default=60, help="unseen games to measure on; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes that play")
    parser.add_argument("--data", default=None, help="folder for the games; a temporary one by default")
    return parser.parse_args()


def main() -> None:
    """Demonstrations, tokenizer, training, measurement, in this order."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(arguments.data or scratch)
        generate_games(data, arguments.games, seed=arguments.seed, split="demonstrations", verify=False)
        rows = collect(arguments, data)
        tokenizer = build_tokenizer(PLAIN_WORDS, kinds_of_names())
        model = build_model(tokenizer, seed=arguments.seed)
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size} parameters, {len(tokenizer)} tokens in the vocabulary, {len(rows)} turns", flush=True)
        start = time.time()

        def report(step: int, steps: int, loss: float) -> None:
            if step % 100 == 0 or step == steps - 1:
                print(f"step {step}/{steps}: {loss:.3f} nats a token, {time.time() - start:.0f} s", flush=True)
            if step % 200 == 199:
                model.save_pretrained(arguments.output)

        tokenizer.save_pretrained(arguments.output)
        imitate(model, [encode(tokenizer, row) for row in rows], seed=arguments.seed, report=report)
        model.save_pretrained(arguments.output)
        if arguments.eval_games:
            generate_games(
                data, arguments.eval_games, seed=arguments.seed + 1, split="valid", num_workers=arguments.workers
            )
            lines = measure(model, tokenizer, data, arguments)
            print("\n".join(lines), flush=True)
            Path(arguments.output, "figures.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def collect(arguments: argparse.Namespace, data: Path) -> list[Demonstration]:
    """All demonstrated turns, at most as many as asked for, and a line on how well the scripted player did."""
    start = time.time()
    played = demonstrate(
        data,
        "demonstrations",
        episodes_per_game=arguments.episodes_per_game,
        max_turns=DEMONSTRATION_TURNS,
        habits=Habits(),
        seed=arguments.seed,
        num_workers=arguments.workers,
    )
    for hinted in (False, True):
        lengths = [len(p.turns) if p.success else DEMONSTRATION_TURNS + 1 for p in played if p.hinted == hinted]
        within = sum(length <= MAX_TURNS for length in lengths) / len(lengths)
        print(f"scripted player, hint {hinted}: {within:.2f} won within {MAX_TURNS} turns", flush=True)
    print(f"{len(played)} episodes in {time.time() - start:.0f} s", flush=True)
    return [turn for episode in played for turn in episode.turns][: arguments.rows]


def measure(model, tokenizer, data: Path, arguments: argparse.Namespace) -> list[str]:
    """Success on the unseen games, without and with the hint, at the training and the evaluation temperature."""
    suite = make_suite(data, "valid", MAX_TURNS)
    tasks = suite.tasks("valid")
    lines = []
    with RolloutCollector(model, tokenizer, suite, num_envs=64, num_workers=arguments.workers) as collector:
        for temperature in (1.0, 0.4):
            for privileged in (False, True):
                trajectories = collector.collect(
                    tasks,
                    seed=arguments.seed,
                    privileged=privileged,
                    sampling=SamplingConfig(temperature=temperature, max_completion_length=20),
                )
                success = sum(t.success for t in trajectories) / len(trajectories)
                turns = [turn for trajectory in trajectories for turn in trajectory.turns]
                invalid = 1 - sum(turn.valid for turn in turns) / len(turns)
                lines.append(
                    f"temperature {temperature}, {'with' if privileged else 'without'} hint: success {success:.2f} of "
                    f"{len(tasks)} games, {len(turns) / len(trajectories):.1f} turns, {invalid:.3f} invalid"
                )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    main()
