"""Make an embedded policy: a language model of under a million parameters that plays badly.

    python examples/warm_start.py alfworld --output examples/assets/alfworld_tiny
    python examples/warm_start.py webshop --output examples/assets/webshop_tiny
    python examples/warm_start.py search_qa --output examples/assets/search_qa_tiny

With --diligent, alfworld only, the player has no bad habits and there are more demonstrations: a stronger teacher with
the embedded policy's tokenizer (docs/lens_opd.md).

    python examples/warm_start.py alfworld --diligent

A scripted player with bad habits (`turncredit.envs.<name>.player`) plays the real environment with and without
privileged context, a small Llama is trained to imitate it, and what came out is measured on tasks that it has not seen.
The result is an ordinary Hugging Face folder with the figures in figures.txt. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from embedded.demonstrations import Lesson, demonstrate
from embedded.imitation import Row, build_model, copying_rows, encode, imitate
from embedded.tokenizer import build_tokenizer
from transformers import PreTrainedTokenizerFast

from turncredit.envs import Task, TaskSuite
from turncredit.envs.alfworld import compact as alfworld_compact
from turncredit.envs.alfworld import generate_games
from turncredit.envs.alfworld import player as alfworld_player
from turncredit.envs.search_qa import compact as search_compact
from turncredit.envs.search_qa import player as search_player
from turncredit.envs.search_qa.generator import KINDS
from turncredit.envs.webshop import compact as webshop_compact
from turncredit.envs.webshop import player as webshop_player
from turncredit.rollout import RolloutCollector, SamplingConfig


@dataclass(frozen=True)
class Course:
    """What a policy is made from.

    Args:
        tokenizer: knows every word of demonstrations and panel.
        phases: rows and further arguments of `imitate`, in order.
        panel, split: unseen tasks to measure on.
        max_completion_length: tokens of a turn.
        model: further arguments of `build_model`.
    """

    tokenizer: PreTrainedTokenizerFast
    phases: Iterator[tuple[list[Row], dict[str, Any]]]
    panel: TaskSuite
    split: str
    max_completion_length: int
    model: dict[str, int] = field(default_factory=dict)


def taught(
    tokenizer: PreTrainedTokenizerFast,
    lessons: Sequence[tuple[Lesson, Sequence[Task]]],
    most: int,
    max_turns: int,
    workers: int = 0,
) -> list[Row]:
    """The first rows of all lessons, and a line on how well the scripted player did."""
    start = time.time()
    played = [episode for lesson, tasks in lessons for episode in demonstrate(lesson, tasks, workers)]
    for hinted in (False, True):
        won = [p.success and len(p.turns) <= max_turns for p in played if p.hinted == hinted]
        context = "with" if hinted else "without"
        print(f"scripted player {context} context: {sum(won) / len(won):.2f} won within {max_turns} turns", flush=True)
    print(f"{len(played)} episodes in {time.time() - start:.0f} s", flush=True)
    return [encode(tokenizer, turn) for turn in [turn for p in played for turn in p.turns][:most]]


def alfworld(args: argparse.Namespace, scratch: Path) -> Course:
    """1,000 generated houses, 2,500 with --diligent; measured on others, as many as --eval-tasks."""
    games, most, player = 1000, 40000, alfworld_player.respond
    if args.diligent:
        games, most, player = 2500, 90000, partial(alfworld_player.respond, habits=alfworld_player.DILIGENT)
    generate_games(scratch, args.tasks or games, seed=args.seed, split="demonstrations", verify=False)
    make = partial(alfworld_compact.compact_suite, scratch, ["demonstrations"])
    seed = f"{args.seed}/{{task}}/{{episode}}/{{plain}}"
    lesson = Lesson(make, player, 18, seed, args.episodes)
    tokenizer = build_tokenizer(**alfworld_compact.compact_vocabulary())
    tasks = make().tasks("demonstrations")
    rows = taught(tokenizer, [(lesson, tasks)], args.rows or most, alfworld_compact.MAX_TURNS, args.workers)
    if args.eval_tasks:
        generate_games(scratch, args.eval_tasks, seed=args.seed + 1, split="valid", num_workers=args.workers)
    panel = alfworld_compact.compact_suite(scratch, ["valid"])
    return Course(tokenizer, iter([(rows, {})]), panel, "valid", 20)


def webshop(args: argparse.Namespace, scratch: Path) -> Course:
    """The training goals of the generated shop, after lists of names to repeat; measured on its test goals."""
    suite = webshop_compact.compact_suite(limits={"test": args.eval_tasks} if args.eval_tasks else None)
    seed = f"{args.seed}/{{task}}/{{episode}}/{{plain}}"
    lesson = Lesson(lambda: suite, webshop_player.respond, 15, seed, args.episodes)
    tokenizer = build_tokenizer(**webshop_compact.compact_vocabulary(suite.shop))
    tasks, most = suite.tasks("train")[: args.tasks], args.rows or 30000
    rows = taught(tokenizer, [(lesson, tasks)], most, webshop_compact.MAX_TURNS)
    copying = copying_rows(tokenizer, args.copying_rows, args.seed)
    phases = iter([(copying, {"batch_size": 64, "prompt_weight": 0.0}), (rows, {})])
    return Course(tokenizer, phases, suite, "test", 20)


def search_qa(args: argparse.Namespace, scratch: Path) -> Course:
    """Two rounds of 72 generated worlds, the second at half the rate; measured on questions of another world."""
    tokenizer = build_tokenizer(**search_compact.compact_vocabulary())
    worlds = args.tasks or 72

    def rounds() -> Iterator[tuple[list[Row], dict[str, Any]]]:
        for number, most in enumerate((args.rows or 26000, (args.rows or 26000) * 10 // 26)):
            lessons = [_world(args.seed, world) for world in range(number * worlds, (number + 1) * worlds)]
            rates = {"learning_rate": 3e-3 / 2**number, "matrix_learning_rate": 0.02 / 2**number}
            yield taught(tokenizer, lessons, most, search_compact.MAX_TURNS), rates | {"seed": args.seed + number}

    panel = search_compact.compact_suite(held_out_seed=1003, num_eval=args.eval_tasks or 1)
    return Course(tokenizer, rounds(), panel, "eval", 12, {"intermediate_size": 256, "heads": 2})


def _world(seed: int, world: int) -> tuple[Lesson, list[Task]]:
    """20 questions of each kind."""
    suite = search_compact.demonstration_suite(world)
    tasks = suite.tasks("demonstrations")
    kinds = {kind: [task for task in tasks if suite.question(task).kind == kind] for kind in KINDS}
    drawn = [task for kind in KINDS for task in random.Random(f"{seed}/{world}/{kind}").sample(kinds[kind], 20)]
    return Lesson(lambda: suite, search_player.respond, 4, f"{seed}/{world}/{{task}}/{{hinted}}"), drawn


COURSES = {"alfworld": (alfworld, 60), "webshop": (webshop, 200), "search_qa": (search_qa, 120)}


def measure(model: Any, course: Course, args: argparse.Namespace) -> list[str]:
    """Figures on unseen tasks, without and with privileged context, at the training and the evaluation temperature."""
    tasks = course.panel.tasks(course.split)
    kinds = list(dict.fromkeys(task.type for task in tasks))
    lines = []
    with RolloutCollector(model, course.tokenizer, course.panel, num_envs=64, num_workers=0) as collector:
        for temperature in (1.0, 0.4):
            sampling = SamplingConfig(temperature=temperature, max_completion_length=course.max_completion_length)
            for privileged in (False, True):
                played = collector.collect(tasks, seed=args.seed, privileged=privileged, sampling=sampling)
                turns = [turn for trajectory in played for turn in trajectory.turns]
                won = {k: [p.success for p, task in zip(played, tasks, strict=True) if task.type == k] for k in kinds}
                lines.append(
                    f"temperature {temperature}, {'with' if privileged else 'without'} context: success "
                    f"{sum(p.success for p in played) / len(played):.2f} of {len(tasks)} tasks "
                    f"({', '.join(f'{kind} {sum(w) / len(w):.2f}' for kind, w in won.items())}), score "
                    f"{100 * sum(turn.reward for turn in turns) / len(played):.1f}, {len(turns) / len(played):.1f} "
                    f"turns, {1 - sum(turn.valid for turn in turns) / len(turns):.3f} invalid"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=tuple(COURSES))
    parser.add_argument("--output", help="folder of the policy; by default outputs/ENVIRONMENT_tiny, or .._diligent")
    parser.add_argument("--tasks", type=int, help="games, goals or worlds (of a round) to demonstrate")
    parser.add_argument("--episodes", type=int, default=2, help="of a game or goal, without and as many with context")
    parser.add_argument("--rows", type=int, help="turns to train on, at most; one pass")
    parser.add_argument("--copying-rows", type=int, default=12800, help="webshop: lists of names to repeat first")
    parser.add_argument("--eval-tasks", type=int, help="unseen tasks to measure on; 0 leaves it out")
    parser.add_argument("--diligent", action="store_true", help="alfworld: imitate a player that wastes no turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="alfworld: processes that play")
    args = parser.parse_args()
    if args.diligent and args.environment != "alfworld":
        parser.error(f"--diligent: environment must be alfworld, got {args.environment}; leave one of them out")
    make_course, panel = COURSES[args.environment]
    args.eval_tasks = panel if args.eval_tasks is None else args.eval_tasks
    output = Path(args.output or f"outputs/{args.environment}_{'diligent' if args.diligent else 'tiny'}")
    with tempfile.TemporaryDirectory() as scratch:
        course = make_course(args, Path(scratch))
        model = build_model(course.tokenizer, seed=args.seed, **course.model)
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size} parameters, {len(course.tokenizer)} tokens in the vocabulary", flush=True)
        for rows, options in course.phases:
            imitate(model, rows, **{"seed": args.seed, "report": report, **options})
        course.tokenizer.save_pretrained(output)
        model.save_pretrained(output)
        if args.eval_tasks:
            lines = measure(model, course, args)
            print("\n".join(lines), flush=True)
            (output / "figures.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(step: int, steps: int, loss: float) -> None:
    """A line every hundred steps."""
    if step % 100 == 0 or step == steps - 1:
        print(f"step {step}/{steps}: {loss:.3f} nats a token", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    main()
