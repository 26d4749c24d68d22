"""The frozen reference of the KL term: another model, the policy with its adapter off, or its weights of the start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..rollout.limits import embedding_rows
from ..rollout.scoring import PolicyScorer
from .distributed import gathered
from .snapshots import TeacherSnapshot


class AdapterOff:
    """The reference of a policy with a fresh LoRA adapter: the same weights, the adapter switched off meanwhile."""

    def __init__(self, module: PolicyScorer):
        self.module = module

    def __call__(self, *arguments: Any) -> Any:
        with self.module.model.disable_adapter():
            return self.module(*arguments)


class InitialWeights:
    """The reference of any other adapter: the policy with its trainable weights as they were at the start.

    Under ZeRO-3 every method is a collective call. Scoring many rows takes `swapped_in` around it, so that weights are
    exchanged once and not with every forward pass.

    Args:
        module: the bare policy; its trainable weights are copied to the CPU now.
        scoring: what scores: the same, or DeepSpeed's engine around it.
    """

    def __init__(self, module: PolicyScorer, scoring: Any):
        self.module, self.scoring = module, scoring
        self.snapshot = TeacherSnapshot(module.model, "stale")
        self.inside = False

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the weights of the start; afterwards its own, bit for bit."""
        with self.snapshot.swapped_in():
            self.inside = True
            try:
                yield
            finally:
                self.inside = False

    def __call__(self, *arguments: Any) -> Any:
        with contextlib.nullcontext() if self.inside else self.swapped_in():
            return self.scoring(*arguments)


def speaking(reference: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which a reference scores."""
    return reference.swapped_in() if isinstance(reference, InitialWeights) else contextlib.nullcontext()


@torch.no_grad()
def adapter_is_neutral(model: Any) -> bool:
    """Whether switching the adapter off gives the model's present function, whatever is trained later.

    True where every trainable weight is a LoRA factor and one factor of every pair is zero; collective for sharded
    weights. A trained adapter, an initialisation that changes the base (PiSSA, OLoRA, CorDA, LoftQ), trainable biases,
    magnitudes (DoRA), tokens or whole modules are not neutral.
    """
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    factors: set[int] = set()
    for module in model.modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            return False
        if not isinstance(module, BaseTunerLayer):
            continue
        if not isinstance(module, LoraLayer):
            return False
        for name in module.active_adapters:
            pair = _factors(module, name)
            if pair is None or not any(_is_zero(weight) for weight in pair):
                return False
            factors.update(map(id, pair))
    trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return bool(factors) and trainable <= factors


def _factors(module: Any, name: str) -> tuple[nn.Parameter, nn.Parameter] | None:
    if name in module.lora_A:
        return module.lora_A[name].weight, module.lora_B[name].weight
    if name in module.lora_embedding_A:
        return module.lora_embedding_A[name], module.lora_embedding_B[name]
    return None


def _is_zero(weight: nn.Parameter) -> bool:
    with gathered([weight]):
        return not bool(weight.any())


def check_reference(model: PreTrainedModel, other: PreTrainedModel, name: str = "ref_model") -> None:
    """Refuse a reference, or a teacher, that is, or holds, a part of the policy.

    Raises:
        ValueError: shared weights, or another vocabulary.
    """
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in own for parameter in other.parameters()):
        raise ValueError(
            f"GRPOTrainer: {name} must not share weights with model, got one that would be trained along; leave it "
            "out: the policy itself takes its part"
        )
    rows = embedding_rows(model), embedding_rows(other)
    if rows[0] != rows[1]:
        raise ValueError(
            f"GRPOTrainer: {name} must have the model's vocabulary, got embeddings of {rows[1]} and {rows[0]} rows; "
            "choose a model of the same family, or leave it out"
        )


def match_dtypes(reference: Any, model: Any) -> None:
    """Give the reference's weights the policy's precision, so that equal weights score equally."""
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    for name, parameter in reference.named_parameters():
        kind = kinds.get(name, parameter.dtype)
        if parameter.is_floating_point() and kind.is_floating_point and kind != parameter.dtype:
            parameter.data = parameter.data.to(kind)
