"""Modules attached to the policy, such as a value head: how fast they learn, and their weights for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..rollout.options import check_options, number
from .distributed import full_weights, load_full_weights


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that an optimiser gets."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def lr_scale(name: str, module: nn.Module) -> float:
    """What the run's learning rate is multiplied by for an attached module: its ``lr_scale``, or 1.

    Raises:
        TypeError, ValueError: it is not a number above 0.
    """
    options = {"lr_scale": getattr(module, "lr_scale", 1.0)}
    return float(
        check_options(f"make_policy: modules[{name!r}]", options, {"lr_scale": number(above=True)})["lr_scale"]
    )


def attached_state(scorer: Any, keep: bool = True) -> dict[str, Tensor]:
    """Weights and buffers of the attached modules, on the CPU; collective for sharded ones.

    Args:
        scorer: a `PolicyScorer`, bare or prepared.
        keep: False where this process only takes part; the result is then empty.
    """
    attached = getattr(scorer, "module", scorer).attached
    state = full_weights(attached, keep)
    if keep:
        names = dict(attached.named_parameters(remove_duplicate=False))
        state |= {name: value.cpu().clone() for name, value in attached.state_dict().items() if name not in names}
    return state


def load_attached(scorer: Any, state: Mapping[str, Tensor]) -> None:
    """Put back what `attached_state` returned, the same on every process; collective for sharded modules.

    Raises:
        ValueError: it is of other modules than those that are attached.
    """
    attached = getattr(scorer, "module", scorer).attached
    shapes = {name: tuple(getattr(value, "ds_shape", value.shape)) for name, value in attached.named_parameters()}
    buffers = {name: value for name, value in attached.named_buffers() if name in attached.state_dict()}
    shapes |= {name: tuple(value.shape) for name, value in buffers.items()}
    given = {name: tuple(value.shape) for name, value in state.items()}
    if given != shapes:
        wrong = sorted(name for name in {*given, *shapes} if given.get(name) != shapes.get(name))
        raise ValueError(
            f"load_attached: state must be that of the attached modules {list(attached)}, got another for {wrong[:3]}; "
            "attach the modules that the checkpoint was written with"
        )
    load_full_weights(attached, state, [name for name in state if name not in buffers])
    for name, buffer in buffers.items():
        buffer.copy_(state[name])
