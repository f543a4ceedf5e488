"""What every backbone must do: learn a fixed batch, and recompute activations to the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cab import Backbone


def losses(backbone: Backbone, loss: Callable[[Backbone], Tensor], *, enough: float) -> list[float]:
    """The losses of up to 30 steps of Adam on one batch, until one is below the share ``enough`` of the first."""
    optimizer = torch.optim.Adam(backbone.parameters(), lr=3e-3)
    found: list[float] = []
    for step in range(30):
        torch.manual_seed(step)
        optimizer.zero_grad()
        value = loss(backbone)
        value.backward()
        optimizer.step()
        found.append(value.item())
        if found[-1] < enough * found[0]:
            break
    return found


def gradients(backbone: Backbone, loss: Callable[[Backbone], Tensor]) -> dict[str, Tensor]:
    """Of one training step, by name."""
    backbone.train().zero_grad()
    torch.manual_seed(3)
    loss(backbone).backward()
    return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


def same_gradients(
    backbone: Backbone, loss: Callable[[Backbone], Tensor], plain: dict[str, Tensor] | None = None
) -> float:
    """The largest difference that recomputing activations makes to the gradients ``plain``."""
    plain = plain or gradients(backbone, loss)
    backbone.checkpoint_activations = True
    again = gradients(backbone, loss)
    assert plain.keys() == again.keys()
    assert any(gradient.abs().max() > 0 for gradient in plain.values())
    return max((plain[name] - again[name]).abs().max().item() for name in plain)
