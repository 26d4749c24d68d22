"""Values of options and signals as JSON beside a dict of tensors, and back: numbers, text, tensors, our dataclasses."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

_OURS = __name__.partition(".")[0]


def packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors are put into `tensors`, under `name` and names that begin with it.

    Raises:
        TypeError: it is, or holds, something else than numbers, text, None, tensors, lists, tuples, mappings from text,
            and dataclasses of this library.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, (list, tuple)):
        parts = [packed(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: packed(part, f"{name}.{key}", tensors) for key, part in value.items()}}
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith(f"{_OURS}."):
        parts = {own.name: getattr(value, own.name) for own in fields(value) if own.init}
        inside = {key: packed(part, f"{name}.{key}", tensors) for key, part in parts.items()}
        return {"record": f"{kind.__module__}:{kind.__qualname__}", "fields": inside}
    raise TypeError(
        f"packed: {name} must be numbers, text or tensors to be saved, got {kind.__name__}; save it yourself"
    )


def unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `packed` was given.

    Raises:
        ValueError: it names a class that is no dataclass of this library.
    """
    if isinstance(value, list):
        return [unpacked(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(unpacked(part, tensors) for part in value["tuple"])
    if "mapping" in value:
        return {key: unpacked(part, tensors) for key, part in value["mapping"].items()}
    module, _, name = value["record"].partition(":")
    kind = getattr(importlib.import_module(module), name, None) if module.startswith(f"{_OURS}.") else None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(f"unpacked: record must name a dataclass of {_OURS}, got {value['record']!r}; was it altered?")
    return kind(**{key: unpacked(part, tensors) for key, part in value["fields"].items()})


def same(first: Any, second: Any, mask: Tensor) -> bool:
    """Whether two signals are equal bit for bit, numbers per token inside the ``[M, T]`` mask alone."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return first is None and second is None
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.shape == mask.shape and first.is_floating_point():
        first, second = first[mask], second[mask]
    return torch.equal(first, second)
