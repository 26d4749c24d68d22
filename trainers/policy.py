"""The policy as the trainer holds it: wrapped for training, bare for generation, beside its frozen reference."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import nn

from ..rollout._preflight import HALF_PRECISION, NOTHING_TRAINABLE
from ..rollout.determinism import make_deterministic
from ..rollout.scoring import PolicyScorer
from .attached import lr_scale, trainable
from .config import GRPOConfig
from .distributed import (
    configure_deepspeed,
    gathered,
    is_sharded,
    make_sharded_reference,
    without_buffer_broadcasts,
    zero_stage,
)
from .reference import AdapterOff, InitialWeights, adapter_is_neutral, check_reference, match_dtypes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Policy:
    """Args:
    scorer: a `PolicyScorer`, prepared by Accelerate: gradients come from here.
    optimizer: AdamW over the trainable parameters, prepared likewise.
    model: the bare model: generates, is saved.
    scoring: what scores without gradients: the bare scorer, or DeepSpeed's engine where weights are sharded.
    reference: the frozen reference as a scorer, or None.
    initial: digest of the weights that training started from.
    given: whether the reference is one that was passed, which may differ from the policy.
    """

    scorer: Any
    optimizer: Any
    model: Any
    scoring: Any
    reference: Any
    initial: str
    given: bool = False


def make_policy(
    accelerator: Any,
    model: Any,
    config: GRPOConfig,
    ref_model: Any,
    peft_config: Any,
    modules: Mapping[str, nn.Module] | None = None,
) -> Policy:
    """Prepare model, optimiser and reference for however many processes there are.

    The reference of a policy with an adapter takes no second model: it is the policy with its adapter off where that
    is the policy's start, and stays it (`adapter_is_neutral`), else its trainable weights of the start, swapped in.

    Args:
        accelerator: decides on processes, precision and DeepSpeed.
        model: a causal language model; trained in place.
        config: beta, learning rate, clipping.
        ref_model: the reference of the KL term instead of the policy as it is now.
        peft_config: a peft configuration: an adapter is put on the model.
        modules: to attach to the policy and to train with it, by name (see `PolicyScorer`). One with an attribute
            ``lr_scale`` learns at so many times the run's learning rate.

    Raises:
        ValueError: an accelerator that this trainer cannot drive, adapters or weights that would not be trained as
            they should (`check_adapters`, `make_precise`), a ``lr_scale`` that is not above 0, a reference that shares
            weights with the model, or one that would have to be copied from weights that are sharded already.
    """
    check_accelerator(accelerator)
    check_adapters(model, peft_config)
    configure_deepspeed(accelerator, config.max_grad_norm)
    make_deterministic(model)
    initial = weights_digest(model)
    if ref_model is not None:
        check_reference(model, ref_model)
    if peft_config is not None:
        model = add_adapter(model, peft_config)
        make_deterministic(model)
    make_precise(accelerator, model)
    adapted = hasattr(model, "disable_adapter")
    neutral = adapted and adapter_is_neutral(model)
    if peft_config is not None and not neutral:  # such an adapter may have changed the weights under it
        initial = hashlib.sha256(f"{initial} {weights_digest(model, frozen=True)}".encode()).hexdigest()[:16]
    frozen = None
    if config.beta > 0 and (ref_model is not None or not adapted):
        if ref_model is None and is_sharded(model):
            raise ValueError(
                "GRPOTrainer: ref_model must be given when ZeRO-3 sharded the model while it was loaded, got None; "
                "load the same model a second time, or set beta=0"
            )
        frozen = copy.deepcopy(model) if ref_model is None else ref_model
        match_dtypes(frozen, model)
    bare = PolicyScorer(model, modules)
    if config.share_prefixes:
        bare.settle_branches()
    groups: list[dict[str, Any]] = [{"params": trainable(model)}]
    for name, module in bare.attached.items():
        make_deterministic(module)
        if weights := trainable(module):
            make_precise(accelerator, module)
            groups.append({"params": weights, "lr_scale": lr_scale(name, module)})
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
    scorer: Any
    scorer, optimizer = accelerator.prepare(bare, optimizer)
    scorer = without_buffer_broadcasts(scorer)
    module: Any = accelerator.unwrap_model(scorer)
    scoring = scorer if zero_stage(accelerator) == 3 else module
    reference: Any = None
    if frozen is not None:
        copied = PolicyScorer(frozen.eval().requires_grad_(False))
        copied.branches = bare.branches if ref_model is None else None
        reference = prepare_reference(accelerator, copied, config)
    elif config.beta > 0:
        reference = AdapterOff(module) if neutral else InitialWeights(module, scoring)
    return Policy(scorer, optimizer, module.model, scoring, reference, initial, ref_model is not None)


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


def check_adapters(model: Any, peft_config: Any) -> None:
    """Refuse adapters that would not be trained, scored or saved as they should.

    Raises:
        ValueError: a second adapter on top of one, an adapter that scoring would not see, one that is merged into its
            base, or one without a `PeftModel` around it.
    """
    configs = getattr(model, "peft_config", None) if hasattr(model, "get_base_model") else None
    if configs is None and getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"GRPOTrainer: model must carry its adapter as a PeftModel, got {type(model).__name__} with load_adapter "
            "or add_adapter, whose checkpoints could not be resumed; use peft.PeftModel.from_pretrained(model, folder, "
            "is_trainable=True)"
        )
    if not configs:
        return
    if peft_config is not None:
        raise ValueError(
            f"GRPOTrainer: peft_config must be None where the model has an adapter already, got "
            f"{type(peft_config).__name__} beside {sorted(configs)}; leave it out, or pass "
            "model.merge_and_unload()"
        )
    for name, adapter in configs.items():
        if getattr(adapter, "is_prompt_learning", False):
            raise ValueError(
                f"GRPOTrainer: adapters must put their weights into the layers, got {name!r} = "
                f"{type(adapter).__name__}; use LoRA"
            )
    if any(getattr(module, "merged_adapters", None) for module in model.modules()):
        raise ValueError(
            "GRPOTrainer: adapters must not be merged into the model while they are trained, got merged ones; call "
            "model.unmerge_adapter()"
        )


def make_precise(accelerator: Any, model: Any) -> None:
    """Give trainable weights float32 where autocast runs in bf16; DeepSpeed's bf16 keeps float32 copies of its own.

    Raises:
        ValueError: nothing is trainable, or trainable weights in half precision in a run without bf16: AdamW's small
            steps would be rounded away.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"GRPOTrainer: model must have a trainable weight, got none in {type(model).__name__}; {NOTHING_TRAINABLE}"
        )
    coarse = {name: p for name, p in trainable.items() if p.dtype in (torch.bfloat16, torch.float16)}
    if not coarse:
        return
    kind = str(next(iter(coarse.values())).dtype).removeprefix("torch.")
    if accelerator.mixed_precision != "bf16":
        raise ValueError(
            f"GRPOTrainer: trainable weights must be float32, got {kind} in {len(coarse)} of {len(trainable)}, such as "
            f"{min(coarse)}; {HALF_PRECISION}"
        )
    if zero_stage(accelerator):
        return
    entries = sum(parameter.numel() for parameter in coarse.values())
    logger.warning("%d trainable entries in %s are trained in float32 (%.1f GB more)", entries, kind, entries * 2 / 1e9)
    for parameter in coarse.values():
        parameter.data = parameter.data.float()


def prepare_reference(accelerator: Any, reference: PolicyScorer, config: GRPOConfig) -> Any:
    """The frozen reference in the policy's precision, so that equal weights have a KL of exactly 0 in bf16 too."""
    if config.share_prefixes:
        reference.settle_branches()
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
def weights_digest(model: nn.Module, frozen: bool = False) -> str:
    """A short hash of up to 64 evenly spread entries of every (frozen) parameter; collective for sharded ones."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if frozen and parameter.requires_grad:
            continue
        with gathered([parameter]):
            flat = parameter.detach().flatten()
            sample = flat[:: max(len(flat) // 64, 1)][:64].float().cpu()
        digest.update(name.encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]
