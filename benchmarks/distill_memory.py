"""What the divergence over the whole vocabulary costs in memory: chunks of tokens against all of them at once.

    python benchmarks/distill_memory.py

One training pass (forward and backward) over 32 responses of 128 tokens with 32,000 words, a random Qwen2 of hidden
size 128 with a teacher of 192. The peak is that of a process of its own above what it held before the pass (Linux
only).
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from timing import forget_peak, memory
from transformers import Qwen2Config, Qwen2ForCausalLM

from turncredit.rollout.packing import pack_rows
from turncredit.rollout.scoring import PolicyScorer

ROWS, PROMPT, RESPONSE, WORDS = 32, 16, 128, 32_000
WAYS = {
    "log-probs alone, 512 tokens at a time": (512, False),
    "log-probs alone, all 4,096 tokens at once": (4096, False),
    "divergence, 512 tokens at a time": (512, True),
    "divergence, all 4,096 tokens at once": (4096, True),
}


def model(hidden: int) -> Qwen2ForCausalLM:
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS, "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).eval()


def child(chunk: int, teaches: bool) -> None:
    """Print the peak of one pass, MiB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scorer, teacher = PolicyScorer(model(128), chunk_tokens=chunk), PolicyScorer(model(192), chunk_tokens=chunk)
    scorer.beside = (teacher,)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, WORDS, (ROWS, PROMPT + RESPONSE), generator=draw).tolist()
    packed = pack_rows([row[:PROMPT] for row in ids], [row[PROMPT:] for row in ids], 0)
    hidden = torch.randn(ROWS * RESPONSE, 192, generator=draw)
    for parameter in scorer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for one in (scorer, teacher):  # whatever is made once
        one(*pack_rows([[3]], [[4]], 0).inputs(1.0, False, 0, ()))
    beside = {"teacher_hidden": hidden, "kind": "reverse"} if teaches else {}
    forget_peak()
    before = memory("VmRSS")
    logprobs, _, *outputs = scorer(*packed.inputs(1.0, False, 0, ()), **beside)
    loss = outputs[0]["divergence"].mean() if teaches else logprobs.mean()
    (loss + logprobs[:0].sum()).backward()  # all that was computed takes part, as in training; else it would be kept
    print((memory("VmHWM") - before) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return child(*WAYS[options.way])
    print("| pass | peak, MiB |\n|---|---|")
    for way in WAYS:
        answer = subprocess.run([sys.executable, __file__, "--way", way], check=True, capture_output=True, text=True)
        print(f"| {way} | {float(answer.stdout.splitlines()[-1]):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
