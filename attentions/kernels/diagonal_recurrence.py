"""A linear recurrence without mixing of its components, over the summaries of blocks: S4D's states.

Shapes: D width, B batch, J inputs, M complex modes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUP = 16
"""Blocks whose states are formed one after the other; groups of them are joined by the same rule."""


class Scan(torch.autograd.Function):
    """States before each input, s_{j+1} = factor s_j + inputs_j, forwards or from the end: complex [D, B, J, M].

    Its gradient is the same recurrence in the other direction, so no step of it is recorded: `s4d` takes 0.88 (NS) and
    0.91 (CS) of the memory of plain autograd at 4,096 tokens (results/efficiency/kernel_gains.csv).

    Args:
        inputs: [D, B, J, M].
        factor: [D, M].
        first: the state before the first input that is read, [D, B, M].
        backwards: begin with the last input.
    """

    @staticmethod
    def forward(inputs: Tensor, factor: Tensor, first: Tensor, backwards: bool) -> Tensor:
        if backwards:
            return _states(inputs.flip(2), factor[:, None], first).flip(2)
        return _states(inputs, factor[:, None], first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, factor, _, ctx.backwards = inputs
        ctx.save_for_backward(factor, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, states = ctx.saved_tensors
        back, start = factor.conj().resolve_conj(), -1 if ctx.backwards else 0
        grad_inputs = Scan.apply(grad, back, torch.zeros_like(grad[:, :, 0]), not ctx.backwards)
        grad_factor = torch.einsum("dbjm,dbjm->dm", grad_inputs, states.conj())
        grad_first = torch.addcmul(grad[:, :, start], back.unsqueeze(1), grad_inputs[:, :, start])
        return grad_inputs, grad_factor, grad_first, None


def _states(inputs: Tensor, factor: Tensor, first: Tensor) -> Tensor:
    """The recurrence, step by step for a few inputs, else in groups that advance together; factor [D, 1, M]."""
    count = inputs.shape[2]
    if count <= GROUP:
        series = [first]
        for one in inputs.unbind(dim=2)[:-1]:
            series.append(torch.addcmul(one, factor, series[-1]))
        return torch.stack(series, dim=2)
    if count % GROUP:
        inputs = torch.cat([inputs, inputs.new_zeros(*inputs.shape[:2], -count % GROUP, inputs.shape[3])], dim=2)
    groups = inputs.unflatten(2, (-1, GROUP))  # [D, B, groups, GROUP, M]
    within = [torch.zeros_like(groups[:, :, :, 0])]
    decay = [torch.ones_like(factor)]
    for one in groups.unbind(dim=3):
        within.append(torch.addcmul(one, factor.unsqueeze(1), within[-1]))
        decay.append(decay[-1] * factor)
    starts = _states(within.pop(), decay.pop(), first)
    states = torch.stack(within, dim=3)
    states.addcmul_(torch.stack(decay, dim=2).unsqueeze(1), starts.unsqueeze(3))
    return states.flatten(2, 3)[:, :, :count]
