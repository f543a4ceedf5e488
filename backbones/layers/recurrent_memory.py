"""Recurrent memory: the inputs of a network's layers at earlier blocks (Dai et al. 2019, section 3.2).

Shapes: B sequences, L layers, P = memory length, N tokens per block, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cab.attention import DecodeState

INPUTS, COUNT = "inputs", "count"
"""[B, L, P, D], right-aligned; [B], number of valid tokens."""


def init_mems(batch_size: int, num_layers: int, num_tokens: int, like: Tensor) -> DecodeState:
    """Return an empty memory; ``like`` [..., D] has the device and dtype of the layers' inputs."""
    inputs = like.new_zeros(batch_size, num_layers, num_tokens, like.shape[-1])
    return {INPUTS: inputs, COUNT: torch.zeros(batch_size, dtype=torch.long, device=like.device)}


def reset_mems(mems: DecodeState, rows: Tensor) -> DecodeState:
    """Clear the memory of ``rows``, bool [B]."""
    return {**mems, COUNT: mems[COUNT].masked_fill(rows, 0)}


def mems_padding(mems: DecodeState) -> Tensor:
    """Return the mask of empty entries, bool [B, P]."""
    number = torch.arange(mems[INPUTS].shape[2], 0, -1, device=mems[COUNT].device)
    return number > mems[COUNT].unsqueeze(1)


def layer_inputs(mems: DecodeState) -> tuple[Tensor, ...]:
    """Return the memory [B, P, D] of each layer, zero at empty entries."""
    return mems[INPUTS].masked_fill(mems_padding(mems)[:, None, :, None], 0.0).unbind(dim=1)


def update_mems(mems: DecodeState, inputs: Sequence[Tensor], hidden: Tensor) -> DecodeState:
    """Append a block's ``inputs`` [B, N, D] to ``mems`` and retain the last P tokens, without gradient.

    ``hidden``: bool [B, P + N], True for empty entries and padding.
    """
    num_tokens = mems[INPUTS].shape[2]
    order = (~hidden).to(torch.uint8).argsort(dim=1, stable=True)[:, hidden.shape[1] - num_tokens :]
    known = torch.cat([mems[INPUTS], torch.stack([x.detach() for x in inputs], dim=1)], dim=2)
    taken = known.gather(2, order[:, None, :, None].expand(-1, known.shape[1], -1, known.shape[3]))
    return {INPUTS: taken, COUNT: (~hidden).sum(dim=1).clamp(max=num_tokens)}
