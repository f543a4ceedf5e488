"""Segment means: what Nystromformer and LARA take as landmarks, row by row of a padded batch."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_means(num_landmarks: int, lengths: Tensor, num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the matrix that averages segments, and the mask of landmarks that a sequence does not have.

    A row of n tokens is cut into c = min(n, r) segments as equal as can be, the shorter ones first.

    Args:
        num_landmarks: r.
        lengths: [B] real tokens of each row, which stand at its start.
        num_tokens: N, of the batch.
        dtype: of the weights.

    Returns:
        [B, r, N] averaging weights, zero in rows of absent landmarks and at padding; [B, r] True = absent.
    """
    length = lengths.unsqueeze(1)
    count = length.clamp(max=num_landmarks)
    size = length // count.clamp(min=1)
    short = (size + 1) * count - length  # segments of ``size`` tokens; the others have one more
    landmark = torch.arange(num_landmarks, device=lengths.device).unsqueeze(0)
    absent = landmark >= count
    begin = landmark * size + (landmark - short).clamp(min=0)
    end = begin + size + (landmark >= short)
    position = torch.arange(num_tokens, device=lengths.device)
    member = (position >= begin.unsqueeze(-1)) & (position < end.unsqueeze(-1)) & ~absent.unsqueeze(-1)
    weights = member.to(dtype)
    return weights / weights.sum(dim=2, keepdim=True).clamp(min=1.0), absent


def average(weights: Tensor, x: Tensor) -> Tensor:
    """Multiply weights [B, r, N] with x [B, H, N, E], read as [N, H * E]: [B, H, r, E]."""
    return torch.einsum("brn,bhne->bhre", weights, x)


def segments(x: Tensor, num_landmarks: int) -> Tensor:
    """Average the segments of one sequence without padding, in readable form: [H, n, E] to [H, c, E]."""
    n = x.shape[1]
    count = min(n, num_landmarks)
    size = n // count
    sizes = [size] * ((size + 1) * count - n) + [size + 1] * (n - size * count)
    return torch.stack([part.mean(dim=1) for part in x.split(sizes, dim=1)], dim=1)
