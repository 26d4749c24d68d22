"""Which policy a training script was asked for, and the model, tokenizer and adapter that come of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..resume import RUN_CARD, find_run


def resolve_policy(args: argparse.Namespace, embedded: Path | None, suite: str, output_dir: str) -> None:
    """Set ``args.model`` to what is loaded and ``args.embedded`` to whether it is the embedded policy, trained or not.

    ``--model`` may name a checkpoint of a run; ``--eval-only`` with ``--resume`` is the newest checkpoint of the output
    folder, or the one that ``--resume`` names.

    Args:
        args: the parsed flags.
        embedded: folder of the embedded policy; None where there is none.
        suite: name of the suite, which a policy of compact prompts was trained on.
        output_dir: the run's folder.

    Raises:
        SystemExit: no policy is named, or what is named cannot be loaded here.
    """
    source = args.model
    if args.eval_only and args.resume:
        try:
            found = find_run(Path(output_dir) / "checkpoints", args.resume)
        except (OSError, ValueError) as error:
            raise SystemExit(f"--resume: {error}") from None
        if found is None:
            raise SystemExit(f"--resume: there is no checkpoint in {output_dir}; name one, or train first")
        source = str(found)
    if source is None and embedded is None:
        raise SystemExit(
            "--model must name the policy to train, got none; pass a model's name or folder (the library's embedded "
            "policies lie in a checkout's examples/assets)"
        )
    args.embedded = source is None
    if source is None:
        return
    folder = Path(source)
    if (folder / "trainer_state.json").is_file():
        folder = folder / "model"
    elif (folder / "checkpoints").is_dir():
        raise SystemExit(f"--model: {source} is a run; name one of its checkpoints, such as checkpoints/step-000020")
    args.model = str(folder) if folder.is_dir() else source
    args.embedded = folder.is_dir() and embedded is not None and _reads_compact_prompts(folder, embedded, suite)


def _reads_compact_prompts(folder: Path, embedded: Path, suite: str) -> bool:
    """By what the trainer noted beside the model, or, where it noted nothing, by the vocabulary."""
    try:
        known: dict[str, Any] = json.loads((folder / RUN_CARD).read_text(encoding="utf-8"))["suite"]
    except (OSError, ValueError, KeyError, TypeError):
        return _vocabulary(folder) == _vocabulary(embedded)
    compact = known.get("build_messages") == "compact_messages"
    if compact and known.get("name") != suite:
        raise SystemExit(f"--model: {folder} was trained on compact prompts of {known.get('name')}, not of {suite}")
    return compact


def _vocabulary(folder: Path) -> Any:
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load_policy(
    source: str, attn_implementation: str | None = None, gradient_checkpointing: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model to train in float32 (mixed precision casts on the fly) and its tokenizer, which gets a pad token."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = load_model(source, attn_implementation)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, tokenizer


def load_model(source: str, attn_implementation: str | None = None) -> PreTrainedModel:
    """The model's weights, a second time where a reference cannot be copied; of an adapter's folder, both merged."""
    options = {"attn_implementation": attn_implementation} if attn_implementation else {}
    if not (Path(source) / "adapter_config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    from peft import PeftConfig, PeftModel

    base: Any = PeftConfig.from_pretrained(source).base_model_name_or_path
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options)
    return PeftModel.from_pretrained(model, source).merge_and_unload().requires_grad_(True)


def lora_config(args: argparse.Namespace) -> Any:
    """The adapter that the flags ask for, or None."""
    if args.lora_rank is None:
        return None
    from peft import LoraConfig

    targets = args.lora_targets if args.lora_targets == "all-linear" else args.lora_targets.split(",")
    alpha = args.lora_alpha or 2 * args.lora_rank
    return LoraConfig(r=args.lora_rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
