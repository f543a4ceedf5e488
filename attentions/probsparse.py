"""ProbSparse attention (Informer, Zhou et al. 2021): softmax attention for the queries that are far from uniform.

Shapes: B batch, H heads, N tokens, E width of a head, u selected queries, s sampled keys.
"""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.key_summaries import largest_indices
from attentions.kernels.numerics import accumulation_dtype
from cab import Attention, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive

QUERIES = 128
"""That have sampled keys of their own at once."""

PRODUCTS_PER_KEY = 64
"""Products of whole rows of keys that take as long as gathering one of the sampled keys for a query."""


@register_attention("probsparse", patterns="NS", unsound="CS", complexity="n log n", paper="Zhou et al. 2021")
class ProbSparseAttention(Attention):
    """Compute softmax attention for the u queries of largest M, and the mean of all values for the others.

    M(q) = max_j q k_j / sqrt(E) - mean_j q k_j / sqrt(E) over sampled keys k_j, one sample for all queries
    (CAB, Eq. 19; with every key in the sample it is Informer's Eq. 4). A row of n tokens selects
    u = factor * ceil(ln n) queries and samples as many keys. While training the sample is random; in
    evaluation it is every n/u-th key (of query i, from key i on), so that the same input gives the same
    output. With u >= n every query is selected: softmax attention. ``dropout`` is not used (as released).

    Pattern CS is Informer's masked form, only to repeat published runs: a selected query sees the keys up
    to its own, any other gets the *sum* of the values up to its own. Which queries are selected depends on
    the whole sequence, so it is not causal.

    Args:
        factor: selected queries and sampled keys for each unit of ln n.
        mean_over: what the sum over the sample is divided by: ``sample``, its size, or ``length``, n, as in
            the released code (Informer counts the pairs outside of the sample as zeros).
        sampled: ``shared``, one sample of keys for all queries, or ``per_query``, as in the released code.
        mix: pattern CS alone: join the heads as Informer's decoder does, which reads [H, N, E] as [N, H * E]
            and so mixes positions.
    """

    claims = Claims(softmax_limit=softmax_if(factor=NUM_TOKENS))
    requires_right_padding = True

    def __init__(
        self,
        *,
        factor: Positive = 5,
        mean_over: Literal["sample", "length"] = "sample",
        sampled: Literal["shared", "per_query"] = "shared",
        mix: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if mix and self.pattern is not Pattern.CS:
            raise UserError(f"mix=true requires pattern CS, got {self.pattern}; set mix=false")
        self.factor = factor
        self.mean_over = mean_over
        self.sampled = sampled
        self.mix = mix

    def sample_noise(self, query: Tensor, _key: Tensor, padding: PaddingMasks) -> dict[str, Tensor]:
        """Draw positions [B, 1 or N, u] of sampled keys; a shorter sequence uses the first of its own u."""
        length, size = lengths(query, padding.key)[:, None, None], self.largest_count(query.shape[1])
        queries = torch.arange(1 if self.sampled == "shared" else query.shape[1], device=query.device)[:, None]
        if self.training:
            positions = torch.rand(len(queries), size, device=query.device) * length
        else:
            spread = torch.arange(size, device=query.device) * length // self.count(length).clamp_min(1)
            positions = (spread + queries) % length.clamp_min(1)
        return {"sample": positions.long().minimum(length - 1).clamp_min(0)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, sample: Tensor) -> Tensor:
        length = lengths(query, padding.key)
        selected = self.select(query, key, sample, length, padding.key)
        index = selected.unsqueeze(-1).expand(-1, -1, -1, self.head_dim)
        lazy = self.lazy(value, length, padding.key)
        visible = None
        if self.pattern is Pattern.CS:
            visible = torch.arange(query.shape[2], device=query.device) <= selected.unsqueeze(-1)
        elif padding.key is not None:  # a row of padding alone selects nothing and sees anything
            visible = (~padding.key | (length == 0)[:, None])[:, None, None]
        attended = F.scaled_dot_product_attention(query.gather(2, index), key, value, visible)
        if padding.key is not None:  # a short row selects fewer queries: the others in its list stay lazy
            is_selected = torch.arange(index.shape[2], device=query.device) < self.count(length)[:, None]
            attended = attended.where(is_selected[:, None, :, None], lazy.gather(2, index))
        # Scattered with the heads innermost, so that merging them copies nothing.
        return lazy.transpose(1, 2).scatter(1, index.transpose(1, 2), attended.transpose(1, 2)).transpose(1, 2)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, sample: Tensor) -> Tensor:
        n = query.shape[1]
        u = self.largest_count(n)
        scores = query @ key.mT * self.scale
        sampled = scores.detach().gather(2, sample[:n, :u].expand(len(query), n, u))
        measure = sampled.amax(dim=2) - sampled.sum(dim=2) / (u if self.mean_over == "sample" else n)
        lazy = value.mean(dim=1, keepdim=True)
        if self.pattern is Pattern.CS:
            lazy = value.cumsum(dim=1)
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        is_selected = torch.zeros_like(measure, dtype=torch.bool).scatter(1, largest_indices(measure, u), True)
        return torch.where(is_selected.unsqueeze(-1), scores.softmax(dim=-1) @ value, lazy)

    def count(self, length: Tensor) -> Tensor:
        """Return u of rows of ``length`` tokens: factor * ceil(ln n), at least 1 and at most n."""
        logarithm = length.clamp_min(1).double().log().ceil().long()
        return torch.minimum((self.factor * logarithm).clamp_min(1), length)

    def largest_count(self, length: int) -> int:
        """Return u of a row without padding."""
        return min(max(self.factor * math.ceil(math.log(length)), 1), length)

    @torch.no_grad()
    def select(self, query: Tensor, key: Tensor, sample: Tensor, length: Tensor, padding: Tensor | None) -> Tensor:
        """Return the positions [B, H, u] of the queries of largest M, in decreasing order."""
        size = sample.shape[2]
        count = self.count(length)[:, None, None]
        with torch.autocast(query.device.type, enabled=False):
            dtype = accumulation_dtype(query.dtype)
            scores = sampled_logits(query.to(dtype), key.to(dtype), sample)
        largest, total = scores, scores
        if padding is not None:
            unused = (torch.arange(size, device=query.device) >= count)[:, None]
            largest, total = scores.masked_fill(unused, float("-inf")), scores.masked_fill(unused, 0.0)
        divisor = count if self.mean_over == "sample" else length[:, None, None]
        measure = largest.amax(dim=-1) - total.sum(dim=-1) / divisor.clamp_min(1)
        if padding is not None:
            measure = measure.masked_fill(padding[:, None], float("-inf"))
        return largest_indices(measure, size)

    def lazy(self, value: Tensor, length: Tensor, padding: Tensor | None) -> Tensor:
        """Return the output of queries that are not selected: the mean of the values, or (CS) their prefix sum."""
        accurate = accumulation_dtype(value.dtype)
        if padding is not None:
            value = value.masked_fill(padding[:, None, :, None], 0.0)
        if self.pattern is Pattern.CS:
            total = value.cumsum(dim=2, dtype=accurate).to(value.dtype)
            return total if padding is None else total.masked_fill(padding[:, None, :, None], 0.0)
        mean = value.sum(dim=2, keepdim=True, dtype=accurate) / length.clamp_min(1)[:, None, None, None]
        return mean.to(value.dtype).expand_as(value)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1) if self.mix else super().merge_heads(x)


def sampled_logits(query: Tensor, key: Tensor, sample: Tensor) -> Tensor:
    """Compute q_i k_j of the keys j at ``sample`` [B, 1 or N, u] for each query: [B, H, N, u]."""
    heads, width = key.shape[1], key.shape[3]
    if sample.shape[1] == 1:
        index = sample[:, 0, :, None].unsqueeze(1).expand(-1, heads, -1, width)
        return query @ key.gather(2, index).transpose(-2, -1)
    logits = []
    for q, chosen in zip(query.split(QUERIES, dim=2), sample.split(QUERIES, dim=1), strict=True):
        if key.shape[2] <= PRODUCTS_PER_KEY * sample.shape[2]:
            logits.append((q @ key.mT).gather(3, chosen[:, None].expand(-1, heads, -1, -1)))
            continue
        index = chosen.flatten(1)[:, None, :, None].expand(-1, heads, -1, width)
        keys = key.gather(2, index).unflatten(2, chosen.shape[1:])
        logits.append((keys @ q.unsqueeze(-1)).squeeze(-1))
    return torch.cat(logits, dim=2)
