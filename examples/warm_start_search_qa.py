"""Make Search-QA's embedded policy: a language model of a million parameters that answers questions badly.

    python examples/warm_start_search_qa.py --output examples/assets/search_qa_tiny

Generates worlds, lets a scripted player with bad habits (`tiny_search/player.py`) answer questions in the real
environment with and without the supporting facts, builds a tokenizer, trains a small Llama to imitate it, measures what
came out on questions of a world that it has not seen, and writes an ordinary Hugging Face folder with the figures.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from tiny_policy.demonstrations import Demonstration
from tiny_policy.training import build_model, encode, imitate
from tiny_search.demonstrations import demonstrate
from tiny_search.player import Habits
from tiny_search.vocabulary import search_tokenizer
from tiny_search.worlds import make_suite

from turncredit.envs import TaskSuite
from turncredit.rollout import RolloutCollector, SamplingConfig


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", default="outputs/search_qa_tiny", help="folder to write the policy to")
    parser.add_argument("--worlds", type=int, default=72, help="generated worlds to demonstrate in a round")
    parser.add_argument("--questions-per-kind", type=int, default=20, help="of a world, played without and with facts")
    parser.add_argument("--rows", type=int, nargs="+", default=[26000, 10000], help="turns of each round, at most")
    parser.add_argument("--eval-questions", type=int, default=120, help="unseen questions to measure on; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Tokenizer, rounds of demonstrations and training (each at half the rate of the last), measurement."""
    arguments = parse_arguments()
    tokenizer = search_tokenizer()
    model = build_model(tokenizer, seed=arguments.seed, intermediate_size=256, heads=2)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size} parameters, {len(tokenizer)} tokens in the vocabulary", flush=True)
    start = time.time()

    def report(step: int, steps: int, loss: float) -> None:
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}/{steps}: {loss:.3f} nats a token, {time.time() - start:.0f} s", flush=True)

    for number, most in enumerate(arguments.rows):
        rows = collect(arguments, range(number * arguments.worlds, (number + 1) * arguments.worlds))[:most]
        imitate(
            model,
            [encode(tokenizer, row) for row in rows],
            learning_rate=3e-3 / 2**number,
            matrix_learning_rate=0.02 / 2**number,
            seed=arguments.seed + number,
            report=report,
        )
    tokenizer.save_pretrained(arguments.output)
    model.save_pretrained(arguments.output)
    if arguments.eval_questions:
        suite = make_suite(held_out_seed=1003, num_eval=arguments.eval_questions)
        lines = measure(model, tokenizer, suite, arguments.seed)
        print("\n".join(lines), flush=True)
        Path(arguments.output, "figures.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def collect(arguments: argparse.Namespace, worlds: range) -> list[Demonstration]:
    """All turns demonstrated in some worlds, and a line on how well the scripted player did."""
    start = time.time()
    played = demonstrate(
        worlds,
        questions_per_kind=arguments.questions_per_kind,
        habits=Habits(),
        seed=arguments.seed,
    )
    for informed in (False, True):
        right = [episode.success for episode in played if episode.hinted == informed]
        print(f"scripted player, facts {informed}: {sum(right) / len(right):.2f} answered of {len(right)}", flush=True)
    print(f"{len(played)} episodes in {time.time() - start:.0f} s", flush=True)
    return [turn for episode in played for turn in episode.turns]


def measure(model, tokenizer, suite: TaskSuite, seed: int) -> list[str]:
    """Success on unseen questions, without and with the facts, at the training and the evaluation temperature."""
    tasks = suite.tasks("eval")
    lines = []
    with RolloutCollector(model, tokenizer, suite, num_envs=64) as collector:
        for temperature in (1.0, 0.4):
            for privileged in (False, True):
                sampling = SamplingConfig(temperature=temperature, max_completion_length=12)
                played = collector.collect(tasks, seed=seed, privileged=privileged, sampling=sampling)
                success = sum(t.success for t in played) / len(played)
                kinds = {
                    kind: [t.success for t, task in zip(played, tasks, strict=True) if task.type == kind]
                    for kind in dict.fromkeys(task.type for task in tasks)
                }
                turns = [turn for trajectory in played for turn in trajectory.turns]
                invalid = 1 - sum(turn.valid for turn in turns) / len(turns)
                by_kind = ", ".join(f"{kind} {sum(won) / len(won):.2f}" for kind, won in kinds.items())
                lines.append(
                    f"temperature {temperature}, {'with' if privileged else 'without'} facts: success {success:.2f} of "
                    f"{len(tasks)} questions ({by_kind}), {len(turns) / len(played):.1f} turns, {invalid:.3f} invalid"
                )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    main()
