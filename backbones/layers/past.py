"""What a network remembers of the blocks before: the inputs of its layers (Dai et al. 2019, section 3.2).

Shapes: B rows, L layers, P tokens that are remembered at most, N tokens of a block, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cab.attention import DecodeState

INPUTS, COUNT = "inputs", "count"
"""[B, L, P, D], the last tokens at the right end; [B], how many of them there are."""


def no_past(batch_size: int, num_layers: int, num_tokens: int, like: Tensor) -> DecodeState:
    """Nothing; ``like`` [..., D] has the device and type of the layers' inputs."""
    inputs = like.new_zeros(batch_size, num_layers, num_tokens, like.shape[-1])
    return {INPUTS: inputs, COUNT: torch.zeros(batch_size, dtype=torch.long, device=like.device)}


def forget(past: DecodeState, rows: Tensor) -> DecodeState:
    """Nothing for ``rows``, bool [B]."""
    return {**past, COUNT: past[COUNT].masked_fill(rows, 0)}


def absent(past: DecodeState) -> Tensor:
    """Which of the P tokens are none, bool [B, P]."""
    number = torch.arange(past[INPUTS].shape[2], 0, -1, device=past[COUNT].device)
    return number > past[COUNT].unsqueeze(1)


def inputs_of(past: DecodeState) -> tuple[Tensor, ...]:
    """For each layer [B, P, D], zero where there is no token."""
    return past[INPUTS].masked_fill(absent(past)[:, None, :, None], 0.0).unbind(dim=1)


def after(past: DecodeState, inputs: Sequence[Tensor], hidden: Tensor) -> DecodeState:
    """The last P tokens of ``past`` and of a block's ``inputs`` [B, N, D], without gradient.

    ``hidden``: bool [B, P + N], what is no token in either.
    """
    num_tokens = past[INPUTS].shape[2]
    order = (~hidden).to(torch.uint8).argsort(dim=1, stable=True)[:, hidden.shape[1] - num_tokens :]
    known = torch.cat([past[INPUTS], torch.stack([x.detach() for x in inputs], dim=1)], dim=2)
    taken = known.gather(2, order[:, None, :, None].expand(-1, known.shape[1], -1, known.shape[3]))
    return {INPUTS: taken, COUNT: (~hidden).sum(dim=1).clamp(max=num_tokens)}
