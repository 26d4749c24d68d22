"""Figures of one GPU in bf16: rollout, scoring and training of random-weight Qwen2.5 shapes, in under ten minutes.

    python benchmarks/gpu.py                    # 0.5B and 3B
    python benchmarks/gpu.py --shapes 0.5B
    python benchmarks/gpu.py --toy              # a shape for a CPU, in under a minute: does it run?

Two updates of the real trainer for each shape and column, of which the first warms up: once with plain `generate` and a
row a turn, once with continuous batching and shared prefixes. Episodes are append-only, 4 turns of 100-word
observations behind a prompt of 500; responses end by chance, after 80 tokens in the mean and 256 at most. Weights are
float32 under bf16 autocast, gradient checkpointing is on, there is no reference. Tokens a second of scoring and of
training count the tokens of separate rows in both columns, so that columns can be compared.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from beside_trl.suite import TextSuite
from beside_trl.workloads import SPECIAL, reward_of, word_tokenizer, words
from scaling import SHAPES
from transformers import Qwen2Config, Qwen2ForCausalLM

from turncredit.rollout.types import Trajectory
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer

COLUMNS = {
    "plain, separate rows": {"share_prefixes": False, "continuous_batching": False},
    "continuous, shared prefixes": {"share_prefixes": True, "continuous_batching": True},
}
END = SPECIAL.index("<end>")
SHARED_ENTRY = 0.2
"""First entry of every embedding, by which `end_after` can tell one token from all others."""


@dataclass(frozen=True)
class Size:
    """An update. Args: tasks, rollouts, turns; words of prompt and observation; mean and largest response."""

    vocabulary: int = 151_936
    tasks: int = 8
    rollouts: int = 8
    turns: int = 4
    prompt: int = 500
    observation: int = 100
    response: int = 80
    longest: int = 256
    micro_batch_tokens: int = 16_384


TOY = Size(1024, 2, 4, 3, 30, 10, 5, 16, 2048)


class Counts(GRPOCallback):
    """Tokens of the last rollouts, and the peak memory of rollouts and of what follows them."""

    def on_rollout(self, trainer: GRPOTrainer, trajectories: Sequence[Trajectory]) -> None:
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        self.sampled = sum(len(turn.response_ids) for turn in turns)
        self.tokens = sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns)
        self.peak = peak_gb()


def peak_gb() -> float:
    """Peak memory since the last call on a GPU; of the process so far on a CPU."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return peak


def make_model(shape: tuple[int, int, int, int, int, bool], size: Size, device: str) -> Any:
    """Random weights that end a response after `size.response` tokens in the mean, whatever was said."""
    hidden, layers, heads, kv_heads, intermediate, tied = shape
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
        eos_token_id=END,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    end_after(model, size.response)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


@torch.no_grad()
def end_after(model: Any, tokens: int) -> None:
    """Set the output row of the end so that its probability is about 1 / tokens, whatever was said before."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    embeddings[:, 0] = head[:, 0] = SHARED_ENTRY
    ids = torch.arange(len(SPECIAL), min(len(embeddings), len(SPECIAL) + 64), device=embeddings.device)[None]
    hidden = model.model(input_ids=ids).last_hidden_state
    first = hidden[0, :, 0].mean()
    logits = (hidden[0, -8:] @ head.T).float()
    others = (logits.logsumexp(-1) - SHARED_ENTRY * first).mean()
    head[END] = 0.0
    head[END, 0] = SHARED_ENTRY + (others - math.log(tokens)) / first


def measure(shape: Any, size: Size, options: dict[str, Any], device: str, folder: str) -> dict[str, float]:
    """Figures of the second of two updates."""
    count = size.vocabulary - len(SPECIAL)
    suite = TextSuite(
        [words(count, size.prompt, f"prompt {task}") for task in range(2 * size.tasks)],
        size.turns,
        lambda task, turn: words(count, size.observation, f"{task} {turn}"),
        reward_of,
    )
    whole = size.prompt + size.turns * (size.observation + size.longest + 8)
    settings: dict[str, Any] = {
        "num_tasks": size.tasks,
        "num_generations": size.rollouts,
        "num_envs": size.tasks * size.rollouts,
        "num_workers": 0,
        "max_completion_length": size.longest,
        "max_prompt_length": whole,
        "micro_batch_tokens": size.micro_batch_tokens,
        "beta": 0.0,
        "entropy_coef": 0.0,
        "log_completions": 0,
        "report_to": "none",
    }
    config = GRPOConfig(folder, **settings, **options)
    model, counts = make_model(shape, size, device), Counts()
    accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
    parts: dict[str, Any] = {"accelerator": accelerator, "callbacks": [counts]}
    with GRPOTrainer(model, word_tokenizer(size.vocabulary), suite, config, **parts) as trainer:
        trainer.train_step()
        peak_gb()
        metrics = trainer.train_step()
        later = peak_gb()
    seconds = functools.partial("time/{}_seconds".format)
    return {
        "parameters, millions": sum(p.numel() for p in model.parameters()) / 1e6,
        "rollout, sampled tokens a second": counts.sampled / metrics[seconds("generation")],
        "scoring, tokens a second": counts.tokens / metrics[seconds("scoring")],
        "training, tokens a second": counts.tokens / metrics[seconds("training")],
        "seconds of an update": metrics[seconds("total")],
        "peak memory of rollouts, GB": counts.peak,
        "peak memory of scoring and training, GB": later,
        "tokens of separate rows": counts.tokens,
        "sampled tokens": counts.sampled,
        "share of tokens saved": metrics["train/shared_share"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.5B", "3B"])
    parser.add_argument("--toy", action="store_true", help="a tiny shape, on a CPU if there is no GPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="start nothing more after so many minutes")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.toy:
        raise SystemExit("gpu.py: these shapes need a GPU, and torch sees none; --toy runs on a CPU")
    began = time.monotonic()
    shapes = {"toy": (64, 2, 4, 2, 128, True)} if args.toy else {name: SHAPES[name] for name in args.shapes}
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, bf16", flush=True)
    for shape_name, shape in shapes.items():
        found: dict[str, dict[str, float]] = {}
        for column, options in COLUMNS.items():
            if time.monotonic() - began > 60 * args.minutes:
                print(f"{shape_name}, {column}: left out, {args.minutes:g} minutes are over")
                continue
            with tempfile.TemporaryDirectory() as folder:
                found[column] = measure(shape, TOY if args.toy else Size(), options, device, str(Path(folder) / "run"))
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
            print(f"{shape_name}, {column}: done after {time.monotonic() - began:.0f} s", flush=True)
        print_table(shape_name, found)


def print_table(shape: str, found: dict[str, dict[str, float]]) -> None:
    """Markdown: a row a figure, a column a way."""
    lines = ["| " + " | ".join([shape, *found]) + " |", "|" + "---|" * (len(found) + 1)]
    for figure in next(iter(found.values()), {}):
        cells = [f"{way[figure]:,.0f}" if way[figure] >= 100 else f"{way[figure]:.3g}" for way in found.values()]
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    print("\n" + "\n".join(lines) + "\n", flush=True)


if __name__ == "__main__":
    main()
