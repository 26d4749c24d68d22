"""AdamW's state as whole tensors by parameter name, whatever the number of processes and the ZeRO stage."""

from __future__ import annotations

from typing import Any

import torch

from .distributed import gathered, zero_stage

_MOMENTS = ("exp_avg", "exp_avg_sq")


def collect_optimizer(accelerator: Any, scorer: Any, optimizer: Any) -> dict[str, Any]:
    """What `restore_optimizer` needs, on the CPU of process 0; under ZeRO collective, one parameter whole at a time.

    Returns:
        ``{"adamw": state_dict}`` without ZeRO; under ZeRO ``{"zero": {name: {"fp32", "exp_avg", "exp_avg_sq"}},
        "step": updates}`` with whole float32 tensors, from which any ZeRO stage and number of processes can go on.
        Empty on processes other than 0 under ZeRO.
    """
    if not zero_stage(accelerator):
        return {"adamw": optimizer.state_dict()}
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if _flat_groups(scorer.optimizer) is None:
        _make_state(scorer.optimizer)
    whole: dict[str, dict[str, torch.Tensor]] = {}
    for name, parameter in _trainable(scorer):
        values = {"fp32": safe_get_full_fp32_param(parameter)}
        values |= {key: safe_get_full_optimizer_state(parameter, key) for key in _MOMENTS}
        if accelerator.is_main_process:
            whole[name] = {
                key: value.detach().cpu().float().reshape(_shape(parameter)).clone()
                for key, value in values.items()
                if value is not None
            }
    steps = [float(state["step"]) for state in _base(scorer).state.values() if "step" in state]
    return {"zero": whole, "step": max(steps, default=0.0)}


@torch.no_grad()
def restore_optimizer(accelerator: Any, scorer: Any, optimizer: Any, saved: dict[str, Any]) -> None:
    """Put back what `collect_optimizer` returned; call after the model's own weights were loaded.

    Raises:
        ValueError: the checkpoint was written without ZeRO and the run uses it, or the other way round, or with other
            trainable weights.
    """
    stage = zero_stage(accelerator)
    if bool(stage) != ("zero" in saved):
        raise ValueError(
            f"GRPOTrainer.resume: accelerator must use {'DeepSpeed ZeRO' if 'zero' in saved else 'no DeepSpeed'}, as "
            f"in the checkpoint, got ZeRO stage {stage}; load its model folder to start anew from the weights"
        )
    if not stage:
        here, there = (
            [len(g["params"]) for g in groups] for groups in (optimizer.param_groups, saved["adamw"]["param_groups"])
        )
        if here != there:
            raise _other_weights(f"groups of {here} for {there}")
        own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(saved["adamw"])
        for group, options in zip(
            optimizer.param_groups, own, strict=True
        ):  # weight decay is the run's, not the file's
            group.update(options)
        return
    if other := sorted({name for name, _ in _trainable(scorer)} ^ saved["zero"].keys()):
        raise _other_weights(f"others, such as {other[0]}")
    _make_state(scorer.optimizer)
    for name, parameter in _trainable(scorer):
        values = {key: value.to(accelerator.device) for key, value in saved["zero"][name].items()}
        for key, value in values.items():
            _put(parameter, value, key)
        with gathered([parameter], modifier_rank=0):
            parameter.copy_(values["fp32"].to(parameter.dtype))
    for state in _base(scorer).state.values():
        if "step" in state:
            state["step"] = torch.as_tensor(saved["step"], dtype=torch.float32)


def _put(parameter: Any, value: torch.Tensor, key: str) -> None:
    """Set a parameter's float32 copy or a moment of it; every process has the whole value and keeps its part."""
    from deepspeed import utils

    kind, group = "full", getattr(parameter, "ds_process_group", None)
    if hasattr(parameter, "ds_id") and value.numel() % torch.distributed.get_world_size(group):
        # the last part is padded, which DeepSpeed's function for whole values does not know
        size, rank = parameter.partition_numel(), torch.distributed.get_rank(group)
        whole = value.new_zeros(size * torch.distributed.get_world_size(group))
        whole[: value.numel()] = value.flatten()
        kind, value = "local", whole[size * rank : size * (rank + 1)]
    if key == "fp32":
        getattr(utils, f"safe_set_{kind}_fp32_param")(parameter, value)
    else:
        getattr(utils, f"safe_set_{kind}_optimizer_state")(parameter, value, key)


def _other_weights(got: str) -> ValueError:
    return ValueError(
        f"GRPOTrainer.resume: trainable weights must be those of the checkpoint, got {got}; train the same weights and "
        "attach the same modules"
    )


def _make_state(optimizer: Any) -> None:
    """Moments of 0 where DeepSpeed has none before its first step, and the links from parameters to them."""
    flat = _flat_groups(optimizer)
    for values in optimizer.single_partition_of_fp32_groups if flat is None else flat:
        state = optimizer.optimizer.state[values]
        if not state:
            state["step"] = torch.zeros(())
            state |= {key: torch.zeros_like(values) for key in _MOMENTS}
    if flat is None:
        # DeepSpeed links once, behind the step of its first group, when the others have no moments yet
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _flat_groups(optimizer: Any) -> Any:
    """ZeRO-3's flat parts; None under the other stages."""
    return getattr(optimizer, "fp32_partitioned_groups_flat", None)


def _trainable(scorer: Any) -> list[tuple[str, Any]]:
    return [(name, parameter) for name, parameter in scorer.module.named_parameters() if parameter.requires_grad]


def _shape(parameter: Any) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def _base(scorer: Any) -> torch.optim.Optimizer:
    """The torch optimiser inside DeepSpeed's."""
    return scorer.optimizer.optimizer
