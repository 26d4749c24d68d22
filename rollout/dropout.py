"""Dropout turned off for good, as training wants it, or for a while, as a look at a model does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


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
