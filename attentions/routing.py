"""Clusters of tokens: Routing Transformer (Roy et al. 2021) and Cluster-Former (Wang et al. 2021).

Shapes: B batch, H heads, N tokens, D width, E width of a head, k or C clusters, w tokens per cluster.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.bucketed import BucketedAttention
from attentions.kernels.buckets import BUCKET_ROUNDING, BucketWindow
from attentions.kernels.chunks import by_length
from attentions.kernels.key_summaries import largest_indices
from attentions.kernels.token_cache import gather_tokens
from attentions.kernels.window_attention import Window, window_attention
from cab import Attention, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Fraction, Positive


@register_attention("routing", patterns="NS CS", complexity="n", paper="Roy et al. 2021")
class RoutingAttention(BucketedAttention):
    """Compute softmax attention within clusters in half of the heads, and in a sliding window in the others.

    Section 4 of the paper. In heads with clusters, queries and keys have mean 0 and variance 1, and belong to the
    center mu with the largest product. In NS, a cluster takes the w = N / k queries and keys nearest to it, at most
    ``window``; a token in several clusters gets the mean of their outputs, a token in none gets zero. In CS, a token
    belongs to the nearest cluster and attends to the last ``window`` tokens of it; keys equal queries. The published
    form of CS also takes the nearest w, which ranks a token against later ones.

    Each training step moves a center towards the (normalized) sum of its queries and keys, by a factor 1 - decay, and
    adds ``commitment`` times their mean squared distance to the loss. Time is N (k + w). Decoding stores all keys and
    values.

    Args:
        num_clusters: number of clusters k.
        window: tokens w per cluster, and the window of the other heads: preceding tokens in CS, half on either side in
            NS.
        local_heads: whether half of the heads (of several) have a sliding window.
        normalize: whether queries and keys are normalized.
        decay: decay of the moving average of the centers, in [0, 1].
        commitment: weight of the auxiliary loss.
    """

    claims = Claims(noncausal_rounding=BUCKET_ROUNDING)

    centroids: Tensor

    def __init__(
        self,
        *,
        num_clusters: Positive = 32,
        window: Positive = 256,
        local_heads: bool = True,
        normalize: bool = True,
        decay: Fraction = 0.999,
        commitment: float = 0.0001,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.num_buckets, self.window, self.normalize = num_clusters, window, normalize
        self.decay, self.commitment = decay, commitment
        if self.pattern is not Pattern.CS:  # in CS, keys equal queries
            limit = softmax_if(num_clusters=1, window=NUM_TOKENS, local_heads=False, normalize=False)
            self.claims = Claims(softmax_limit=limit)
        self.num_local = self.num_heads // 2 if local_heads else 0
        self.bucket_window = BucketWindow(window - 1, 0)
        centroids = torch.randn(self.num_heads - self.num_local, num_clusters, self.head_dim)
        self.register_buffer("centroids", F.layer_norm(centroids, (self.head_dim,)))

    def make_projections(self) -> None:
        super().make_projections()
        if self.pattern is Pattern.CS:
            del self.k_proj

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.normalized(self.exactly(self.q_proj, query))
        k = q if self.pattern is Pattern.CS else self.normalized(self.exactly(self.k_proj, key))
        return q, k, self.split_heads(self.v_proj(value))

    def normalized(self, heads: Tensor) -> Tensor:
        """Normalize to mean 0 and variance 1 in each head that has clusters."""
        if not self.normalize:
            return heads
        local, routed = heads[:, : self.num_local], heads[:, self.num_local :]
        return torch.cat([local, F.layer_norm(routed, (self.head_dim,))], dim=1)

    def scores(self, routed: Tensor) -> Tensor:
        """Multiply with the centers of the heads that have clusters: [B, H, N, k]."""
        with torch.autocast(routed.device.type, enabled=False):
            return routed.to(self.centroids.dtype) @ self.centroids.mT

    @torch.no_grad()
    def assign(self, query: Tensor) -> Tensor:
        """Assign tokens to the nearest cluster; in the other heads all tokens are in one cluster."""
        nearest = self.scores(query[:, self.num_local :]).argmax(dim=-1)
        return F.pad(nearest, (0, 0, self.num_local, 0))[None]

    def follow(self, heads: Tensor, padding: PaddingMasks) -> None:
        """Accumulate the loss and the statistics of normalized queries or keys [B, H, N, E]."""
        routed = heads[:, self.num_local :].to(self.centroids.dtype)
        with torch.no_grad():
            nearest = F.one_hot(self.scores(routed).argmax(dim=-1), self.num_buckets).to(routed.dtype)
            if padding.key is not None:
                nearest = nearest.masked_fill(padding.key[:, None, :, None], 0.0)
            self.accumulate_statistics(sums=(nearest.mT @ routed).sum(dim=0), counts=nearest.sum(dim=(0, 2)))
        far = (routed - nearest @ self.centroids).square().mean(dim=(1, 3))
        self.add_loss(self.commitment * far, padding)

    def update_buffers(self, *, sums: Tensor, counts: Tensor) -> None:  # type: ignore[override]
        new = F.layer_norm(sums, (self.head_dim,)).where(counts.unsqueeze(-1) > 0, self.centroids)
        self.centroids.lerp_(new, 1.0 - self.decay)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **draws: Tensor) -> Tensor:
        if self.training:
            self.follow(query, padding)
        if self.pattern is Pattern.CS:
            return super().attend(query, key, value, padding, **draws)
        if self.training:
            self.follow(key, padding)
        return by_length(self.attend_visible, (query, key, value), padding.key, masks=True)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        local, window = self.num_local, Window(self.window // 2, self.window // 2)
        q, k, v = (x[:, :local] for x in (query, key, value))
        routed = self.balanced(query[:, local:], key[:, local:], value[:, local:], hidden)
        if not local:
            return routed
        near = window_attention(q, k, v, window, key_padding_mask=hidden, dropout=self.weight_dropout)
        return torch.cat([near, routed], dim=1)

    def size(self, length: int) -> int:
        """Return w for a sequence of ``length`` tokens."""
        return min(-(-length // self.num_buckets), self.window)

    def balanced(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        """Attend within the nearest queries and keys of each cluster, for all clusters at once."""
        size, ranked = self.size(query.shape[2]), None
        if hidden is not None:  # fewer for shorter sequences: the nearest
            most = (lengths(query, hidden) + self.num_buckets - 1) // self.num_buckets
            ranked = torch.arange(size, device=query.device) < most.clamp(min=1)[:, None]
        with torch.no_grad():
            taken, listed = (self.nearest(x, size, hidden) for x in (query, key))

        def take(x: Tensor, index: Tensor) -> Tensor:
            """Gather [B, H, N, E] to [B H, k, w, E]."""
            gathered = x.gather(2, index.unsqueeze(3).expand(-1, -1, -1, x.shape[3]))
            return gathered.unflatten(2, (-1, size)).flatten(0, 1)

        q, k, v = take(query, taken), take(key, listed), take(value, listed)
        seen = None if ranked is None else ranked.repeat_interleave(query.shape[1], dim=0)[:, None, None]
        means = F.scaled_dot_product_attention(q, k, v, seen, self.weight_dropout)
        means = means.unflatten(0, query.shape[:2]).flatten(2, 3)
        index = taken.unsqueeze(3).expand_as(means)
        once = torch.ones_like(means[..., 0])
        if ranked is not None:
            once = once * ranked.repeat(1, self.num_buckets).unsqueeze(1)
            means = means * once.unsqueeze(3)
        total = torch.zeros_like(value, dtype=means.dtype).scatter_add(2, index, means)
        count = torch.zeros_like(total[..., 0]).scatter_add_(2, taken, once)
        return total / count.clamp(min=1.0).unsqueeze(3)

    def nearest(self, x: Tensor, size: int, hidden: Tensor | None) -> Tensor:
        """Return the tokens of ``x`` [B, H, N, E] nearest to each center, the nearest first."""
        scores = self.scores(x)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, :, None], -torch.inf)
        return largest_indices(scores, size, dim=2).mT.flatten(2)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **draws: Tensor) -> Tensor:
        if self.pattern is Pattern.CS:
            return super().reference(query, key, value, **draws)
        length, outputs = query.shape[1], []
        position = torch.arange(length, device=query.device)
        near = (position - position[:, None]).abs() <= self.window // 2
        for head in range(self.num_heads):
            logits = query[head] @ key[head].mT * self.scale
            if head < self.num_local:
                outputs.append(logits.masked_fill(~near, -torch.inf).softmax(dim=-1) @ value[head])
                continue
            output, count = torch.zeros_like(value[head]), torch.zeros_like(value[head, :, :1])
            for center in self.centroids[head - self.num_local]:
                taken, listed = (largest_indices(x[head] @ center, self.size(length)) for x in (query, key))
                means = logits[taken][:, listed].softmax(dim=-1) @ value[head, listed]
                output = output.index_add(0, taken, means)
                count[taken] += 1.0
            outputs.append(output / count.clamp(min=1.0))
        return torch.stack(outputs)


@register_attention("cluster_former", patterns="NS", complexity="n", paper="Wang et al. 2021")
class ClusterFormerAttention(Attention):
    """Compute softmax(q_i k_j / sqrt(E)) v_j within chunks of tokens ordered by clusters argmax_c x c (section 3).

    Clusters are of the layer's inputs x and the same for all heads; tokens of one cluster keep their order, and a chunk
    may hold the end of one and the beginning of the next. The paper fits the centers c every epoch to a memory of
    tokens; here each step of training moves them to the mean of their tokens by 1 - decay. Its network has such
    layers among those of a sliding window, which is :mod:`attentions.local`.

    Not causal: clusters would do (:mod:`attentions.routing`), but chunks move with later tokens. Time is N (C + chunk).

    Args:
        num_clusters: C.
        chunk_size: tokens that see each other.
        decay: of the centers.
    """

    claims = Claims(softmax_limit=softmax_if(chunk_size=NUM_TOKENS))
    requires_right_padding = True
    selects_tokens = True
    centroids: Tensor

    def __init__(
        self,
        *,
        num_clusters: Positive = 64,
        chunk_size: Positive = 256,
        decay: Fraction = 0.999,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.num_clusters, self.chunk_size, self.decay = num_clusters, chunk_size, decay
        self.register_buffer("centroids", torch.randn(num_clusters, self.embed_dim))

    @torch.no_grad()
    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        return {"inputs": x.to(self.centroids.dtype)}

    def assign(self, inputs: Tensor) -> Tensor:
        """Return the clusters [...] of inputs [..., D]."""
        with torch.autocast(inputs.device.type, enabled=False):
            return (inputs @ self.centroids.mT).argmax(dim=-1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, inputs: Tensor) -> Tensor:
        if self.training:
            nearest = F.one_hot(self.assign(inputs), self.num_clusters).to(inputs.dtype)
            if padding.key is not None:
                nearest = nearest.masked_fill(padding.key.unsqueeze(2), 0.0)
            with torch.autocast(inputs.device.type, enabled=False):
                self.accumulate_statistics(sums=(nearest.mT @ inputs).sum(dim=0), counts=nearest.sum(dim=(0, 1)))
        return by_length(self.attend_visible, (query, key, value, inputs), padding.key, masks=True)

    def update_buffers(self, *, sums: Tensor, counts: Tensor) -> None:  # type: ignore[override]
        means = sums / counts.clamp(min=1.0).unsqueeze(1)
        self.centroids.lerp_(means.where(counts.unsqueeze(1) > 0, self.centroids), 1.0 - self.decay)

    def attend_visible(
        self, query: Tensor, key: Tensor, value: Tensor, inputs: Tensor, *, hidden: Tensor | None = None
    ) -> Tensor:
        clusters = self.assign(inputs)
        if hidden is not None:  # at the end, where it was
            clusters = clusters.masked_fill(hidden, self.num_clusters)
        order = clusters.argsort(dim=1, stable=True)
        q, k, v = (gather_tokens(x, order) for x in (query, key, value))
        window = Window(0, 0, segment=min(self.chunk_size, query.shape[2]))
        output = window_attention(q, k, v, window, key_padding_mask=hidden, dropout=self.weight_dropout)
        return gather_tokens(output, order.argsort(dim=1))

    def reference(self, query: Tensor, key: Tensor, value: Tensor, inputs: Tensor) -> Tensor:
        clusters = self.assign(inputs).tolist()
        order = sorted(range(len(clusters)), key=lambda token: (clusters[token], token))
        output = torch.zeros_like(query)
        for begin in range(0, len(order), self.chunk_size):
            chunk = order[begin : begin + self.chunk_size]
            weights = (query[:, chunk] @ key[:, chunk].mT * self.scale).softmax(dim=-1)
            output[:, chunk] = weights @ value[:, chunk]
        return output
