"""Indexers: scores of earlier tokens or blocks for every target, the choice of the largest, and attention to it.

Shapes: B batch, H heads, E their width, G groups of heads that choose together, I index heads, F their width,
n targets, M keys, J blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import CPU_WEIGHTS, DEVICE_WEIGHTS, FEWEST
from attentions.kernels.key_summaries import block_means, expand_blocks, largest
from attentions.kernels.layers import rotate
from attentions.kernels.numerics import masked_softmax, recompute, upcast

Heads = tuple[Tensor, Tensor, Tensor]

EPS = 1e-6
"""Added to the mean square or the variance in the norms of index queries and keys."""


class Indexer(nn.Module):
    """Choose ``top_k`` blocks of ``block_size`` tokens for each target by scores I [B, G, n, J].

    A subclass computes ``products``. The score of a block is the largest of its tokens up to the target, or, if it
    ``pools_keys``, that of the mean key of a whole block. Of equal scores the first block is chosen. The choice has no
    gradient.

    Args:
        block_size: tokens of a block.
        top_k: chosen blocks, ``local_blocks`` among them.
        local_blocks: latest blocks that are always chosen. With 0, one that ``pools_keys`` shows the open block in
            addition, which has no mean yet.
    """

    pools_keys: ClassVar[bool] = False

    def __init__(self, *, block_size: int, top_k: int, local_blocks: int) -> None:
        super().__init__()
        self.block_size, self.top_k, self.local_blocks = block_size, top_k, local_blocks

    def query_side_inputs(self, _x: Tensor) -> dict[str, Tensor]:
        """Return the input ``index_query`` of :meth:`queries` from those of the layer [B, N, D], if it has its own."""
        return {}

    def key_side_inputs(self, _x: Tensor) -> dict[str, Tensor]:
        """Return the input ``index_key`` of :meth:`keys` from those of the layer [B, M, D], if it has its own."""
        return {}

    def pooled(self, keys: Tensor) -> Tensor:
        """Return what index queries are multiplied with, from the index keys of tokens [B, H or 1, M, F]."""
        return upcast(keys)

    def products(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores [B, G, n, M or J] of pooled keys."""
        return queries @ keys.mT

    def block_score(self, queries: Tensor, keys: Tensor, begin: int) -> Tensor:
        """Return the score [G] of one block: :meth:`products` of queries [I, F] and its visible keys, readable."""
        raise NotImplementedError

    def scores(self, queries: Tensor, keys: Tensor, count: Tensor, num_keys: int) -> Tensor:
        """Return I [B, G, n, J] for targets that see ``count`` [B or 1, 1, n or 1, 1] of ``num_keys`` keys.

        It is -inf for blocks without a visible token, and for open blocks if keys are pooled.
        """
        scores, num_blocks = self.products(queries, keys), -(-num_keys // self.block_size)
        end = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        scores = scores.masked_fill((end * self.block_size if self.pools_keys else end) > count, -torch.inf)
        if self.pools_keys:
            return F.pad(scores, (0, num_blocks - scores.shape[-1]), value=-torch.inf)
        scores = F.pad(scores, (0, num_blocks * self.block_size - num_keys), value=-torch.inf)
        return scores.unflatten(-1, (num_blocks, self.block_size)).amax(dim=-1)

    @torch.no_grad()
    def chosen(self, scores: Tensor, count: Tensor) -> Tensor:
        """Return the chosen blocks [B, G, n, J], bool."""
        block, current = torch.arange(scores.shape[-1], device=scores.device), (count - 1) // self.block_size
        is_local = (block <= current) & (block > current - self.local_blocks)
        taken = largest(scores.masked_fill(is_local, torch.inf), self.top_k)
        if self.pools_keys and not self.local_blocks:
            taken = taken | (block == current) & (count % self.block_size != 0)
        return taken

    def most_keys(self, count: int) -> int:
        """Return the largest number of keys that a target with ``count`` visible ones attends to."""
        is_open = self.pools_keys and not self.local_blocks
        return min(count, self.top_k * self.block_size + (count % self.block_size if is_open else 0))

    def seen(self, taken: Tensor, count: Tensor, num_keys: int) -> Tensor:
        """Return the keys of chosen blocks that the targets see, bool [B, G, n, num_keys]."""
        visible = torch.arange(num_keys, device=taken.device) < count
        return expand_blocks(taken, self.block_size, num_keys) & visible

    def choose(self, index: tuple[Tensor, Tensor], count: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return :meth:`seen`, scores and chosen blocks [B, G, n, J] for index queries and pooled index keys."""
        scores = self.scores(*index, count, num_keys)
        taken = self.chosen(scores, count)
        return self.seen(taken, count, num_keys), scores, taken

    def read(
        self, heads: Heads, index: tuple[Tensor, Tensor], count: Tensor, *, scale: float, dropout: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the outputs of n targets that see ``count`` [B or 1, 1, n or 1, 1] keys.

        Args:
            heads: queries, keys and values [B, H or its groups, n or M, E], in float32 or wider.
            index: index queries [B, I, n, F] and pooled index keys.
            count: number of visible keys.
            scale: factor of the logits.
            dropout: probability that a weight is dropped.

        Returns:
            outputs [B, H, n, E], attention weights [B, H, n, M], scores and chosen blocks [B, G, n, J].
        """
        query, key, value = (per_head(x, heads[0].shape[1]) for x in heads)
        seen, scores, taken = self.choose(index, count, key.shape[2])
        weights = masked_softmax(query @ key.mT * scale, ~per_head(seen, query.shape[1]))
        return F.dropout(weights, dropout) @ value, weights, scores, taken

    def attend(
        self,
        heads: Heads,
        index: tuple[Tensor, Tensor],
        num_keys: Tensor | None,
        *,
        learns: bool,
        scale: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute :meth:`read` for some targets at a time; return the outputs and, if it ``learns``, losses [B, N].

        Targets see ``num_keys`` [B] keys, or with None those up to their own position. Activations are recomputed in
        the backward pass.
        """
        (query, key, value), device = heads, heads[0].device
        order = torch.arange(1, query.shape[2] + 1, device=device)[:, None]

        def some(part: slice) -> list[Tensor]:
            n = part.stop if num_keys is None else key.shape[2]
            pooled = index[1][:, :, : n // self.block_size if self.pools_keys else n]
            visible = order[None, None, part] if num_keys is None else num_keys[:, None, None, None]
            seen = (query[:, :, part], key[:, :, :n], value[:, :, :n])
            read = self.read(seen, (index[0][:, :, part], pooled), visible, scale=scale, dropout=dropout)
            return [read[0], divergence(*read[1:], self.block_size)] if learns else [read[0]]

        most = CPU_WEIGHTS if device.type == "cpu" else DEVICE_WEIGHTS
        size = max(FEWEST, most // max(query.shape[0] * query.shape[1] * key.shape[2], 1))
        parts = (slice(i, min(i + size, query.shape[2])) for i in range(0, query.shape[2], size))
        outputs, *losses = zip(*(recompute(some, part, draws=dropout > 0) for part in parts), strict=True)
        return torch.cat(outputs, dim=2), torch.cat(losses[0], dim=1) if losses else None

    def reference(self, queries: Tensor, keys: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the keys that targets with ``counts`` visible ones attend to, bool [G, n, M], in readable form.

        ``queries`` are [I, n, F], ``keys`` [1 or H, M, F].
        """
        size, rows = self.block_size, []
        for t, count in enumerate(counts):
            current = (count - 1) // size
            spans = [range(b * size, min((b + 1) * size, count)) for b in range(current + 1)]
            scored = [b for b, span in enumerate(spans) if len(span) == size or not self.pools_keys]
            scores = {
                b: self.block_score(queries[:, t], keys[:, spans[b].start : spans[b].stop], b * size) for b in scored
            }
            local = [b for b in range(current + 1) if b > current - self.local_blocks]
            groups = []
            for group in range(len(next(iter(scores.values()))) if scores else 1):
                others = sorted((b for b in scored if b not in local), key=lambda b: (-scores[b][group].item(), b))
                taken = set([*local, *others][: self.top_k])
                if self.pools_keys and not self.local_blocks and count % size:
                    taken.add(current)
                groups.append([s < count and s // size in taken for s in range(keys.shape[1])])
            rows.append(torch.tensor(groups, device=queries.device))
        return torch.stack([row.expand(max(map(len, rows)), -1) for row in rows], dim=1)


class KeyMeans(Indexer):
    """I_tb = q_t (mean key of block b) per head (MoBA, Lu et al. 2025)."""

    pools_keys = True

    def pooled(self, keys: Tensor) -> Tensor:
        return block_means(upcast(keys), self.block_size)

    def block_score(self, queries: Tensor, keys: Tensor, _begin: int) -> Tensor:
        return (queries * keys.mean(dim=1)).sum(dim=1)


class LearnedIndexer(Indexer):
    """Base class of indexers with queries and keys of their own; the keys are shared by the index heads.

    Inputs are detached: only a loss of the scores trains the indexer. The maps compute in the dtype of their weights
    also under autocast, since rounding would change the choice.

    Args:
        embed_dim: D.
        heads: I.
        width: F.
        rotary_dim: p, first features of index queries and keys that are rotated by their positions, with pairs
            (c, c + p / 2).
        query_dim: features of the input of index queries; D by default.
    """

    def __init__(
        self, *, embed_dim: int, heads: int, width: int, rotary_dim: int, query_dim: int | None = None, **sizes: int
    ) -> None:
        super().__init__(**sizes)
        self.heads, self.width, self.rotary_dim = heads, width, rotary_dim
        self.query = nn.Linear(embed_dim if query_dim is None else query_dim, heads * width, bias=False)
        self.key = nn.Linear(embed_dim, width, bias=False)
        self.query_norm, self.key_norm = self.norms()

    def norms(self) -> tuple[nn.Module | None, nn.Module]:
        """Return the norms of index queries and keys."""
        return nn.RMSNorm(self.width, eps=EPS), nn.RMSNorm(self.width, eps=EPS)

    def query_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        return {"index_query": exactly(self.query, x)}

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        return {"index_key": exactly(self.key, x)}

    def queries(self, x: Tensor, position: Tensor) -> Tensor:
        """Return index queries [B, I, N, F] in float32 or wider from projections [B, N, I F]."""
        x = upcast(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.rotated(normalized(self.query_norm, x), position)

    def keys(self, x: Tensor, position: Tensor) -> Tensor:
        """Return index keys [B, 1, M, F] of tokens, which decoding stores, from projections [B, M, F]."""
        return self.rotated(normalized(self.key_norm, upcast(x.unsqueeze(1))), position).to(x.dtype)

    def rotated(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotate the first p features of [B, I, N, F] by ``position`` [B or 1, N]."""
        if not self.rotary_dim:
            return x
        turned = rotate(x[..., : self.rotary_dim], position, by_halves=True)
        return torch.cat([turned, x[..., self.rotary_dim :]], dim=-1)


class LightningIndexer(LearnedIndexer):
    """I_ts = sum_j w_tj relu(q_tj k_s) / sqrt(I F) with k = LayerNorm(W x) (DeepSeek-V3.2, arXiv:2512.02556).

    The weights w are the last I features of the projected queries.
    """

    def __init__(self, *, embed_dim: int, heads: int, **options: Any) -> None:
        super().__init__(embed_dim=embed_dim, heads=heads, **options)
        self.weight = nn.Linear(embed_dim, heads, bias=False)

    def norms(self) -> tuple[nn.Module | None, nn.Module]:
        return None, nn.LayerNorm(self.width, eps=EPS)

    def query_side_inputs(self, x: Tensor, latent: Tensor | None = None) -> dict[str, Tensor]:
        """Return the projected queries, of ``latent`` if given, and the weights of the index heads."""
        queries = exactly(self.query, x if latent is None else latent)
        return {"index_query": torch.cat([queries, exactly(self.weight, x)], dim=-1)}

    def queries(self, x: Tensor, position: Tensor) -> Tensor:
        """Return index queries and their weights, [B, I, N, F + 1]."""
        x, weight = x.split([self.heads * self.width, self.heads], dim=-1)
        return torch.cat([super().queries(x, position), upcast(weight).mT.unsqueeze(-1)], dim=-1)

    def products(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = (queries[..., :-1] @ keys.mT).relu() * queries[..., -1:]
        return scores.sum(dim=1, keepdim=True) * (self.heads * self.width) ** -0.5

    def block_score(self, queries: Tensor, keys: Tensor, _begin: int) -> Tensor:
        scores = (keys[0] @ queries[:, :-1].mT).relu() @ queries[:, -1]
        return scores.max()[None] / (self.heads * self.width) ** 0.5


class GroupIndexer(LearnedIndexer):
    """I_ts = q_tg k_s for each group g of heads with common keys, both RMS-normalized (MiniMax-M3)."""

    def block_score(self, queries: Tensor, keys: Tensor, _begin: int) -> Tensor:
        return (keys[0] @ queries.mT).amax(dim=0)


class BlockMeanIndexer(LearnedIndexer):
    """I_tb = sum_j relu(q_tj RMSNorm(mean of the projections of block b)) / sqrt(F) (Qwen4-exp).

    Means are rotated by the position of the first token of their block.
    """

    pools_keys = True

    def keys(self, x: Tensor, _position: Tensor) -> Tensor:
        """Return projections [B, 1, M, F]; their means are normalized."""
        return x.unsqueeze(1)

    def pooled(self, keys: Tensor) -> Tensor:
        means = normalized(self.key_norm, block_means(upcast(keys), self.block_size))
        return self.rotated(means, torch.arange(means.shape[2], device=keys.device)[None] * self.block_size)

    def products(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries @ keys.mT).relu().sum(dim=1, keepdim=True) * self.width**-0.5

    def block_score(self, queries: Tensor, keys: Tensor, begin: int) -> Tensor:
        mean = normalized(self.key_norm, keys.mean(dim=1))[None, None]
        mean = self.rotated(mean, torch.tensor([[begin]], device=keys.device))[0, 0, 0]
        return (queries @ mean).relu().sum()[None] / self.width**0.5


def per_head(x: Tensor, num_heads: int) -> Tensor:
    """Repeat keys, values or choices [B, G, ...] for every head; one for all is broadcast."""
    groups = x.shape[1]
    return x.repeat_interleave(num_heads // groups, dim=1) if 1 < groups < num_heads else x


def divergence(weights: Tensor, scores: Tensor, taken: Tensor, block_size: int) -> Tensor:
    """Return KL(p || softmax(I)) over the chosen blocks with a score, averaged over the groups: [B, n].

    p is the attention weight of a block, averaged over the heads of a group and divided by its sum.

    Args:
        weights: attention weights [B, H, n, M], without their gradient.
        scores: I [B, G, n, J].
        taken: chosen blocks, bool [B, G, n, J].
        block_size: tokens of a block.
    """
    taken = taken & (scores > -torch.inf)
    padded = F.pad(weights.detach(), (0, scores.shape[-1] * block_size - weights.shape[-1]))
    mass = padded.unflatten(-1, (scores.shape[-1], block_size)).sum(dim=-1)
    mass = mass.unflatten(1, (scores.shape[1], -1)).mean(dim=2).masked_fill(~taken, 0.0)
    share = mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    log_share = scores.masked_fill(~taken, -1e30).log_softmax(dim=-1)
    return (torch.xlogy(share, share) - share * log_share).sum(dim=-1).mean(dim=1)


def normalized(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Apply a norm with weights in the dtype of x, if there is one."""
    if norm is None:
        return x
    return torch.func.functional_call(norm, {name: weight.to(x.dtype) for name, weight in norm.named_parameters()}, x)


def exactly(linear: nn.Linear, x: Tensor) -> Tensor:
    """Project detached inputs in the dtype of the weights, also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.detach().to(linear.weight.dtype))
