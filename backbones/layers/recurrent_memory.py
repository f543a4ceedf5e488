"""Recurrent memory: the inputs of a network's layers at earlier blocks (Dai et al. 2019, section 3.2).

Shapes: B sequences, L layers, P = memory length, N tokens per block, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backbones.layers.transformer import LayerStack, RunLayer
from cab import UserError
from cab.attention import DecodeState

MEMORY_INPUTS, MEMORY_COUNT = "inputs", "count"
"""[B, L, P, D], right-aligned; [B], number of valid tokens."""


def init_mems(layers: LayerStack, batch_size: int, num_tokens: int, like: Tensor) -> DecodeState:
    """Return an empty memory; ``like`` [..., D] has the device and dtype of the layers' inputs."""
    if type(layers) is not LayerStack:
        raise UserError("only plain layers remember tokens: use backbone=gpt2, or llama without depth_block")
    inputs = like.new_zeros(batch_size, len(layers), num_tokens, like.shape[-1])
    return {MEMORY_INPUTS: inputs, MEMORY_COUNT: torch.zeros(batch_size, dtype=torch.long, device=like.device)}


def reset_mems(mems: DecodeState, rows: Tensor) -> DecodeState:
    """Clear the memory of ``rows``, bool [B]."""
    return {**mems, MEMORY_COUNT: mems[MEMORY_COUNT].masked_fill(rows, 0)}


def read_after(
    layers: LayerStack, mems: DecodeState, x: Tensor, padding_mask: Tensor | None, *, run_layer: RunLayer
) -> tuple[Tensor, DecodeState]:
    """Apply the layers to a block ``x`` [B, N, D] that follows ``mems``; return the outputs and the new memory."""
    padding = x.new_zeros(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
    empty = torch.arange(mems[MEMORY_INPUTS].shape[2], 0, -1, device=x.device) > mems[MEMORY_COUNT].unsqueeze(1)
    hidden = torch.cat([empty, padding], dim=1)
    inputs = []
    for layer, earlier in zip(
        layers, mems[MEMORY_INPUTS].masked_fill(empty[:, None, :, None], 0.0).unbind(dim=1), strict=True
    ):
        inputs.append(x.detach())
        x = run_layer(layer, x, hidden, None, None, earlier)
    return x, update_mems(mems, inputs, hidden)


def update_mems(mems: DecodeState, inputs: list[Tensor], hidden: Tensor) -> DecodeState:
    """Append a block's ``inputs`` [B, N, D] per layer to ``mems`` and retain the last P tokens.

    ``hidden``: bool [B, P + N], True for empty entries and padding.
    """
    num_tokens = mems[MEMORY_INPUTS].shape[2]
    order = (~hidden).to(torch.uint8).argsort(dim=1, stable=True)[:, hidden.shape[1] - num_tokens :]
    all_inputs = torch.cat([mems[MEMORY_INPUTS], torch.stack(inputs, dim=1)], dim=2)
    index = order[:, None, :, None].expand(-1, all_inputs.shape[1], -1, all_inputs.shape[3])
    return {MEMORY_INPUTS: all_inputs.gather(2, index), MEMORY_COUNT: (~hidden).sum(dim=1).clamp(max=num_tokens)}
