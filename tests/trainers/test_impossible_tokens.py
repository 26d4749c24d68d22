"""A head that rules tokens out (a logit of -inf) costs nothing but those tokens."""

from __future__ import annotations

import math

import torch
from accelerate import Accelerator
from helpers.gradient_cases import config, make_rows
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.terms import SDARTerm, objective


def test_loss_entropy_gradients_and_metrics_stay_finite():
    rows, _ = make_rows()
    forbidden = 1  # no row holds it
    model = tiny_model()
    handle = model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([forbidden]), -torch.inf)
    )
    terms = objective(config(), [SDARTerm(coef=0.1)])
    metrics = accumulate_gradients(
        Accelerator(cpu=True), PolicyScorer(model), rows, config(), pad_token_id=0, terms=terms
    )
    handle.remove()
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert 0 < metrics["entropy"] < math.log(model.config.vocab_size)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
