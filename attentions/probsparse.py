"""ProbSparse attention (Informer, Zhou et al. 2021): softmax attention for the queries that are far from uniform.

Shapes: B batch, H heads, N tokens, E width of a head, u selected queries, s sampled keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.precision import wide_dtype
from cab import Attention, Pattern, register_attention
from cab.attention import Padding, SoftmaxLimit
from cab.errors import UserError


@register_attention("probsparse", patterns="NS", unsound="CS", complexity="n log n", paper="Zhou et al. 2021")
class ProbSparseAttention(Attention):
    """Softmax attention for the u queries of largest M, the mean of all values for the others.

    M(q) = max_j q k_j / sqrt(E) - mean_j q k_j / sqrt(E) over sampled keys k_j, one sample for all queries
    (CAB, Eq. 19; with every key in the sample it is Informer's Eq. 4). A row of n tokens selects
    u = factor * ceil(ln n) queries and samples as many keys. While training the sample is random; in
    evaluation it is every n/u-th key, so that the same input gives the same output. With u >= n every query
    is selected: softmax attention. ``dropout`` is not used (as released).

    Pattern CS is Informer's masked form, only to repeat published runs: a selected query sees the keys up
    to its own, any other gets the *sum* of the values up to its own. Which queries are selected depends on
    the whole sequence, so it is not causal.

    Args:
        factor: selected queries and sampled keys for each unit of ln n.
        mean_over: what the sum over the sample is divided by: ``sample``, its size, or ``length``, n, as in
            the released code (Informer counts the pairs outside of the sample as zeros).
        mix: pattern CS alone: join the heads as Informer's decoder does, which reads [H, N, E] as [N, H * E]
            and so mixes positions.

    Raises:
        ValueError: for ``factor`` below 1, an unknown ``mean_over``, or ``mix`` in pattern NS.
    """

    compacts_padding = True

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        factor: int = 5,
        mean_over: str = "sample",
        mix: bool = False,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if factor < 1:
            raise UserError(f"factor must be at least 1, got {factor}")
        if mean_over not in ("sample", "length"):
            raise UserError(f"unknown mean_over '{mean_over}': choose sample or length")
        if mix and self.pattern is not Pattern.CS:
            raise UserError(f"mix belongs to Informer's masked form, pattern CS; this is pattern {self.pattern}")
        self.factor = factor
        self.mean_over = mean_over
        self.mix = mix

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        """Every query selected."""
        return SoftmaxLimit(({"factor": num_tokens},))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        key_padding_mask = padding.key
        lengths = self.lengths(query, key_padding_mask)
        selected = self.select(query, key, lengths, key_padding_mask)
        index = selected.unsqueeze(-1).expand(-1, -1, -1, self.head_dim)
        lazy = self.lazy(value, lengths, key_padding_mask)
        visible = None
        if self.pattern is Pattern.CS:
            visible = torch.arange(query.shape[2], device=query.device) <= selected.unsqueeze(-1)
        elif key_padding_mask is not None:  # a row of padding alone selects nothing and sees anything
            visible = (~key_padding_mask | (lengths == 0)[:, None])[:, None, None]
        attended = F.scaled_dot_product_attention(query.gather(2, index), key, value, visible)
        if key_padding_mask is not None:  # a short row selects fewer queries: the others in its list stay lazy
            is_selected = torch.arange(index.shape[2], device=query.device) < self.count(lengths)[:, None]
            attended = attended.where(is_selected[:, None, :, None], lazy.gather(2, index))
        # Scattered with the heads innermost, so that merging them copies nothing.
        return lazy.transpose(1, 2).scatter(1, index.transpose(1, 2), attended.transpose(1, 2)).transpose(1, 2)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Row by row and head by head, each cut to its length."""
        output = torch.zeros_like(query)
        for row, length in enumerate(self.lengths(query, key_padding_mask).tolist()):
            if length == 0:
                continue
            u = self.largest_count(length)
            sample = self.sample(torch.tensor([length], device=query.device), u)[0]
            for head in range(self.num_heads):
                q, k, v = (x[row, head, :length] for x in (query, key, value))
                scores = q @ k.T * self.scale
                sampled = scores.detach()[:, sample]
                mean = sampled.sum(1) / (u if self.mean_over == "sample" else length)
                is_causal = self.pattern is Pattern.CS
                lazy = v.cumsum(0) if is_causal else v.mean(0).expand_as(v)
                if is_causal:
                    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
                is_selected = torch.zeros(length, 1, dtype=torch.bool, device=query.device)
                is_selected[(sampled.amax(1) - mean).topk(u).indices] = True
                output[row, head, :length] = torch.where(is_selected, scores.softmax(-1) @ v, lazy)
        return output

    # --- the selection -----------------------------------------------------------------------------------

    def lengths(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Real tokens of each row, [B]."""
        if padding is None:
            return torch.full((x.shape[0],), x.shape[2], device=x.device)
        return (~padding).sum(dim=1)

    def count(self, lengths: Tensor) -> Tensor:
        """u of rows of ``lengths`` tokens: factor * ceil(ln n), at least 1 and at most n."""
        logarithm = lengths.clamp_min(1).double().log().ceil().long()
        return torch.minimum((self.factor * logarithm).clamp_min(1), lengths)

    def largest_count(self, length: int) -> int:
        """u of a row without padding."""
        return min(max(self.factor * math.ceil(math.log(length)), 1), length)

    def sample(self, lengths: Tensor, size: int) -> Tensor:
        """Positions [B, size] of keys in rows of ``lengths`` tokens, of which a row uses the first u."""
        if self.training:
            positions = torch.rand(size, device=lengths.device) * lengths[:, None]
        else:
            positions = (
                torch.arange(size, device=lengths.device)
                * lengths[:, None]
                // self.count(lengths).clamp_min(1)[:, None]
            )
        return positions.long().minimum(lengths[:, None] - 1).clamp_min(0)

    @torch.no_grad()
    def select(self, query: Tensor, key: Tensor, lengths: Tensor, padding: Tensor | None) -> Tensor:
        """Positions [B, H, u] of the queries of largest M, largest first."""
        size = self.largest_count(query.shape[2])
        sample = self.sample(lengths, size)[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
        count = self.count(lengths)[:, None, None]
        with torch.autocast(query.device.type, enabled=False):
            dtype = wide_dtype(query.dtype)
            scores = query.to(dtype) @ key.gather(2, sample).to(dtype).transpose(-2, -1)
        largest, total = scores, scores
        if padding is not None:
            unused = (torch.arange(size, device=query.device) >= count)[:, None]
            largest, total = scores.masked_fill(unused, float("-inf")), scores.masked_fill(unused, 0.0)
        divisor = count if self.mean_over == "sample" else lengths[:, None, None]
        measure = largest.amax(dim=-1) - total.sum(dim=-1) / divisor.clamp_min(1)
        if padding is not None:
            measure = measure.masked_fill(padding[:, None], float("-inf"))
        return measure.topk(size).indices

    def lazy(self, value: Tensor, lengths: Tensor, padding: Tensor | None) -> Tensor:
        """What a query that is not selected gets: the mean of the values, or (CS) their sum so far; [B, H, N, E]."""
        accurate = wide_dtype(value.dtype)
        if padding is not None:
            value = value.masked_fill(padding[:, None, :, None], 0.0)
        if self.pattern is Pattern.CS:
            total = value.cumsum(dim=2, dtype=accurate).to(value.dtype)
            return total if padding is None else total.masked_fill(padding[:, None, :, None], 0.0)
        mean = value.sum(dim=2, keepdim=True, dtype=accurate) / lengths.clamp_min(1)[:, None, None, None]
        return mean.to(value.dtype).expand_as(value)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1) if self.mix else super().merge_heads(x)
