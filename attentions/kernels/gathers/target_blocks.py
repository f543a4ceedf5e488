"""Weights of all pairs, for some targets at a time, recomputed in the backward pass.

Shapes: B batch, H heads, N targets, M keys, E width of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.checkpointing import recompute

CPU_LIMIT, DEVICE_LIMIT = 2**21, 2**26
"""Weights per chunk of targets. On a GPU, launches cost more than memory."""

FEWEST = 16
"""Smallest chunk of targets."""


def sums_by_targets(
    weigh: Callable[[slice, int], Tensor], query: Tensor, value: Tensor, *, is_causal: bool, dropout: float = 0.0
) -> Tensor:
    """Return the weighted sum of ``value`` [B, H, M, E] for each target of ``query`` [B, H, N, ...], [B, H, N, E].

    Args:
        weigh: maps a slice of the targets and a number of keys m to weights of the first m keys, [B, H, targets, m].
        query: only its shape is used.
        is_causal: whether target i sees no key after i, so that later weights are not computed.
        dropout: probability of dropping a weight.
    """
    num_targets, num_keys = query.shape[2], value.shape[2]
    most = CPU_LIMIT if value.device.type == "cpu" else DEVICE_LIMIT
    size = max(FEWEST, most // max(value.shape[0] * value.shape[1] * num_keys, 1))

    def some(targets: slice) -> Tensor:
        seen = min(targets.stop, num_keys) if is_causal else num_keys
        return F.dropout(weigh(targets, seen), dropout) @ value[:, :, :seen]

    outputs = []
    for begin in range(0, num_targets, size):
        targets = slice(begin, min(begin + size, num_targets))
        outputs.append(recompute(some, targets, draws=dropout > 0.0))
    return torch.cat(outputs, dim=2)


def masked(targets: slice, num_keys: int, hidden: Tensor | None, *, is_causal: bool, like: Tensor) -> Tensor | None:
    """Return which of the first ``num_keys`` keys are masked, bool [B or 1, 1, targets or 1, num_keys].

    None if the targets see all of them. Keys in ``hidden`` [B, M] are masked for all targets.
    """
    mask = None if hidden is None else hidden[:, None, None, :num_keys]
    if is_causal:
        target = torch.arange(targets.start, targets.stop, device=like.device).unsqueeze(1)
        later = torch.arange(num_keys, device=like.device) > target
        mask = later[None, None] if mask is None else mask | later
    return mask
