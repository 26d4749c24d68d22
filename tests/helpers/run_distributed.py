"""One of two processes for tests: python run_distributed.py STAGE FOLDER.

STAGE is a ZeRO stage, -1 for plain data parallelism, ``half`` for bf16 under ZeRO-3, or ``fail``, where process 1
raises in the second update.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from safetensors.torch import load_file

from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer
from turncredit.trainers.distributed import full_weights

SUITE = ToySuite(num_tasks=8, lenient=True)
METHODS = ("agent_opsd", "step_opsd", "align_opsd", "sdar", "posterior_all", "vineppo", "tree_grpo", "opd", "lens_opd")
# a boundary threshold that is not clipped is the quantile over all processes
LOOSE = {"boundary_low": 0.0, "boundary_high": 1.0, "similarity_threshold": 0.1, "encoder": "hashing"}
FOUND = {name: LOOSE[name] for name in ("similarity_threshold", "encoder")}
OPTIONS = {
    "align_opsd": {"credit_options": LOOSE},
    "posterior_all": {"credit_options": FOUND},
    "lens_opd": {"credit_options": {"cue": "privileged", "eta": 2.0, "horizon": 2}},
}


def make_accelerator(stage: int) -> Accelerator:
    if stage < 0:
        return Accelerator(cpu=True)
    return Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage, zero3_init_flag=False),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )


def config(folder: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 4,
        "num_tasks": 4,
        "num_generations": 4,
        "num_workers": 0,
        "credit": "agent_opsd",
        "learning_rate": 1e-2,
        "beta": 0.01,
        "eval_steps": 0,
        "num_eval_tasks": 3,
        "save_steps": 0,
        "num_minibatches": 2,
        "warmup_steps": 3,
        "sampling": SamplingConfig(max_completion_length=6),
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(accelerator: Accelerator, folder: Path, **changes: Any) -> GRPOTrainer:
    changes = {**OPTIONS.get(str(changes.get("credit")), {}), **changes}
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(folder, **changes), accelerator=accelerator)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(line: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in line.items() if not name.startswith("time/")}


def saved(folder: Path, step: int = 4) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


def train_whole_and_in_parts(accelerator: Accelerator, folder: Path, method: str) -> None:
    """4 updates, and 2 + resume + 2 in a second trainer, which begins with other weights and RNG states."""
    with trainer(accelerator, folder / method / "whole", credit=method) as run:
        run.train()
    with trainer(accelerator, folder / method / "parts", credit=method) as run:
        while run.step < 2:
            run.train_step()
        run.save()
    torch.manual_seed(99 + accelerator.process_index)
    with trainer(accelerator, folder / method / "parts", credit=method) as run:
        run.train(resume_from=True)
    if accelerator.is_main_process:
        whole, parts = saved(folder / method / "whole"), saved(folder / method / "parts")
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[name], parts[name]) for name in whole), method
        by_step = {line["step"]: timeless(line) for line in lines(folder / method / "whole")}
        later = [timeless(line) for line in lines(folder / method / "parts") if line["step"] > 2]
        assert len(later) == 2
        assert all(line == by_step[line["step"]] for line in later), method


def half_precision(folder: Path) -> None:
    """ZeRO-3 in bf16: a LoRA adapter resumes bit for bit, its first KL is 0, and a NaN loss costs one step."""
    from peft import LoraConfig

    torch.set_num_threads(1)
    accelerator = Accelerator(
        mixed_precision="bf16",
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=3, zero3_init_flag=False),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )

    def make(name: str, lora: bool = True) -> GRPOTrainer:
        torch.manual_seed(3)
        adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
        settings = config(folder / name, credit="grpo", num_minibatches=1)
        options = {"accelerator": accelerator, "peft_config": adapter}
        return GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, **options)

    with make("whole") as run:
        run.train()
    with make("parts") as run:
        first = run.train_step()
        assert first["train/kl"] == 0.0
        run.train_step()
        run.save()
    with make("parts") as run:
        run.train(resume_from=True)
    if accelerator.is_main_process:
        files = [folder / name / "checkpoints" / "step-000004" / "trained.safetensors" for name in ("whole", "parts")]
        whole, parts = map(load_file, files)
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with make("nan", lora=False) as run:
        before = full_weights(run.model)
        phase = run.phase

        def poisoned(*arguments: Any) -> Any:
            result = phase(*arguments)
            result.rows.advantages[:] = torch.where(result.rows.response_mask, torch.nan, 0.0)
            return replace(result, rows=replace(result.rows, active=torch.ones_like(result.rows.active)))

        run.phase = poisoned
        metrics = run.train_step()
        assert metrics["train/skipped_steps"] == 1
        after = full_weights(run.model)
        assert all(torch.equal(before[name], after[name]) for name in before)
        run.phase = phase
        while run.train_step()["train/optimizer_steps"] == 0:
            pass
        assert all(bool(value.isfinite().all()) for value in full_weights(run.model).values())
        assert run.skipped_steps == 1
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


class Fail(GRPOCallback):
    def on_credit(self, trainer: GRPOTrainer, inputs: Any, credit: Any) -> None:
        if trainer.accelerator.process_index == 1 and trainer.step == 1:
            raise RuntimeError("this process fails")


def fail(folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator(-1)
    settings = config(folder, credit="grpo")
    run = GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, accelerator=accelerator, callbacks=[Fail()])
    run.train()


def methods(stage: int) -> tuple[str, ...]:
    """What a pair of processes trains: everything without DeepSpeed, teachers under ZeRO-3, one method else."""
    return {-1: METHODS, 3: ("step_opsd", "align_opsd", "opd")}.get(stage, METHODS[:1])


def main(stage: int, folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator(stage)
    assert accelerator.num_processes == 2
    for method in methods(stage):
        train_whole_and_in_parts(accelerator, folder, method)
    if stage == 3:
        with trainer(accelerator, folder / "synced", credit="align_opsd", ds3_gather_for_generation=False) as run:
            run.train()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("fail", "half"):
        {"fail": fail, "half": half_precision}[sys.argv[1]](Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]), Path(sys.argv[2]))
