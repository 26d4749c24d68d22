"""Memory and time of an update at sizes that do not fit here, from counted bytes and operations, and their checks.

    python benchmarks/scaling.py

Shapes are Qwen2.5's, built without weights. An update is 16 tasks x 8 rollouts x 20 turns of 1,500 prompt and 100
response tokens, ALFWorld's size. The device numbers are assumptions printed with the table, not measurements. The
counts are checked against what this machine can do: operations against torch's counter, bytes against live tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen2Config

from turncredit.rollout import PolicyScorer
from turncredit.rollout.packing import pack_rows

SHAPES = {  # hidden, layers, heads, kv heads, intermediate, tied embeddings
    "0.5B": (896, 24, 14, 2, 4864, True),
    "3B": (2048, 36, 16, 2, 11008, True),
    "7B": (3584, 28, 28, 4, 18944, False),
}
VOCABULARY = 151_936
TASKS, ROLLOUTS, TURNS, PROMPT, RESPONSE = 16, 8, 20, 1500, 100
MICRO_BATCH_TOKENS, CHUNK, NUM_ENVS = 16_384, 4096, 64
# assumptions: an 80 GB data-centre GPU in bf16
FLOPS, USED_FLOPS = 989e12, 0.35
BANDWIDTH, USED_BANDWIDTH = 3.35e12, 0.4
PREFILL_USED = 0.5
GB = 1e9


@dataclass(frozen=True)
class Shape:
    parameters: int
    embedding: int
    hidden: int
    layers: int
    kv_width: int


def shape(name: str) -> Shape:
    """Counted on a model without storage."""
    hidden, layers, heads, kv_heads, intermediate, tied = SHAPES[name]
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    count = sum(p.numel() for p in model.parameters())
    return Shape(count, VOCABULARY * hidden, hidden, layers, 2 * kv_heads * hidden // heads)


def memory(s: Shape, gpus: int, stage: int) -> dict[str, float]:
    """Bytes per GPU. Stage 0: DDP, float32 weights under bf16 autocast; else DeepSpeed's bf16 with a float32 master.

    AgentOPSD at beta 0: no reference, and the teacher is the policy. A reference adds ``reference`` bytes.
    """
    p = s.parameters
    if stage == 0:
        state, reference = 16 * p, 4 * p
    elif stage == 2:
        state, reference = 2 * p + 14 * p / gpus, 2 * p
    else:
        state, reference = 16 * p / gpus, 2 * p / gpus
    rollout = NUM_ENVS * (PROMPT + RESPONSE) * s.layers * s.kv_width * 2 + (2 * p if stage == 3 else 0)
    activations = MICRO_BATCH_TOKENS * (2 * s.layers * s.hidden + 34 * s.hidden)  # checkpointed layers, one recomputed
    rows = MICRO_BATCH_TOKENS / (PROMPT + RESPONSE)
    logits = min(CHUNK, rows * RESPONSE) * VOCABULARY * 4 * 3  # logits, log-softmax, its gradient
    whole_logits = MICRO_BATCH_TOKENS * VOCABULARY * (4 * 3 + 2)
    return {
        "state": state,
        "reference": reference,
        "rollout": rollout,
        "training": activations + logits,
        "peak": state + max(rollout, activations + logits),
        "all logits instead": whole_logits,
    }


def seconds(s: Shape, gpus: int) -> dict[str, float]:
    """Seconds of an update per phase, work spread evenly over GPUs."""
    trajectories = TASKS * ROLLOUTS / gpus
    turns = trajectories * TURNS
    dense = s.parameters - s.embedding
    token = 2 * dense + 2 * s.layers * s.hidden * PROMPT  # matrices, attention to half of the context twice
    head = 2 * s.embedding
    speed = FLOPS * USED_FLOPS
    prefill = turns * (PROMPT * token + head) / (FLOPS * PREFILL_USED)
    waves = max(trajectories / NUM_ENVS, 1) * TURNS
    decode = waves * RESPONSE * (2 * s.parameters) / (BANDWIDTH * USED_BANDWIDTH)
    forward = turns * ((PROMPT + RESPONSE) * token + RESPONSE * head)
    return {
        "rollout": prefill + decode,
        "scoring": forward / speed,  # bf16 scores the rollouts again
        "teacher": forward / speed,
        "training": 4 * forward / speed,  # forward, recomputed forward, backward
    }


def check_operations() -> None:
    """The count of a forward pass against torch's own, on a small model of the same family."""
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=512,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    count, embedding = sum(p.numel() for p in model.parameters()), 1024 * 128
    prompt, response = 180, 20
    rows = pack_rows([[5] * prompt] * 8, [[6] * response] * 8, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        PolicyScorer(model)(rows.input_ids, rows.positions, rows.targets)
    # torch counts the whole square of attention, also where the mask hides it
    token = 2 * (count - embedding) + 4 * 4 * 128 * (prompt + response)
    expected = 8 * ((prompt + response) * token + response * 2 * embedding)
    ratio = counter.get_total_flops() / expected
    print(f"operations of a scoring pass: torch counts {counter.get_total_flops():.3e}, {ratio:.3f} of ours")


def check_bytes() -> None:
    """The state of DDP training against live tensors."""
    config = Qwen2Config(
        vocab_size=4096, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4
    )
    model = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    tensors = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    tensors += [v for state in optimizer.state.values() for v in state.values()]
    live = sum(t.numel() * t.element_size() for t in tensors)
    count = sum(p.numel() for p in model.parameters())
    print(f"state of weights, gradients and AdamW: {live / count:.3f} bytes a parameter, ours 16")


def main() -> None:
    check_operations()
    check_bytes()
    print(
        f"\nassumed: {FLOPS / 1e12:.0f} TFLOP/s at {USED_FLOPS:.0%} (prefill {PREFILL_USED:.0%}), "
        f"{BANDWIDTH / 1e12:.2f} TB/s at {USED_BANDWIDTH:.0%}\n"
    )
    print(
        "| model | parameters | GPUs | strategy | state | peak | + reference | all logits at once | "
        "rollout | scoring | teacher | training |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in SHAPES:
        s = shape(name)
        for gpus, stage in ((1, 0), (4, 0), (4, 2), (8, 2), (8, 3), (16, 3)):
            m, t = memory(s, gpus, stage), seconds(s, gpus)
            label = {0: "one GPU" if gpus == 1 else "DDP", 2: "ZeRO-2", 3: "ZeRO-3"}[stage]
            cells = [f"{m[key] / GB:.0f} GB" for key in ("state", "peak", "reference", "all logits instead")]
            times = [f"{t[key]:.0f} s" for key in ("rollout", "scoring", "teacher", "training")]
            print(f"| {name} | {s.parameters / 1e9:.2f}e9 | {gpus} | {label} | " + " | ".join([*cells, *times]) + " |")


if __name__ == "__main__":
    main()
