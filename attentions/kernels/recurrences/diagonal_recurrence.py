"""Linear recurrence with a diagonal transition over block summaries (the states of S4D).

Shapes: D width, B batch, J inputs, M complex modes.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16
"""Inputs that one group scans sequentially. The groups are joined by the same recurrence."""


def diagonal_scan(inputs: Tensor, factor: Tensor, first: Tensor, *, reverse: bool = False) -> Tensor:
    """Return the states before each input, s_{j+1} = factor s_j + inputs_j: complex [D, B, J, M].

    Args:
        inputs: complex [D, B, J, M].
        factor: complex [D, M].
        first: the state before the first input that is read, complex [D, B, M].
        reverse: read the inputs from the last to the first.
    """
    if reverse:
        return _scan(inputs.flip(2), factor[:, None], first).flip(2)
    return _scan(inputs, factor[:, None], first)


def _scan(inputs: Tensor, factor: Tensor, first: Tensor) -> Tensor:
    """Scan forward: step by step for few inputs, else in groups that advance together. ``factor`` is [D, 1, M]."""
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
    starts = _scan(within.pop(), decay.pop(), first)
    states = torch.stack(within, dim=3)
    states.addcmul_(torch.stack(decay, dim=2).unsqueeze(1), starts.unsqueeze(3))
    return states.flatten(2, 3)[:, :, :count]
