"""A training script: flags, configuration, model, run, report; see docs/launching.md."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import Accelerator  # pyright: ignore[reportAttributeAccessIssue]
from accelerate.utils import InitProcessGroupKwargs
from transformers import set_seed

from ...envs import TaskSuite
from ..config import GRPOConfig
from ..grpo import GRPOTrainer
from .benchmark import Settings
from .flags import refuse_idle
from .options import given_options, import_methods, make_config
from .policy import load_model, load_policy, lora_config, resolve_policy
from .report import summarize
from .seeds import of_seed, report_seeds


def start(
    args: argparse.Namespace,
    name: str,
    make_suite: Callable[[argparse.Namespace], TaskSuite],
    settings: Settings,
    *,
    parser: argparse.ArgumentParser,
    embedded: str | os.PathLike[str] | None,
) -> None:
    """Make suite and model, and train or evaluate. Args: args: the parsed flags; the others are those of `main`."""
    import_methods(args.imports)
    folder = None if embedded is None else Path(embedded)
    output = {"output_dir": f"outputs/{name}"}
    try:
        refuse_idle(args)
        resolve_policy(args, folder, name, given_options(args).get("output_dir", output["output_dir"]))
        chosen = settings(args) if callable(settings) else settings
    except ValueError as error:
        parser.error(str(error))
    config = make_config(args, {**output, **chosen})
    accelerator = make_accelerator(args.mixed_precision)
    with accelerator.local_main_process_first():
        suite = make_suite(args)
    source = args.model or str(folder)
    if args.seeds:
        run_seeds(args, suite, config, source, accelerator)
    else:
        run(args, suite, config, source, accelerator)
    if not args.eval_only:
        accelerator.end_training()


def run_seeds(
    args: argparse.Namespace, suite: TaskSuite, config: GRPOConfig, source: str, accelerator: Accelerator
) -> None:
    """A run with every seed of ``--seeds``, one after the other, and their mean; arguments as those of `run`."""
    for seed in args.seeds:
        if accelerator.is_main_process:
            print(f"seed {seed}", flush=True)
        run(args, suite, of_seed(config, seed), source, accelerator)
        accelerator.free_memory()
    if accelerator.is_main_process:
        report_seeds(config, args.seeds, lambda text: print(text, flush=True))


def make_accelerator(mixed_precision: str = "no") -> Accelerator:
    """Make this before anything else asks accelerate for its state: the first one decides on the processes."""
    # DeepSpeed on a CPU; elsewhere the default
    backend = "gloo" if os.environ.get("DS_ACCELERATOR") == "cpu" else "nccl"
    # the others wait while process 0 writes a checkpoint and the longest episodes end; NCCL gives up after 10 minutes
    handlers: list[Any] = [InitProcessGroupKwargs(backend=backend, timeout=timedelta(hours=2))]
    # a launcher's --mixed_precision counts where the flag is not used
    precision = None if mixed_precision == "no" else mixed_precision
    return Accelerator(mixed_precision=precision, kwargs_handlers=handlers)


def run(args: argparse.Namespace, suite: TaskSuite, config: GRPOConfig, source: str, accelerator: Accelerator) -> None:
    """Evaluate, train, evaluate; print success before and after and write everything into the output folder.

    Args:
        args: the flags, resolved.
        suite: the tasks.
        config: of the run.
        source: name or folder of the policy.
        accelerator: of `make_accelerator`.
    """
    set_seed(config.seed)
    model, tokenizer = load_policy(source, args.attn_implementation, args.gradient_checkpointing)
    # ZeRO-3 shards weights while they are loaded, whatever zero3_init_flag says; those cannot be copied later
    sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    again = sharded and config.beta > 0 and args.lora_rank is None
    say = print if accelerator.is_main_process else lambda *a, **k: None
    sampling = config.sampling
    say(
        f"{'evaluating' if args.eval_only else 'training'} {args.model or 'the embedded policy'} with the settings of "
        f"{'the embedded policy' if args.embedded else 'the papers'}: learning rate {config.learning_rate:g}, "
        f"KL {config.beta:g}, {sampling.max_completion_length} tokens a turn, prompts of {sampling.max_prompt_length}",
        flush=True,
    )
    with GRPOTrainer(
        model,
        tokenizer,
        suite,
        config,
        accelerator=accelerator,
        ref_model=load_model(source, args.attn_implementation) if again else None,
        peft_config=None if args.eval_only else lora_config(args),
        progress=True,
    ) as trainer:
        if args.eval_only:
            for privileged in (False, True):
                metrics = trainer.evaluate(privileged=privileged)
                say(json.dumps({name: round(value, 4) for name, value in metrics.items()}, indent=1))
            return
        after = trainer.train(resume_from=args.resume or None, allow_changed_config=args.allow_changed_config)
        if accelerator.is_main_process:
            summarize(trainer, after, say)
