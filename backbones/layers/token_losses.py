"""Cross-entropy over a large vocabulary without materializing all logits, forward or backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.training import recompute

AT_ONCE = 2**25
"""Logits in memory at once, in a few copies: 128 MiB each in float32."""


def token_losses(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return -log softmax(W x + b)[target] for each vector, at least in float32.

    Vectors are processed in chunks whose logits are recomputed in the backward pass.

    Args:
        x: [..., D].
        weight: W [V, D].
        bias: b [V] or None.
        targets: [...], below V.

    Returns:
        [...].
    """
    size = max(1, AT_ONCE // len(weight))
    chunks = zip(x.flatten(0, -2).split(size), targets.flatten().split(size), strict=True)
    return torch.cat([recompute(_losses, vectors, weight, bias, t) for vectors, t in chunks]).view(targets.shape)


def _losses(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, reduction="none")
