"""Attention on a sequence arranged as a grid: along rows, along columns, or over both in one softmax.

Token t is at (t // W, t % W); the last row may be shorter. No N x N tensor is formed. Keys in ``hidden`` [B, N] are not
seen in the forms that are not causal.

Shapes: B rows of a batch, H heads, h heads of a chunk, N tokens, E width of a head, R rows of the grid, W its width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import in_chunks
from attentions.kernels.numerics import attention_weights


def in_rows(x: Tensor, width: int) -> Tensor:
    """Reshape [..., N, E] to [..., R, W, E], with zeros where the last row has no token."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % width)).unflatten(-2, (-1, width))


def along(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    *,
    by_column: bool,
    is_causal: bool,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax attention of each token over its row or column, up to itself if causal, [B, H, N, E]."""
    num_heads, length = query.shape[1:3]
    grids = [in_rows(x, width) for x in (query, key, value)]
    q, k, v = ((x.transpose(2, 3) if by_column else x).flatten(1, 2) for x in grids)
    visible = None
    if hidden is not None and not is_causal:
        cells = in_rows(~hidden.unsqueeze(-1), width).squeeze(-1)
        cells = cells.mT if by_column else cells
        cells = cells | ~cells.any(dim=-1, keepdim=True)  # no weights of a row of padding are NaN
        visible = cells.repeat(1, num_heads, 1).unsqueeze(2)
    elif length % width and not is_causal:  # in the causal form no token looks behind the last one
        cell = torch.arange(grids[0].shape[2:4].numel(), device=query.device).view(grids[0].shape[2:4]) < length
        visible = (cell.T if by_column else cell).repeat(num_heads, 1)[None, :, None]
    output = F.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal)
    output = output.unflatten(1, (num_heads, -1))
    return (output.transpose(2, 3) if by_column else output).flatten(2, 3)[:, :, :length]


def along_both(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    *,
    is_causal: bool,
    is_sliding: bool,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return one softmax over the column and the row of each token, [B, H, N, E].

    With ``is_sliding``, the tokens less than W away replace the row.
    """
    length, scale = query.shape[2], query.shape[3] ** -0.5
    position = torch.arange(-(-length // width) * width, device=query.device).view(-1, width)
    rows = torch.arange(len(position), device=query.device)
    row_offsets = ([-1, 0] if is_causal else [-1, 0, 1]) if is_sliding else [0]
    of_near = torch.cat([position + step * width for step in row_offsets], dim=1)
    distance = position[:, :, None] - of_near[:, None]  # [R, W, keys]
    unseen = ((of_near < 0) | (of_near >= length))[:, None] | (distance.abs() >= width)
    if is_causal:
        unseen = unseen | (distance < 0)
    other = rows[:, None] <= rows if is_causal else rows[:, None] == rows
    of_far = other[:, None] | (position >= length).T
    unseen = torch.cat([unseen, of_far], dim=2)

    def attend(query: Tensor, key: Tensor, value: Tensor, *padding: Tensor) -> Tensor:
        masked = unseen
        for padded in padding:  # [h, N, 1], at most one
            grid = in_rows(padded, width)
            near, far = _neighboring_rows(grid, row_offsets).mT, grid.permute(0, 3, 2, 1)
            sizes = -1, -1, width, -1
            masked = unseen | torch.cat([near.expand(*sizes), far.expand(-1, len(rows), -1, -1)], dim=-1)
        query, key, value = (in_rows(x, width) for x in (query, key, value))
        near_key, near_value = (_neighboring_rows(x, row_offsets) for x in (key, value))
        near = query @ near_key.mT
        far = (query.transpose(1, 2) @ key.permute(0, 2, 3, 1)).transpose(1, 2)
        weights = attention_weights(torch.cat([near, far], dim=-1) * scale, masked, dropout)
        near, far = weights.split([near.shape[-1], far.shape[-1]], dim=-1)
        output = near @ near_value + (far.transpose(1, 2) @ value.transpose(1, 2)).transpose(1, 2)
        return output.flatten(1, 2)[:, :length]

    heads = [query, key, value]
    if hidden is not None and not is_causal:
        heads.append(hidden[:, None, :, None].expand(-1, query.shape[1], -1, -1))
    return in_chunks(attend, heads, cost=3 * unseen.numel(), dropout=dropout)


def _neighboring_rows(x: Tensor, steps: list[int]) -> Tensor:
    """Join each row of [h, R, W, E] with the rows at ``steps`` from it, zeros outside the grid: [h, R, W steps, E]."""
    num_rows = x.shape[1]
    filled = F.pad(x, (0, 0, 0, 0, -steps[0], steps[-1]))
    return torch.cat([filled[:, step - steps[0] : step - steps[0] + num_rows] for step in steps], dim=2)
