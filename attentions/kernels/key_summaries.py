"""Summaries of the keys: means of blocks and of segments (landmarks), selected blocks, and learned latents (slots).

Shapes: B batch, H heads, n targets, M keys, E width of a head, J blocks, r landmarks or slots.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def block_means(x: Tensor, size: int) -> Tensor:
    """Return the means of whole blocks of ``size`` tokens, [B, H, M, E] to [B, H, M // size, E]."""
    return x[:, :, : x.shape[2] // size * size].unflatten(2, (-1, size)).mean(dim=3)


def expand_blocks(taken: Tensor, size: int, num_keys: int) -> Tensor:
    """Expand a mask of blocks [..., J] to keys [..., num_keys]."""
    return taken.repeat_interleave(size, dim=-1)[..., :num_keys]


def largest(scores: Tensor, count: int) -> Tensor:
    """Return which scores are among the ``count`` largest of the last dimension and above -inf, bool.

    Of equal scores the first index is taken. The order of ``topk`` depends on the length, so that decoding would choose
    other keys than training did.
    """
    if count >= scores.shape[-1]:
        return scores > -torch.inf
    bound = scores.topk(count, dim=-1).values[..., -1:]
    above, equal = scores > bound, scores == bound
    left = count - above.sum(dim=-1, keepdim=True)
    return (above | equal & (equal.cumsum(dim=-1) <= left)) & (scores > -torch.inf)


def largest_indices(scores: Tensor, count: int, dim: int = -1) -> Tensor:
    """Return the indices of the ``count`` largest scores along ``dim``, in decreasing order; equal ones in theirs."""
    return scores.argsort(dim=dim, descending=True, stable=True).narrow(dim, 0, count)


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


def means_of_segments(x: Tensor, num_landmarks: int) -> Tensor:
    """Return the segment means of rows without padding, [B, H, N, E] to [B, H, c, E]; the shorter segments come first.

    Sums of views are cheaper than the products of :func:`segment_means`: nystromformer takes 0.96 of its time.
    """
    count = min(x.shape[2], num_landmarks)
    size, longer = divmod(x.shape[2], count)
    short, rest = x[:, :, : (count - longer) * size], x[:, :, (count - longer) * size :]
    means = [
        part.unflatten(2, (-1, width)).mean(3) for part, width in ((short, size), (rest, size + 1)) if part.shape[2]
    ]
    return means[0] if len(means) == 1 else torch.cat(means, 2)


def segments(x: Tensor, num_landmarks: int) -> Tensor:
    """Average the segments of one sequence without padding, in readable form: [H, n, E] to [H, c, E]."""
    n = x.shape[1]
    count = min(n, num_landmarks)
    size = n // count
    sizes = [size] * ((size + 1) * count - n) + [size + 1] * (n - size * count)
    return torch.stack([part.mean(dim=1) for part in x.split(sizes, dim=1)], dim=1)


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
