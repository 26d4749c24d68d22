"""What the training examples share: flags, configuration, model loading, the run itself and its learning curve."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # pyright: ignore[reportAttributeAccessIssue]
from accelerate.utils import InitProcessGroupKwargs
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from turncredit.envs import TaskSuite
from turncredit.rollout import SamplingConfig, save_trajectories
from turncredit.trainers import GRPOConfig, GRPOTrainer, TrainerCallback
from turncredit.trainers.loggers import read_metrics

_CONFIG = {*GRPOConfig().to_dict(), *(field.name for field in fields(GRPOConfig))} - {"sampling"}
_SAMPLING = {field.name for field in fields(SamplingConfig)}

# an embedded policy: small numbers, a large step, no KL and no penalty
EMBEDDED_SETTINGS: dict[str, Any] = {
    "max_steps": 20,
    "num_tasks": 8,
    "num_generations": 8,
    "learning_rate": 5e-4,
    "beta": 0.0,
    "entropy_coef": 0.0,
    "invalid_action_penalty": 0.0,
    "num_minibatches": 2,
    "encoder": "hashing",
    "eval_steps": 5,
    "save_steps": 0,
}


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Flags of every training example; ``--set`` reaches each field of `GRPOConfig` and `SamplingConfig`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help="model name, folder or checkpoint of a run; without it the embedded policy is trained"
    )
    parser.add_argument("--data", help="data folder; without it tasks are generated")
    parser.add_argument("--credit", help="credit method or recipe by name")
    parser.add_argument("--credit-option", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument("--max-steps", type=int, help="updates")
    parser.add_argument("--output-dir", help="metrics, completions, trajectories, checkpoints, learning curve")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other option, repeatable")
    parser.add_argument("--config", help="JSON file of options; flags win over it")
    parser.add_argument("--eval-only", action="store_true", help="evaluate with and without privileged context")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="CHECKPOINT",
        help="continue from the newest checkpoint in the output folder, or from this one; with --eval-only evaluate it",
    )
    parser.add_argument("--mixed-precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--attn-implementation", help="sdpa, flash_attention_2 or eager")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--lora-rank", type=int, help="train a LoRA adapter of this rank (needs turncredit[lora])")
    parser.add_argument("--lora-alpha", type=int, help="its scale; twice the rank by default")
    parser.add_argument("--lora-targets", default="all-linear", help="names of modules with commas, or all-linear")
    parser.add_argument(
        "--allow-changed-config", action="store_true", help="with --resume: go on although options differ"
    )
    return parser


def _pairs(items: list[str], flag: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        name, found, text = item.partition("=")
        if not found:
            raise SystemExit(f"{flag}: expected NAME=VALUE, got {item!r}")
        values[name.strip().replace("-", "_")] = _value(text)
    return values


def _value(text: str) -> Any:
    """A value as Python or as JSON writes it (true, false, null); anything else is text."""
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text.strip())
    return text


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the user asked for: the file of ``--config``, then flags; options of sampling may be grouped or not."""
    options: dict[str, Any] = {}
    if args.config:
        try:
            options = json.loads(Path(args.config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"--config: {args.config} must be a JSON file of options ({error})") from None
        if not isinstance(options, dict):
            raise SystemExit(f"--config: {args.config} must hold one object of options")
        if isinstance(options.get("sampling"), dict):
            options |= options.pop("sampling")
    options |= _pairs(args.set, "--set")
    for name in ("credit", "max_steps", "output_dir", "seed"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    if args.credit_option:
        options["credit_options"] = _pairs(args.credit_option, "--credit-option")
    return options


def make_config(args: argparse.Namespace, defaults: dict[str, Any]) -> GRPOConfig:
    """Defaults, then what the user asked for."""
    options = defaults | given_options(args)
    unknown = sorted(set(options) - _CONFIG - _SAMPLING)
    if unknown:
        raise SystemExit(f"unknown options {unknown}; known are {sorted(_CONFIG | _SAMPLING)}")
    sampling = {name: options.pop(name) for name in list(options) if name in _SAMPLING}
    try:
        return GRPOConfig(**options, sampling=SamplingConfig(**sampling))
    except (TypeError, ValueError) as error:
        raise SystemExit(str(error)) from None


def is_embedded(args: argparse.Namespace) -> bool:
    """Whether the policy is the embedded one, as it is or trained further; see `policies.resolve_policy`."""
    return getattr(args, "embedded", args.model is None)


def load_policy(args: argparse.Namespace, embedded: Path) -> tuple[Any, Any]:
    """The model to train in float32 (mixed precision casts on the fly) and its tokenizer."""
    source = args.model or str(embedded)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = load_model(args, embedded)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, tokenizer


def load_model(args: argparse.Namespace, embedded: Path) -> Any:
    """The model's weights, a second time where a reference cannot be copied; of an adapter's folder, both merged."""
    source = args.model or str(embedded)
    options = {"attn_implementation": args.attn_implementation} if args.attn_implementation else {}
    if not (Path(source) / "adapter_config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    from peft import PeftConfig, PeftModel

    base: Any = PeftConfig.from_pretrained(source).base_model_name_or_path
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options)
    return PeftModel.from_pretrained(model, source).merge_and_unload().requires_grad_(True)


def lora_config(args: argparse.Namespace) -> Any:
    """The adapter that the flags ask for, or None."""
    if args.lora_rank is None:
        return None
    from peft import LoraConfig

    targets = args.lora_targets if args.lora_targets == "all-linear" else args.lora_targets.split(",")
    alpha = args.lora_alpha or 2 * args.lora_rank
    return LoraConfig(r=args.lora_rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")


def make_accelerator(args: argparse.Namespace) -> Accelerator:
    """Make this before anything else asks accelerate for its state: the first one decides on the processes."""
    # DeepSpeed on a CPU; elsewhere the default
    backend = "gloo" if os.environ.get("DS_ACCELERATOR") == "cpu" else "nccl"
    # the others wait while process 0 writes a checkpoint and the longest episodes end; NCCL gives up after 10 minutes
    handlers: list[Any] = [InitProcessGroupKwargs(backend=backend, timeout=timedelta(hours=2))]
    # a launcher's --mixed_precision counts where the flag is not used
    precision = None if args.mixed_precision == "no" else args.mixed_precision
    return Accelerator(mixed_precision=precision, kwargs_handlers=handlers)


def run(
    args: argparse.Namespace,
    suite: TaskSuite,
    config: GRPOConfig,
    embedded: Path,
    accelerator: Any = None,
) -> None:
    """Evaluate, train, evaluate; print success before and after and write everything into the output folder."""
    set_seed(config.seed)
    accelerator = make_accelerator(args) if accelerator is None else accelerator
    model, tokenizer = load_policy(args, embedded)
    # ZeRO-3 shards weights while they are loaded, whatever zero3_init_flag says; those cannot be copied later
    sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    reference = load_model(args, embedded) if sharded and config.beta > 0 and args.lora_rank is None else None
    say = print if accelerator.is_main_process else lambda *a, **k: None
    sampling = config.sampling
    say(
        f"{'evaluating' if args.eval_only else 'training'} {args.model or 'the embedded policy'} with the settings of "
        f"{'the embedded policy' if is_embedded(args) else 'the papers'}: learning rate {config.learning_rate:g}, "
        f"KL {config.beta:g}, {sampling.max_completion_length} tokens a turn, prompts of {sampling.max_prompt_length}",
        flush=True,
    )
    with GRPOTrainer(
        model,
        tokenizer,
        suite,
        config,
        accelerator=accelerator,
        ref_model=reference,
        peft_config=None if args.eval_only else lora_config(args),
        progress=True,
        callbacks=[] if args.eval_only else [_Report(say)],
    ) as trainer:
        if args.eval_only:
            for privileged in (False, True):
                metrics = trainer.evaluate(privileged=privileged)
                say(json.dumps({name: round(value, 4) for name, value in metrics.items()}, indent=1))
            return
        after = trainer.train(resume_from=args.resume or None, allow_changed_config=args.allow_changed_config)
        if accelerator.is_main_process:
            _summary(trainer, after, say)
    accelerator.end_training()


def _summary(trainer: GRPOTrainer, after: dict[str, float], say: Callable[..., None]) -> None:
    config, folder = trainer.config, trainer.folder
    save_trajectories(trainer.eval_trajectories, folder / "eval_trajectories.jsonl.gz")
    log = read_metrics(folder / "metrics.jsonl")
    first = next((line for line in log if "eval/success" in line), {})
    for name, label in (("eval/success", "success"), ("eval/reward", "reward")):
        if name == "eval/success" or first.get(name) != first.get("eval/success"):
            say(
                f"{label} on {len(trainer.eval_tasks)} held-out tasks: {first.get(name, float('nan')):.3f} before, "
                f"{after.get(name, float('nan')):.3f} after {trainer.step} updates of {config.credit}"
            )
    if plot_learning_curve(log, folder / "learning_curve.png", f"{trainer.suite.name}, {config.credit}"):
        say(f"learning curve: {folder / 'learning_curve.png'}")
    say(f"metrics, completions, trajectories, checkpoints: {folder}")


class _Report(TrainerCallback):
    """One line per update and per evaluation."""

    def __init__(self, say: Callable[..., None]):
        self.say = say

    def on_step_end(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        names = {
            "success": "rollout/success",
            "turns": "rollout/turns",
            "invalid": "rollout/invalid_turns",
            "grad": "train/grad_norm",
            "kl": "train/kl",
        }
        text = "  ".join(f"{short} {metrics[name]:.3f}" for short, name in names.items() if name in metrics)
        self.say(f"update {trainer.step:4d}  {text}  {metrics['time/total_seconds']:.1f} s", flush=True)

    def on_evaluate(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if name.endswith("/success"):
                self.say(f"evaluation after {trainer.step} updates: {name} {value:.3f}", flush=True)


def plot_learning_curve(log: list[dict[str, float]], path: Path, title: str) -> bool:
    """Success over updates, in training rollouts and on the held-out panel; False where matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(6, 3.6), constrained_layout=True)
    for name, label, style in (
        ("rollout/success", "training rollouts (temperature 1)", {"color": "#9aa5b1", "lw": 1.2}),
        ("eval/success", "held-out tasks", {"color": "#d1495b", "lw": 2, "marker": "o"}),
        ("eval/reward", "held-out tasks, mean reward", {"color": "#2e86ab", "lw": 1.5, "marker": "s", "ls": "--"}),
    ):
        points = [(line["step"], line[name]) for line in log if name in line]
        same = name == "eval/reward" and all(line[name] == line.get("eval/success") for line in log if name in line)
        if not points or same:
            continue
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="update", ylabel="success", ylim=(0, 1), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
