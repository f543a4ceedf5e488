"""Latent slots: a few learnt queries that read all keys, so that targets read them instead.

Shapes: B batch, H heads, M keys, E width of a head, r slots.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def pack(queries: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """softmax(queries k^T / sqrt(E)) v, the slots of each row, [B, H, r, E].

    Args:
        queries: of the slots, [H, r, E].
        key, value: [B, H, M, E].
        hidden: bool [B, M], True = no key; a row without any key has finite slots that mean nothing.
    """
    visible = None if hidden is None else (~hidden | hidden.all(dim=1, keepdim=True))[:, None, None]
    return F.scaled_dot_product_attention(queries.to(key.dtype).expand(len(key), -1, -1, -1), key, value, visible)


def without_source(slots: Tensor, hidden: Tensor | None) -> Tensor:
    """Slots [B, H, r, E] with zeros in the rows whose keys [B, M] are all hidden."""
    return slots if hidden is None else slots.masked_fill(hidden.all(dim=1)[:, None, None, None], 0.0)
