"""Rollouts under ZeRO-3: weights gathered once per phase, once per turn, or left sharded with every token in step.

    DS_ACCELERATOR=cpu accelerate launch --use_deepspeed --zero_stage 3 --num_processes 2 --num_machines 1 \
        --dynamo_backend no --mixed_precision no benchmarks/zero3_generation.py

Plays the embedded ALFWorld default, the same episodes three times, alternating; prints seconds and ratios of one run.
"""

from __future__ import annotations

import time
from pathlib import Path

from turncredit.envs.alfworld.compact import BUDGETS, compact_suite, generate_once
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.distributed import agree_max, whole_for_generation
from turncredit.trainers.launch import EMBEDDED_SETTINGS, load_policy, make_accelerator, make_config, make_parser

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "assets" / "alfworld_tiny"
GAMES = "outputs/alfworld_games"
ROUNDS = 3


def main() -> None:
    accelerator = make_accelerator()
    with accelerator.local_main_process_first():
        generate_once(GAMES, {"train": 192, "eval": 64})
    suite = compact_suite(GAMES, ["train", "eval"])
    seconds: dict[str, list[float]] = {"once a phase": [], "once a turn": [], "sharded, in step": []}
    defaults = {**EMBEDDED_SETTINGS, **BUDGETS, "credit": "agent_opsd", "num_tasks": 4}
    defaults["continuous_batching"] = False  # whose calls of the sampler are what is compared
    config = make_config(make_parser().parse_args(["--output-dir", "outputs/zero3_generation"]), defaults)
    model, tokenizer = load_policy(str(EMBEDDED))
    with GRPOTrainer(model, tokenizer, suite, config, accelerator=accelerator) as trainer:
        collector, tasks = trainer.collector, trainer.tasks_of(0)
        sample = collector.sampler.sample
        outcomes = set()

        def sample_gathered(*args, **kwargs):
            with whole_for_generation(trainer.scorer):
                return sample(*args, **kwargs)

        def in_step(counts):
            return agree_max(accelerator, counts)

        for number in range(ROUNDS + 1):
            for name, times in seconds.items():
                once = name == "once a phase"
                trainer.config.ds3_gather_for_generation = once
                collector.agree = None if once else in_step
                collector.sampler.sample = sample_gathered if name == "once a turn" else sample
                accelerator.wait_for_everyone()
                start = time.perf_counter()
                trajectories = trainer.rollout(tasks)
                accelerator.wait_for_everyone()
                if number:  # the first round warms up
                    times.append(time.perf_counter() - start)
                outcomes.add(tuple(turn.response_ids for t in trajectories for turn in t.turns))
    if accelerator.is_main_process:
        best = min(seconds["once a phase"])
        for name, times in seconds.items():
            print(f"{name}: {min(times):.2f} s, {min(times) / best:.2f} times", flush=True)
        print(f"the same tokens every time: {len(outcomes) == 1}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
