"""Latent slots: a few learned queries that attend to all keys, so that targets attend to the slots instead.

Shapes: B batch, H heads, M keys, E head dimension, r slots.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def pack(queries: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """Return softmax(queries k^T / sqrt(E)) v, the slots of each row, [B, H, r, E].

    Args:
        queries: queries of the slots, [H, r, E].
        key, value: [B, H, M, E].
        hidden: bool [B, M], True = no key; the slots of a row without any key are finite and meaningless.
    """
    visible = None if hidden is None else (~hidden | hidden.all(dim=1, keepdim=True))[:, None, None]
    queries = queries.to(key.dtype).expand(len(key), -1, -1, -1)
    return F.scaled_dot_product_attention(queries, key, value, visible)


def without_source(slots: Tensor, hidden: Tensor | None) -> Tensor:
    """Return slots [B, H, r, E] with zeros in the rows whose keys [B, M] are all hidden."""
    return slots if hidden is None else slots.masked_fill(hidden.all(dim=1)[:, None, None, None], 0.0)
