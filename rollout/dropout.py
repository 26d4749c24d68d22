"""Dropout turned off for good, as training wants it, or for a while, as a look at a model does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

_SIMPLE = (bool, int, float, type(None))


def disable_dropout(model: nn.Module) -> None:
    """Turn off every dropout, modules and attention's own rates alike: a first update's ratio must be 1."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@contextlib.contextmanager
def settings_kept(model: nn.Module) -> Iterator[None]:
    """Inside, numbers of modules and of their configurations may be changed; afterwards they are as they were."""
    owners: dict[int, Any] = {id(module): module for module in model.modules()}
    for module in list(owners.values()):
        config = getattr(module, "config", None)
        if hasattr(config, "__dict__"):
            owners[id(config)] = config
    saved = [(owner, {n: v for n, v in vars(owner).items() if isinstance(v, _SIMPLE)}) for owner in owners.values()]
    try:
        yield
    finally:
        for owner, values in saved:
            for name, value in values.items():
                if vars(owner).get(name, owner) is not value:
                    setattr(owner, name, value)
