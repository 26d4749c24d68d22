"""Train mode without chance: a first update's ratio must be 1, so a policy scores alike in train and in eval mode."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

RATES = re.compile(r"dropout|drop_?path|drop_?prob|drop_?rate|pdrop|layer_?drop", re.IGNORECASE)
JITTER = re.compile(r"jitter|router_?noise", re.IGNORECASE)


def make_deterministic(model: nn.Module) -> list[str]:
    """Take chance out of train mode, in place, and leave eval mode exactly as it was.

    Rates of dropout, drop path and layerdrop become 0: those of modules, those that modules keep as numbers, and those
    in the configurations that modules hold, because some families read them there in every forward pass. Modules with
    jitter (routers; in PhiMoE the number also decides which experts eval mode takes, so it must stay) and batch norms
    stay in eval mode for good. All others follow ``model.train()``: gradient checkpointing does nothing in eval mode.

    A configuration saved afterwards holds the rates of 0: a checkpoint loads as before, without dropout.

    Args:
        model: any model; call it again after an adapter was added.

    Returns:
        What could not be set, as ``"path.name=value"``: rates that are no plain numbers. Usually empty; whether
        anything else is left, only a comparison of scores in both modes can tell.
    """
    left = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.RReLU | nn.modules.batchnorm._BatchNorm) or _has_jitter(module):
            module.train = types.MethodType(_stay_in_eval, module)
            module.train(False)
        for holder, name in [(module, path), *_configurations(vars(module).values(), path, seen)]:
            left.extend(_clear(holder, name))
    return left


def _stay_in_eval(module: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(module, False)


def _has_jitter(module: nn.Module) -> bool:
    return any(JITTER.search(name) and isinstance(value, float) and value for name, value in vars(module).items())


def _clear(holder: Any, path: str) -> Iterator[str]:
    """Set the rates that a module or a configuration holds to 0; yield those that are no plain numbers."""
    for name, value in list(vars(holder).items()):
        if not RATES.search(name) or isinstance(value, bool | str | dict | nn.Module | None) or callable(value):
            continue
        if isinstance(value, int | float):
            setattr(holder, name, 0.0 if value else value)
        elif isinstance(value, list | tuple) and all(isinstance(rate, int | float) for rate in value):
            setattr(holder, name, type(value)(0.0 for _ in value))
        else:
            yield f"{path}.{name}={value!r}"


def _configurations(values: Iterable[Any], path: str, seen: set[int]) -> Iterator[tuple[Any, str]]:
    """Configurations among `values` and inside them, each once, however many modules share it."""
    for value in values:
        if hasattr(value, "to_dict") and hasattr(value, "model_type") and id(value) not in seen:
            seen.add(id(value))
            yield value, f"{path}.config".strip(".")
            yield from _configurations(vars(value).values(), path, seen)


@contextlib.contextmanager
def settings_kept(model: nn.Module) -> Iterator[None]:
    """Inside, attributes of modules and of their configurations may be set; afterwards they are as they were."""
    owners: dict[int, Any] = {}

    def collect(owner: Any) -> None:
        if id(owner) in owners:
            return
        owners[id(owner)] = owner
        for value in list(vars(owner).values()):
            if hasattr(value, "to_dict") and hasattr(value, "model_type"):
                collect(value)

    for module in model.modules():
        collect(module)
    saved = [(owner, dict(vars(owner))) for owner in owners.values()]
    try:
        yield
    finally:
        for owner, attributes in saved:
            vars(owner).clear()
            vars(owner).update(attributes)
