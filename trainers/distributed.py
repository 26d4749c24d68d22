"""What differs between one process, several and DeepSpeed ZeRO: counting together, backward passes, whole weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn


def zero_stage(accelerator: Any) -> int:
    """Stage of DeepSpeed ZeRO (1, 2 or 3), 0 without DeepSpeed."""
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        return 0
    return int(accelerator.state.deepspeed_plugin.zero_stage)


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights are ZeRO-3's: each process holds a part and every forward pass is a collective call."""
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())


def configure_deepspeed(accelerator: Any, max_grad_norm: float) -> None:
    """Fill in what the trainer decides; call before ``accelerator.prepare``.

    Micro-batches, their accumulation and its end are the trainer's (`accumulate_gradients`), so DeepSpeed is told that
    every micro-batch has one row and that nothing is accumulated; it clips, and it leaves out a step whose gradient is
    not finite, also in bf16. AdamW is torch's. In bf16 micro-batches are summed in float32 from stage 2 on: a sum of
    hundreds in bf16 would no longer notice the later ones.
    """
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        return
    settings = accelerator.state.deepspeed_plugin.deepspeed_config
    settings["train_micro_batch_size_per_gpu"] = 1
    settings["train_batch_size"] = accelerator.num_processes
    settings["gradient_accumulation_steps"] = 1
    settings["gradient_clipping"] = max_grad_norm
    settings["zero_allow_untested_optimizer"] = True
    settings["zero_force_ds_cpu_optimizer"] = False
    if accelerator.mixed_precision == "bf16":
        settings["bf16"] = {**settings.get("bf16", {}), "enabled": True, "check_grad_overflow": True}
        if zero_stage(accelerator) >= 2:
            settings["data_types"] = {**settings.get("data_types", {}), "grad_accum_dtype": "fp32"}


def without_buffer_broadcasts(scorer: Any) -> Any:
    """The prepared module, told not to send its buffers around before a forward pass: nothing writes them, and a
    forward pass must not be a collective call, which a process that runs out of memory would make once more."""
    if hasattr(scorer, "broadcast_buffers"):
        scorer.broadcast_buffers = False
    return scorer


def agree_max(accelerator: Any, counts: Sequence[int]) -> list[int]:
    """The largest of each count over all processes; collective."""
    if accelerator.num_processes == 1:
        return list(counts)
    gathered = accelerator.gather(torch.tensor([list(counts)], device=accelerator.device))
    return gathered.max(0).values.tolist()


def backward(accelerator: Any, scorer: Any, loss: Tensor, last: bool) -> None:
    """Add the gradient of one micro-batch; in the last one of a step, gradients are reduced over processes."""
    if zero_stage(accelerator):
        scorer.set_gradient_accumulation_boundary(is_boundary=last)
        scorer.backward(loss)
    else:
        accelerator.backward(loss)


def no_sync(accelerator: Any, scorer: Any, last: bool) -> contextlib.AbstractContextManager[Any]:
    """The context of one micro-batch: no reduction before the last one. DeepSpeed is told in `backward` instead."""
    if last or zero_stage(accelerator):
        return contextlib.nullcontext()
    return accelerator.no_sync(scorer)


@contextlib.contextmanager
def gathered(parameters: Sequence[nn.Parameter], modifier_rank: int | None = None) -> Iterator[None]:
    """Inside, the parameters are whole on every process; collective for sharded ones, free for others.

    Args:
        parameters: of one model.
        modifier_rank: the process whose changes inside are kept and sent to the others; None forbids changes.
    """
    sharded = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=modifier_rank):
        yield


@contextlib.contextmanager
def sharded_for_generation(scorer: Any) -> Iterator[None]:
    """Inside, ZeRO-3's weights stay sharded and every token is a collective call on all processes.

    DeepSpeed writes down the order of modules from one forward pass of the whole scorer to the next, and plans from it
    which weights to fetch early and which to keep. Generation calls the model inside and would become a part of that.
    """
    if not is_sharded(scorer):
        yield
        return
    forget_order(scorer)
    try:
        yield
    finally:
        forget_order(scorer)


def forget_order(scorer: Any) -> None:
    """Let DeepSpeed forget the order of modules that it has seen, and put every weight back into its parts."""
    offload = scorer.optimizer.parameter_offload
    coordinator = offload.get_param_coordinator()
    if not coordinator.is_invalid_trace():
        coordinator._invalidate_trace()
    offload.partition_all_parameters()


@contextlib.contextmanager
def whole_for_generation(scorer: Any) -> Iterator[None]:
    """Inside, every process can run the model at its own pace: ZeRO-3's weights are gathered once and left alone.

    Its hooks, which would shard them again after the first forward pass, are away meanwhile. Collective at both ends.
    """
    if not is_sharded(scorer):
        yield
        return
    offload = scorer.optimizer.parameter_offload
    with gathered(list(offload.module.parameters())):
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks.clear()
        offload.backward_hooks.clear()
        for parameter in offload.module.parameters():
            parameter.ds_active_sub_modules.clear()
        try:
            yield
        finally:
            offload._register_deepspeed_module(offload.module)


@torch.no_grad()
def full_weights(module: nn.Module, keep: bool = True, trainable_only: bool = False) -> dict[str, Tensor]:
    """Copies of a module's parameters on the CPU, one gathered at a time; collective for sharded ones.

    Args:
        module: bare, not wrapped.
        keep: False where this process only takes part; the result is then empty.
        trainable_only: leave frozen parameters out.
    """
    weights = {}
    for name, parameter in module.named_parameters():
        if trainable_only and not parameter.requires_grad:
            continue
        with gathered([parameter]):
            if keep:
                weights[name] = parameter.detach().cpu().clone()
    return weights


@torch.no_grad()
def load_full_weights(module: nn.Module, weights: Mapping[str, Tensor], names: Sequence[str] | None = None) -> None:
    """Put whole weights back; collective for sharded parameters, for which only process 0 needs to hold any.

    Args:
        module: bare, not wrapped.
        weights: by parameter name; may be empty on other processes than 0 of a sharded module.
        names: the parameters to set; None takes those of `weights`.

    Raises:
        KeyError: a parameter to set is missing in `weights`.
    """
    wanted = set(weights if names is None else names)
    for name, parameter in module.named_parameters():
        if name not in wanted:
            continue
        sharded = hasattr(parameter, "ds_id")
        with gathered([parameter], modifier_rank=0):
            if not sharded or torch.distributed.get_rank() == 0:
                parameter.copy_(weights[name])


def make_sharded_reference(accelerator: Any, module: nn.Module) -> Any:
    """A frozen module under ZeRO-3, so that the reference is spread over the processes like the policy."""
    import deepspeed

    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            **{
                name: value
                for name, value in accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"].items()
                if name in ("offload_param", "stage3_param_persistence_threshold", "stage3_max_live_parameters")
                and value not in ("auto", None)
            },
        },
    }
    if accelerator.mixed_precision == "bf16":
        settings["bf16"] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=module, config=settings)
    return engine
