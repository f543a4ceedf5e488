"""Implementations of a kernel that are compared (hand-written gradient, autograd), and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attentions.kernels import chunks
from attentions.kernels.numerics import recompute

HEADS, WIDTH, SLOTS = 8, 64, 16

Call = Callable[[], tuple[Tensor, ...]]
Forms = tuple[Call, Call, Call]
"""Hand-written gradient, plain autograd, and autograd with checkpointed blocks."""


def uniform(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape).add(0.1).requires_grad_() for shape in shapes]


def normal(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def compared(inputs: list[Tensor], *forms: Callable[..., Any]) -> Forms:
    """Compute gradients with each implementation; inputs are freed as soon as it no longer uses them."""

    def gradients(form: Callable[..., Any]) -> tuple[Tensor, ...]:
        outputs = form(*(x * 1.0 for x in inputs))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        total = sum((x.sin().sum() for x in outputs), torch.zeros(()))
        return torch.autograd.grad(total, inputs, materialize_grads=True)

    by_hand, plain, checkpointed = forms
    return lambda: gradients(by_hand), lambda: gradients(plain), lambda: gradients(checkpointed)


def by_pieces(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Apply ``function`` to chunks of tokens [..., N, E], checkpointed."""
    size = chunks.tokens_at_once(x.shape[:-2].numel(), x.device)
    return torch.cat([recompute(function, piece) for piece in x.split(size, dim=-2)], dim=-2)
