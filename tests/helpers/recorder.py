"""Writes down what every method trains: two updates on the toy suite, every metric and a checksum of the weights.

    PYTHONPATH=tests python tests/helpers/recorder.py record FILE            one process
    PYTHONPATH=tests python tests/helpers/recorder.py record FILE --pairs    and two, plain and under ZeRO-3
    PYTHONPATH=tests python tests/helpers/recorder.py record FILE --plain    nothing shared, nothing continuous
    PYTHONPATH=tests python tests/helpers/recorder.py compare BEFORE AFTER   what differs, if anything

Every name that trains is there. Numbers are compared bit for bit: a change of the trainer's shape leaves them as they
are, or names the fault that it mends.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from helpers.processes import finish, start
from helpers.run_distributed import make_accelerator
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.envs import ParsedResponse
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.distributed import full_weights

NAMES = (
    "agent_opsd agent_opsd_calibrated agent_opsd_centered agent_opsd_gap agent_opsd_magnitude "
    "agent_opsd_no_prior agent_opsd_token align_distill align_opsd align_opsd_alfworld_3b "
    "align_opsd_alfworld_7b align_opsd_bounded align_opsd_no_rectification align_opsd_random "
    "align_opsd_search_3b align_opsd_search_7b align_opsd_token align_opsd_turn align_opsd_webshop_3b "
    "align_opsd_webshop_7b dr_grpo empg faded_grpo futurebridge g2po gagpo gigpo gigpo_std graphgpo grpo grpo_opsd "
    "hcapo hgpo igpo istar lens_opd lens_opd_fixed_clock lens_opd_last_turn lens_opd_no_internalization "
    "lens_opd_no_token_focus mt_grpo opd opsd posterior posterior_all posterior_anchors posterior_sources "
    "posterior_teacher rewardflow rloo rlsd sdar skill_grpo skill_sd spa_rl step_opsd tcod_b2f tcod_f2b "
    "tree_grpo turn_ppo vineppo "
)
SHARDED = ("agent_opsd", "step_opsd", "align_opsd")
ALIGNED = ("posterior_all", "posterior_sources")
PAIRS = {"encoder": "hashing", "similarity_threshold": 0.1}
ALIGN = {**PAIRS, "boundary_low": 0.0, "boundary_high": 1.0}
"""With them pairs are found among the toy suite's few words, and the boundary's quantile is not clipped."""
UNCOMPARED = ("time/", "rollout/workers")


class Thinking(ToySuite):
    """The toy suite with whatever was said as the thinking, so that AlignOPSD finds texts to compare."""

    def parse(self, response: str) -> ParsedResponse:
        return replace(super().parse(response), thinking=response)


def settings(name: str, folder: Path, plain: bool) -> GRPOConfig:
    """Away from the defaults where a default would hide something."""
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        num_tasks=4,
        num_generations=4,
        num_workers=0,
        credit=name,
        credit_options=ALIGN if name.startswith("align") else PAIRS if name in ALIGNED else {},
        sampling=SamplingConfig(max_completion_length=6, temperature=0.9),
        learning_rate=1e-2,
        weight_decay=0.1,
        beta=0.01,
        entropy_coef=0.002,
        num_iterations=2,
        num_minibatches=2,
        eval_steps=0,
        num_eval_tasks=3,
        save_steps=0,
        preflight=False,
        share_prefixes=not plain,
        continuous_batching=not plain,
        micro_batch_tokens=16384 if plain else None,
        seed=3,
    )


def record(name: str, accelerator: Accelerator, folder: Path, plain: bool) -> dict[str, Any]:
    """``{"updates": [metrics, metrics], "weights": checksum}``; numbers as hexadecimal floats."""
    suite = Thinking(num_tasks=8, lenient=True)
    config = settings(name, folder, plain)
    run = GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, accelerator=accelerator)
    with run:
        updates = [{k: float(v).hex() for k, v in sorted(run.train_step().items())} for _ in range(2)]
        weights = full_weights(run.model)
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(weights[key].contiguous().numpy().tobytes())
    kept = [{k: v for k, v in update.items() if not k.startswith(UNCOMPARED)} for update in updates]
    return {"updates": kept, "weights": digest.hexdigest()}


def record_all(names: list[str] | tuple[str, ...], stage: int, plain: bool) -> dict[str, Any]:
    """Every name in a process of this kind, which may be one of several."""
    torch.set_num_threads(1)
    accelerator = make_accelerator(stage)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            results[name] = record(name, accelerator, Path(folder) / name, plain)
    accelerator.wait_for_everyone()
    return results


def record_pair(names: list[str] | tuple[str, ...], stage: int, plain: bool) -> dict[str, Any]:
    """What process 0 of two writes down."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.json"
        environment = {"ACCELERATE_USE_CPU": "true"} if stage < 0 else {}
        flags = ["--plain"] if plain else []
        pair = start(Path(__file__), "pair", str(file), str(stage), ",".join(names), *flags, **environment)
        for code, output in finish(pair, timeout=3000):
            if code != 0:
                raise RuntimeError(f"record_pair: a process ended with {code}:\n{output[-3000:]}")
        return json.loads(file.read_text())


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line per run and update that is not the same; metrics that only `after` has are no difference."""
    lines = []
    for kind in before:
        for name, old in before[kind].items():
            new = after.get(kind, {}).get(name)
            if new is None:
                lines.append(f"{kind} {name}: missing")
                continue
            for step, (first, second) in enumerate(zip(old["updates"], new["updates"], strict=True), 1):
                changed = [key for key in first if first[key] != second.get(key)]
                shown = ", ".join(f"{key} {_shown(first, key)} -> {_shown(second, key)}" for key in changed)
                if changed:
                    lines.append(f"{kind} {name} update {step}: {shown}")
            if old["weights"] != new["weights"]:
                lines.append(f"{kind} {name}: weights {old['weights'][:8]} -> {new['weights'][:8]}")
    return lines


def _shown(update: dict[str, str], key: str) -> str:
    return f"{float.fromhex(update[key]):.9g}" if key in update else "absent"


def table(results: dict[str, Any]) -> str:
    """Loss, gradient norm and weights of the second update, one line per run."""
    lines = []
    for kind, runs in results.items():
        for name, run in runs.items():
            last = run["updates"][-1]
            loss, norm = (_shown(last, f"train/{key}") for key in ("loss", "grad_norm"))
            lines.append(f"{kind:8} {name:28} loss {loss:>14} grad_norm {norm:>14} weights {run['weights'][:12]}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--pairs", action="store_true")
    recording.add_argument("--plain", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    pair = commands.add_parser("pair")
    pair.add_argument("file", type=Path)
    pair.add_argument("stage", type=int)
    pair.add_argument("names")
    pair.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    if args.command == "pair":
        results = record_all(args.names.split(","), args.stage, args.plain)
        if Accelerator().is_main_process:
            args.file.write_text(json.dumps(results))
        return 0
    if args.command == "record":
        results = {"one": record_all(NAMES.split(), -1, args.plain)}
        if args.pairs:
            results["two"] = record_pair(NAMES.split(), -1, args.plain)
            results["zero3"] = record_pair(SHARDED, 3, args.plain)
        args.file.write_text(json.dumps(results, indent=1))
        print(table(results))
        return 0
    lines = differences(json.loads(args.before.read_text()), json.loads(args.after.read_text()))
    print("\n".join(lines) or "equal, bit for bit")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
