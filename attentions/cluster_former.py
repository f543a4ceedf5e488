"""Cluster-Former (Wang et al. 2021): tokens are sorted by cluster, and attend to each other in chunks of that order.

Shapes: B batch, H heads, N tokens, D width, E width of a head, C clusters.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.options import check_at_least, check_fraction
from attentions.kernels.chunks import each_length
from attentions.kernels.token_cache import gather_tokens
from attentions.kernels.window_attention import Window, window_attention
from cab import Attention, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit


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

    requires_right_padding = True
    selects_tokens = True
    centroids: Tensor

    def __init__(
        self, *, num_clusters: int = 64, chunk_size: int = 256, decay: float = 0.999, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        check_at_least(1, num_clusters=num_clusters, chunk_size=chunk_size)
        check_fraction(decay=decay)
        self.num_clusters, self.chunk_size, self.decay = num_clusters, chunk_size, decay
        self.register_buffer("centroids", torch.randn(num_clusters, self.embed_dim))

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        return SoftmaxLimit(({"chunk_size": num_tokens},))

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
        return each_length(self.attend_unpadded, (query, key, value, inputs), padding.key)

    def update_buffers(self, *, sums: Tensor, counts: Tensor) -> None:  # type: ignore[override]
        means = sums / counts.clamp(min=1.0).unsqueeze(1)
        self.centroids.lerp_(means.where(counts.unsqueeze(1) > 0, self.centroids), 1.0 - self.decay)

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor, inputs: Tensor) -> Tensor:
        order = self.assign(inputs).argsort(dim=1, stable=True)
        q, k, v = (gather_tokens(x, order) for x in (query, key, value))
        window = Window(0, 0, segment=min(self.chunk_size, query.shape[2]))
        output = window_attention(q, k, v, window, dropout=self.weight_dropout)
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
