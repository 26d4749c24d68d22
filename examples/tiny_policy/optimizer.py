"""Momentum with orthogonalised updates for hidden matrices, in float32: half the steps of AdamW for this policy.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). `torch.optim.Muon` computes in
bfloat16, which is slow on a CPU; this one also orthogonalises all matrices of one shape together.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.775, 2.0315)


@torch.no_grad()
def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push all singular values towards 1 by Newton-Schulz iterations, ``X <- aX + (bA + cA^2)X`` with ``A = XX^T``.

    Args:
        matrices: ``[B, R, C]`` float, best with R <= C.
        steps: iterations; five bring singular values into about [0.7, 1.2].
    """
    a, b, c = _QUINTIC
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class OrthogonalMomentum(torch.optim.Optimizer):
    """Nesterov momentum whose update of each matrix is orthogonalised and scaled by ``sqrt(max(1, rows / columns))``.

    Args:
        parameters: matrices only.
        lr: step size, in units of the update's spectral norm.
        momentum: decay of the running sum of gradients.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                running = state.setdefault("running", torch.zeros_like(parameter))
                running.mul_(group["momentum"]).add_(parameter.grad)
                update = parameter.grad + group["momentum"] * running
                wide = update if update.shape[0] <= update.shape[1] else update.T
                by_shape.setdefault(wide.shape, []).append((parameter, wide))
            for members in by_shape.values():
                updates = orthogonalize(torch.stack([wide for _, wide in members]))
                for (parameter, _), update in zip(members, updates, strict=True):
                    rows, columns = parameter.shape
                    shaped = update if rows <= columns else update.T
                    parameter.add_(shaped, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
