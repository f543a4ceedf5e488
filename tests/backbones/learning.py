"""What every backbone must do: learn a fixed batch, and recompute activations to the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cab import Backbone


def losses(
    backbone: Backbone, loss: Callable[[Backbone], Tensor], *, steps: int = 30, rate: float = 3e-3
) -> list[float]:
    """The losses of ``steps`` steps of Adam on one batch; every parameter that the loss needs gets a gradient."""
    optimizer = torch.optim.Adam(backbone.parameters(), lr=rate)
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        value = loss(backbone)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def gradients(backbone: Backbone, loss: Callable[[Backbone], Tensor]) -> dict[str, Tensor]:
    """Of one training step, by name."""
    backbone.train().zero_grad()
    torch.manual_seed(3)
    loss(backbone).backward()
    return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


def same_gradients(backbone: Backbone, loss: Callable[[Backbone], Tensor]) -> float:
    """The largest difference that recomputing activations makes."""
    plain = gradients(backbone, loss)
    backbone.checkpoint_activations = True
    again = gradients(backbone, loss)
    assert plain.keys() == again.keys()
    assert any(gradient.abs().max() > 0 for gradient in plain.values())
    return max((plain[name] - again[name]).abs().max().item() for name in plain)
