"""Latent attention: a few learned queries read all keys, and targets read the results (slots).

Shapes: B batch, H heads, M keys, E head dimension, r slots.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def latent_attention(queries: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """Return softmax(queries k^T / sqrt(E)) v, the slots of each sequence, [B, H, r, E].

    Args:
        queries: learned queries of the slots, [H, r, E].
        key, value: [B, H, M, E].
        hidden: bool [B, M], True = hidden; a sequence without any key has finite, meaningless slots.
    """
    visible = None if hidden is None else (~hidden | hidden.all(dim=1, keepdim=True))[:, None, None]
    queries = queries.to(key.dtype).expand(len(key), -1, -1, -1)
    return F.scaled_dot_product_attention(queries, key, value, visible)


def zero_empty_sources(slots: Tensor, hidden: Tensor | None) -> Tensor:
    """Return slots [B, H, r, E] with zeros in the sequences whose keys [B, M] are all hidden."""
    return slots if hidden is None else slots.masked_fill(hidden.all(dim=1)[:, None, None, None], 0.0)
