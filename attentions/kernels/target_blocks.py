"""Weights of all pairs, for some targets at a time: formed anew in the backward pass, never held for all.

Shapes: B batch, H heads, N targets, M keys, E width of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ON_CPU, ELSEWHERE = 2**21, 2**26
"""Weights in memory at once; elsewhere a launch costs more than memory."""

FEWEST = 16
"""Targets at once, at least."""


def sums_by_targets(
    weigh: Callable[[slice, int], Tensor], query: Tensor, value: Tensor, *, is_causal: bool, dropout: float = 0.0
) -> Tensor:
    """Weighted sums of ``value`` [B, H, M, E] for each target of ``query`` [B, H, N, ...]: [B, H, N, E].

    Args:
        weigh: from a slice of the targets and a number of keys m to their weights of the first m, [B, H, targets, m].
        query: of which only the shape is read.
        is_causal: whether target i has no weight beyond key i, so that these weights need not be asked for.
        dropout: probability of dropping a weight.
    """
    num_targets, num_keys = query.shape[2], value.shape[2]
    most = ON_CPU if value.device.type == "cpu" else ELSEWHERE
    size = max(FEWEST, most // max(value.shape[0] * value.shape[1] * num_keys, 1))

    def some(targets: slice) -> Tensor:
        seen = min(targets.stop, num_keys) if is_causal else num_keys
        return F.dropout(weigh(targets, seen), dropout) @ value[:, :, :seen]

    outputs = []
    for begin in range(0, num_targets, size):
        targets = slice(begin, min(begin + size, num_targets))
        if torch.is_grad_enabled():
            outputs.append(checkpoint(some, targets, use_reentrant=False, preserve_rng_state=dropout > 0.0))
        else:
            outputs.append(some(targets))
    return torch.cat(outputs, dim=2)


def unseen(targets: slice, num_keys: int, hidden: Tensor | None, *, is_causal: bool, like: Tensor) -> Tensor | None:
    """Which of the first ``num_keys`` keys those targets do not see, bool [B or 1, 1, targets or 1, num_keys].

    None where they see all; ``hidden`` [B, M] keys are seen by no target.
    """
    mask = None if hidden is None else hidden[:, None, None, :num_keys]
    if is_causal:
        target = torch.arange(targets.start, targets.stop, device=like.device).unsqueeze(1)
        later = torch.arange(num_keys, device=like.device) > target
        mask = later[None, None] if mask is None else mask | later
    return mask
