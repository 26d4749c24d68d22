"""Options and signals go through JSON and tensors and come back; what is of another's making is refused by name."""

import json
from dataclasses import dataclass

import pytest
import torch

from turncredit.credit.align import TaskBlock
from turncredit.trainers.packed import packed, same, unpacked


@dataclass(frozen=True)
class Foreign:
    value: float


def test_what_is_packed_comes_back():
    block = TaskBlock(torch.arange(2), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long), torch.eye(2),
                      torch.zeros(2, 2, dtype=torch.bool))  # fmt: skip
    tensors = {}
    value = {"gamma": 0.1, "none": None, "pair": (1, "a"), "list": [True, {"x": float("inf")}], "blocks": (block,)}
    back = unpacked(json.loads(json.dumps(packed(value, "options", tensors))), tensors)
    assert {name: back[name] for name in back if name != "blocks"} == {k: v for k, v in value.items() if k != "blocks"}
    assert isinstance(back["blocks"][0], TaskBlock)
    assert all(torch.equal(getattr(back["blocks"][0], name), getattr(block, name)) for name in vars(block))
    assert "options.blocks.0.similarity" in tensors


@pytest.mark.parametrize("value", [Foreign(1.0), {1: 2}, print])
def test_what_is_not_ours_is_refused(value):
    with pytest.raises(TypeError, match="packed: options must be numbers, text or tensors to be saved, got"):
        packed(value, "options", {})


@pytest.mark.parametrize("name", ["os:system", "turncredit.trainers.packed:packed", "turncredit.credit:nothing"])
def test_only_dataclasses_of_the_library_are_made(name):
    with pytest.raises(ValueError, match="record must name a dataclass of turncredit"):
        unpacked({"record": name, "fields": {}}, {})


def test_signals_are_the_same_inside_the_mask():
    mask = torch.tensor([[True, False]])
    assert same(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]]), mask)
    assert not same(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.5, 2.0]]), mask)
    assert not same(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]).double(), mask)
    assert not same(None, mask, mask)
    assert same(None, None, mask)
