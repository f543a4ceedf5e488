"""Cross-entropy over a large vocabulary without materializing all logits, forward or backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

AT_ONCE = 2**25
"""Logits in memory at once, in up to three copies: 128 MiB each in float32."""


def token_losses(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return -log softmax(W x + b)[target] for each vector, at least in float32.

    Vectors are processed in chunks whose logits are recomputed in the backward pass. Under autocast, products use the
    autocast dtype, and the gradients of W and b accumulate in their own dtype.

    Args:
        x: [..., D].
        weight: W [V, D].
        bias: b [V] or None.
        targets: [...], below V.

    Returns:
        [...].
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype

    def losses(x: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device, enabled=False):
            logits = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
            return F.cross_entropy(logits.to(torch.promote_types(dtype, torch.float32)), targets, reduction="none")

    size = max(1, AT_ONCE // len(weight))
    chunks = zip(x.flatten(0, -2).split(size), targets.flatten().split(size), strict=True)
    return torch.cat([checkpoint(losses, *chunk, use_reentrant=False) for chunk in chunks]).view(targets.shape)
