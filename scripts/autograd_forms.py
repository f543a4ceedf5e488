"""The forms in which a kernel with a hand-written gradient is measured, and the inputs of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attentions.kernels.common import blocks
from attentions.kernels.common.checkpointing import recompute

HEADS, WIDTH, SLOTS = 8, 64, 16

Call = Callable[[], tuple[Tensor, ...]]
Forms = tuple[Call, Call, Call]
"""Gradients by hand, by plain autograd, and by autograd of checkpointed blocks."""


def uniform(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape).add(0.1).requires_grad_() for shape in shapes]


def normal(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def compared(inputs: list[Tensor], *forms: Callable[..., Any]) -> Forms:
    """Gradients of each form, of inputs that live only as long as a form keeps them, as projections do."""

    def gradients(form: Callable[..., Any]) -> tuple[Tensor, ...]:
        outputs = form(*(x * 1.0 for x in inputs))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        total = sum((x.sin().sum() for x in outputs), torch.zeros(()))
        return torch.autograd.grad(total, inputs, materialize_grads=True)

    by_hand, plain, checkpointed = forms
    return lambda: gradients(by_hand), lambda: gradients(plain), lambda: gradients(checkpointed)


def by_pieces(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """``function`` of a few tokens [..., N, E] at a time, checkpointed."""
    size = blocks.tokens_at_once(x.shape[:-2].numel(), x.device)
    return torch.cat([recompute(function, piece) for piece in x.split(size, dim=-2)], dim=-2)
