"""The policy as the trainer holds it: wrapped for training, bare for generation, beside its frozen reference."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import nn

from ..rollout.scoring import PolicyScorer
from .config import GRPOConfig
from .determinism import make_deterministic
from .distributed import (
    configure_deepspeed,
    gathered,
    is_sharded,
    make_sharded_reference,
    without_buffer_broadcasts,
    zero_stage,
)


class AdapterOff:
    """The reference of a policy with a LoRA adapter: the same weights, the adapter switched off while they score."""

    def __init__(self, module: PolicyScorer):
        self.module = module

    def __call__(self, *arguments: Any) -> Any:
        with self.module.model.disable_adapter():
            return self.module(*arguments)


@dataclass(frozen=True)
class Policy:
    """Args:
    scorer: a `PolicyScorer`, prepared by Accelerate: gradients come from here.
    optimizer: AdamW over the trainable parameters, prepared likewise.
    model: the bare model: generates, is saved.
    scoring: what scores without gradients: the bare scorer, or DeepSpeed's engine where weights are sharded.
    reference: the frozen reference as a scorer, or None.
    initial: digest of the weights that training started from.
    """

    scorer: Any
    optimizer: Any
    model: Any
    scoring: Any
    reference: Any
    initial: str


def make_policy(accelerator: Any, model: Any, config: GRPOConfig, ref_model: Any, peft_config: Any) -> Policy:
    """Prepare model, optimiser and reference for however many processes there are.

    Args:
        accelerator: decides on processes, precision and DeepSpeed.
        model: a causal language model; trained in place.
        config: beta, learning rate, clipping.
        ref_model: the reference of the KL term instead of a copy of the model.
        peft_config: a peft configuration: an adapter is put on the model, and the reference is the model without it.

    Raises:
        ValueError: an accelerator that this trainer cannot drive, or a reference that would have to be copied from
            weights that are sharded already.
    """
    check_accelerator(accelerator)
    configure_deepspeed(accelerator, config.max_grad_norm)
    make_deterministic(model)
    initial = weights_digest(model)
    if peft_config is not None:
        model = add_adapter(model, peft_config)
        make_deterministic(model)
    adapted = hasattr(model, "disable_adapter")
    frozen = None
    if config.beta > 0 and (ref_model is not None or not adapted):
        if ref_model is None and is_sharded(model):
            raise ValueError(
                "GRPOTrainer: ref_model must be given when ZeRO-3 sharded the model while it was loaded, got None; "
                "load the same model a second time, or set beta=0"
            )
        frozen = copy.deepcopy(model) if ref_model is None else ref_model
    bare = PolicyScorer(model)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
    )
    scorer: Any
    scorer, optimizer = accelerator.prepare(bare, optimizer)
    scorer = without_buffer_broadcasts(scorer)
    module: Any = accelerator.unwrap_model(scorer)
    scoring = scorer if zero_stage(accelerator) == 3 else module
    reference: Any = None
    if frozen is not None:
        reference = prepare_reference(accelerator, PolicyScorer(frozen.eval().requires_grad_(False)))
    elif config.beta > 0:
        reference = AdapterOff(module)
    return Policy(scorer, optimizer, module.model, scoring, reference, initial)


def check_accelerator(accelerator: Any) -> None:
    """Refuse what would train wrongly without a word.

    Raises:
        ValueError: fp16 or fp8, sharding by other means than DeepSpeed, or accumulation by Accelerate.
    """
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise ValueError(
            f'GRPOTrainer: mixed_precision must be "no" or "bf16", got {accelerator.mixed_precision!r}; use bf16: a '
            "loss scale is in no checkpoint, and the steps it leaves out would count as faults"
        )
    kind = accelerator.distributed_type
    if kind in (DistributedType.FSDP, DistributedType.MEGATRON_LM):
        raise ValueError(
            f"GRPOTrainer: accelerator must use plain processes or DeepSpeed, got {kind.value}; see examples/accelerate"
        )
    steps = accelerator.gradient_accumulation_steps
    if kind != DistributedType.DEEPSPEED and steps != 1:
        raise ValueError(
            f"GRPOTrainer: gradient_accumulation_steps of the accelerator must be 1, got {steps}; micro_batch_tokens "
            "decides on micro-batches, and Accelerate would divide the loss once more"
        )


def prepare_reference(accelerator: Any, reference: PolicyScorer) -> Any:
    """The frozen reference in the policy's precision, so that equal weights have a KL of exactly 0 in bf16 too."""
    stage = zero_stage(accelerator)
    if stage == 3:
        return make_sharded_reference(accelerator, reference)
    if not stage:
        return accelerator.prepare_model(reference, evaluation_mode=True)
    if accelerator.mixed_precision == "bf16":  # like DeepSpeed, which casts parameters and leaves buffers alone
        for parameter in reference.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return reference.to(accelerator.device)


def add_adapter(model: Any, peft_config: Any) -> Any:
    """The model with a fresh adapter; its own weights are frozen.

    Raises:
        ImportError: peft is not installed.
        ValueError: the adapter works on prompts, which scoring would not see.
    """
    try:
        from peft import get_peft_model
    except ImportError as error:
        raise ImportError("GRPOTrainer: peft_config needs the package peft; install turncredit[lora]") from error
    if peft_config.is_prompt_learning:
        raise ValueError(
            f"GRPOTrainer: peft_config must put its weights into the layers, got {type(peft_config).__name__}; use LoRA"
        )
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        model.enable_input_require_grads()
    return get_peft_model(model, peft_config)


@torch.no_grad()
def weights_digest(model: nn.Module) -> str:
    """A short hash of up to 64 evenly spread entries of every parameter; collective for sharded ones."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        with gathered([parameter]):
            flat = parameter.detach().flatten()
            sample = flat[:: max(len(flat) // 64, 1)][:64].float().cpu()
        digest.update(name.encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]
