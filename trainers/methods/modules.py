"""Modules that a method attaches to the policy: made alike on every process, and saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...rollout.limits import text_config
from ..attached import attached_state, load_attached
from ..terms import LossTerm, check_terms
from .method import Method

TAKEN = ("hidden", "divergence")
"""Names of what the scorer itself gives."""


def make_modules(
    method: Method, model: PreTrainedModel, terms: Sequence[LossTerm], seed: int
) -> Mapping[str, nn.Module]:
    """The method's modules for a model, with the same weights on every process and in every run of the seed.

    Raises:
        TypeError: something else than modules by name.
        ValueError: a name that torch does not take, or a provider or a term reads a module that is not among them.
    """
    made: Mapping[str, nn.Module] = {}
    if method.modules is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = method.modules(text_config(model).hidden_size)
    if not isinstance(made, Mapping) or not all(isinstance(module, nn.Module) for module in made.values()):
        raise TypeError(f'{method.name}: modules must give modules by name, got {made!r}; return {{"value": ...}}')
    for name in made:
        if not isinstance(name, str) or not name.isidentifier() or hasattr(nn.ModuleDict, name) or name in TAKEN:
            raise ValueError(
                f"{method.name}: modules must have names that are identifiers and no attributes of nn.ModuleDict, nor "
                f"what the scorer gives itself, {TAKEN}, got {name!r}; rename it"
            )
    check_terms(terms, modules=made)
    for provider in method.providers:
        for name in provider.own.get("modules", ()):
            if name not in made:
                raise ValueError(
                    f"{method.name}: modules must hold {name!r}, which {provider.names[0]!r} is read from, got "
                    f"{sorted(made)}; attach one by that name"
                )
    return made


class AttachedWeights:
    """The attached modules' weights, as checkpoints save them; see `turncredit.trainers.checkpoint.Stateful`."""

    def __init__(self, scorer: Any, keep: bool):
        self.scorer, self.keep = scorer, keep

    def state_dict(self) -> dict[str, Tensor]:
        return attached_state(self.scorer, self.keep)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        load_attached(self.scorer, state)
