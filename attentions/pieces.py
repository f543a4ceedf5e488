"""Long sequences some tokens at a time, so that what is formed of them stays in a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

ON_CPU, ELSEWHERE = 2**12, 2**18
"""Tokens in memory at once, counted once for every row and head; elsewhere a launch costs more than memory."""

MULTIPLE = 64


def groups_at_once(num_tokens: int, device: torch.device) -> int:
    """How many groups of ``num_tokens`` each, at least one."""
    return max(1, (ON_CPU if device.type == "cpu" else ELSEWHERE) // max(num_tokens, 1))


def tokens_at_once(num_groups: int, device: torch.device) -> int:
    """Tokens of a piece, of ``num_groups`` rows times heads: a multiple of 64."""
    return max(1, groups_at_once(num_groups, device) // MULTIPLE) * MULTIPLE


def pieces(x: Tensor) -> Iterator[slice]:
    """Slices of the second last dimension of ``x`` [..., N, E]."""
    size = tokens_at_once(x.shape[:-2].numel(), x.device)
    return (slice(start, start + size) for start in range(0, x.shape[-2], size))
