"""Terms of the objective one by one: gradients by formula and by differences, and what a step reports."""

from __future__ import annotations

import pytest
import torch

from turncredit.trainers.losses import skill_sd_loss
from turncredit.trainers.metrics import join_steps


def test_skill_sd_gradient_is_that_of_the_whole_product():
    """d/d log pi of rho k3 with rho = pi / pi_old not detached: rho (k3 + 1 - e^-l) = rho l."""
    values = ([-1.0, -2.0, -0.3], [-0.5, -2.5, -0.3], [-1.2, -1.0, -0.3])
    now, teacher, old = (torch.tensor(v, dtype=torch.float64) for v in values)
    now.requires_grad_()
    skill_sd_loss(now, teacher, old).sum().backward()
    gap, ratio = (now - teacher).detach(), (now - old).detach().exp()
    torch.testing.assert_close(now.grad, ratio * gap)
    step = 1e-6
    for index in range(3):
        moved = [now.detach().clone() for _ in range(2)]
        moved[0][index] += step
        moved[1][index] -= step
        up, down = (skill_sd_loss(value, teacher, old).sum() for value in moved)
        assert float((up - down) / (2 * step)) == pytest.approx(float(now.grad[index]), rel=1e-5, abs=1e-8)


def test_skill_sd_in_expectation_is_the_gradient_of_the_reverse_kl():
    """Tokens from pi_old, weights rho: the mean gradient is that of sum_y pi k3, and so of KL(pi || pi_T)."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    values = ([0.0, 0.4, 0.1, -0.3], [1.0, 0.0, 0.2, 0.4])
    old, teacher = (torch.tensor(v, dtype=torch.float64).log_softmax(0) for v in values)
    now = logits.log_softmax(0)
    (got,) = torch.autograd.grad((old.exp() * skill_sd_loss(now, teacher, old)).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((now.exp() * (now - teacher)).sum(), logits)
    torch.testing.assert_close(got, expected)


def test_join_steps_by_hand():
    steps = [
        {"ratio": 1.0, "kl": 3.0, "loss": 2.0, "grad_norm": 4.0, "policy_loss": 6.0, "auxiliary_loss": 1.0,
         "num_tokens": 3.0, "policy_denominator": 1.0, "auxiliary_denominator": 5.0},
        {"ratio": 5.0, "loss": 4.0, "grad_norm": 0.0, "policy_loss": 2.0, "auxiliary_loss": 3.0, "num_tokens": 1.0,
         "policy_denominator": 3.0, "auxiliary_denominator": 15.0},
    ]  # fmt: skip
    assert join_steps(steps) == {
        "ratio": 2.0,  # (3 x 1 + 1 x 5) / 4
        "kl": 3.0,
        "loss": 3.0,
        "grad_norm": 2.0,
        "policy_loss": 3.0,  # (1 x 6 + 3 x 2) / 4
        "auxiliary_loss": 2.5,  # (5 x 1 + 15 x 3) / 20
        "num_tokens": 4.0,
    }
    assert join_steps([]) == {}
