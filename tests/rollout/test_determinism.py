"""Train mode without chance, eval mode as it was."""

import copy

import pytest
import torch
from helpers.families import KINDS, build
from torch import nn

from turncredit.rollout.determinism import make_deterministic

IDS = torch.arange(3, 15).reshape(2, 6)


@torch.no_grad()
def logits(model, training):
    return model.train(training)(input_ids=IDS).logits


@pytest.mark.parametrize("family", ["gpt2", "opt", "bart", "mixtral", "phimoe", "persimmon", "falcon"])
def test_train_mode_is_eval_mode_and_eval_mode_is_left_alone(family):
    model = build(family, KINDS[family], chance=0.3)
    before = logits(model, False)
    assert (logits(model, True) - before).abs().max() > 1e-3
    assert make_deterministic(model) == []
    for training in (True, False, True):
        torch.testing.assert_close(logits(model, training), before, atol=1e-5, rtol=0)


def test_phimoe_keeps_the_jitter_that_eval_mode_reads():
    """Its routers stay in eval mode: the same number decides which experts eval mode takes."""
    model = build("phimoe", "PhimoeForCausalLM", router_jitter_noise=0.01)
    before = logits(model, False)
    make_deterministic(model)
    torch.testing.assert_close(logits(model, True), before, atol=1e-5, rtol=0)
    assert model.config.router_jitter_noise == 0.01
    assert model.training
    assert model.model.layers[0].training
    copied = copy.deepcopy(model)
    torch.testing.assert_close(logits(copied, True), before, atol=1e-5, rtol=0)
    assert logits(model, True).equal(logits(copied, True))


def test_other_modules_and_what_is_left_is_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop_path = torch.tensor(0.1)
            self.layerdrop = 0.2
            self.drop_path_rates = [0.1, 0.2]
            self.norm = nn.BatchNorm1d(3)
            self.drop = nn.Dropout2d(0.4)
            self.noise = nn.RReLU()

    odd = Odd().train()
    assert make_deterministic(odd) == [".drop_path=tensor(0.1000)"]
    assert (odd.layerdrop, odd.drop_path_rates, odd.drop.p) == (0.0, [0.0, 0.0], 0.0)
    odd.train()
    assert not odd.norm.training
    assert not odd.noise.training
    assert odd.drop.training
