"""PoinTr (Yu et al. 2021): completes a point cloud from its proxies. Attention layers: NS and NC."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.points import PointProxies, edge_features, farthest_points, nearest_points, take
from backbones.layers.transformer import FeedForward, stack
from cab import Attention, Backbone, LayerPosition, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory


class PoinTrOutput(NamedTuple):
    """Predicted points.

    Attributes:
        coarse: the predicted centers [B, Q, 3] and as many input points, with repetition if there are fewer.
        fine: all predicted points [B, Q * points_per_query, 3] and all input points.
    """

    coarse: Tensor
    fine: Tensor


@register_backbone("pointr", paper="Yu et al. 2021")
class PoinTr(Backbone):
    """Complete a partial point cloud.

    The defaults are CAB's network: 52,830,054 parameters with vanilla attention without biases. The parameter count
    implies width 384, 6 + 8 layers and 3,584 queries where Table 14 prints other numbers, and Table 1's 1,536 proxies.
    All blocks own a nearest-neighbor branch; only the first of each stack uses it.

    Args:
        make_attention: builds the attention layers: encoder self and decoder self (NS), decoder cross (NC).
        embed_dim, num_heads, encoder_layers, decoder_layers: sizes of the stacks.
        mlp_ratio: width of the feed-forward layer as a multiple of ``embed_dim``.
        first_samples, num_proxies: points retained by the two samplings of the front end.
        num_queries: predicted centers; each is unfolded into ``points_per_query`` points, a square number.
        num_neighbors, num_proxy_neighbors: neighbors in the blocks and in the front end.
        num_global: width of the global shape vector.
        init_std: standard deviation of the truncated normal initialization of blocks and centers, attentions included,
            with zero biases, as published; null uses each module's own initialization, which suits narrow networks.
        checkpoint_activations: recompute blocks in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        embed_dim: int = 384,
        num_heads: int = 6,
        encoder_layers: int = 6,
        decoder_layers: int = 8,
        mlp_ratio: float = 2.0,
        first_samples: int = 2048,
        num_proxies: int = 1536,
        num_queries: int = 3584,
        points_per_query: int = 4,
        num_neighbors: int = 8,
        num_proxy_neighbors: int = 16,
        num_global: int = 1024,
        init_std: float | None = 0.02,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        side = math.isqrt(points_per_query)
        if side * side != points_per_query or num_proxies > first_samples:
            raise UserError(
                f"points_per_query {points_per_query} must be a square number, and num_proxies {num_proxies} at most "
                f"first_samples {first_samples}"
            )
        self.first_samples, self.num_queries, self.num_neighbors = first_samples, num_queries, num_neighbors
        self.checkpoint_activations = checkpoint_activations
        ffn_dim = int(embed_dim * mlp_ratio)
        self.proxies = PointProxies(num_proxies, num_proxy_neighbors)
        self.position = Pointwise(3, 128, embed_dim)
        self.input = Pointwise(PointProxies.channels, embed_dim, embed_dim)
        attention = partial(make_attention, embed_dim=embed_dim, num_heads=num_heads)
        self.encoder = stack(encoder_layers, partial(EncoderBlock, attention, embed_dim, ffn_dim))
        self.shape = Pointwise(embed_dim, num_global, num_global)
        self.coarse = nn.Sequential(
            nn.Linear(num_global, num_global), nn.ReLU(), nn.Linear(num_global, 3 * num_queries)
        )
        self.query = nn.Sequential(
            nn.Linear(num_global + 3, num_global),
            nn.LeakyReLU(0.2),
            nn.Linear(num_global, num_global),
            nn.LeakyReLU(0.2),
            nn.Linear(num_global, embed_dim),
        )
        self.decoder = stack(decoder_layers, partial(DecoderBlock, attention, embed_dim, ffn_dim))
        self.fine_shape = Pointwise(embed_dim, num_global, num_global)
        self.reduce = nn.Linear(num_global + embed_dim + 3, embed_dim)
        self.fold = Folding(embed_dim, side)
        if init_std is not None:
            self._initialize(init_std)

    def _initialize(self, std: float) -> None:
        """Initialize the transformer as in the public network.

        Point-wise layers are Xavier normal, all others truncated normal with zero biases; layers that unfold the
        queries retain PyTorch's default.
        """
        for pointwise in (self.proxies.input, self.position, self.input, self.shape, self.query):
            for module in pointwise.modules():
                if isinstance(module, nn.Linear):  # a convolution of width 1 in the public code
                    nn.init.xavier_normal_(module.weight)
        for transformer in self.encoder, self.coarse, self.decoder:
            for module in transformer.modules():
                if isinstance(module, nn.Conv1d):
                    nn.init.xavier_normal_(module.weight)
                if isinstance(module, nn.Linear):
                    nn.init.trunc_normal_(module.weight, std=std)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def forward(self, partial: Tensor) -> PoinTrOutput:
        """Complete ``partial`` [B, P, 3]."""
        self._check(partial)
        order = farthest_points(partial, max(self.first_samples, self.num_queries))
        positions, features = self.proxies(partial, order[:, : self.first_samples])
        x = self.input(features)
        position = self.position(positions)
        neighbors = nearest_points(positions, positions, self.num_neighbors)
        for i, block in enumerate(self.encoder):
            x = self.run_layer(block, x + position, neighbors if i == 0 else None)
        shape = self.shape(x).amax(dim=1)
        coarse = self.coarse(shape).unflatten(-1, (self.num_queries, 3))
        q = self.query(torch.cat([shape.unsqueeze(1).expand(-1, self.num_queries, -1), coarse], dim=-1))
        near_self = nearest_points(coarse, coarse, self.num_neighbors)
        near_cross = nearest_points(coarse, positions, self.num_neighbors)
        for i, block in enumerate(self.decoder):
            q = self.run_layer(block, q, x, *((near_self, near_cross) if i == 0 else (None, None)))
        fine = self._unfold(q, coarse)
        kept = take(partial, order[:, : self.num_queries])
        return PoinTrOutput(torch.cat([coarse, kept], dim=1), torch.cat([fine, partial], dim=1))

    def _unfold(self, q: Tensor, coarse: Tensor) -> Tensor:
        """Unfold each query [B, Q, D] to a patch of points around its center: [B, Q * points_per_query, 3]."""
        shape = self.fine_shape(q).amax(dim=1, keepdim=True).expand(-1, self.num_queries, -1)
        x = self.reduce(torch.cat([shape, q, coarse], dim=-1))
        return (self.fold(x) + coarse.unsqueeze(2)).flatten(1, 2)

    def _check(self, partial: Tensor) -> None:
        if partial.dim() != 3 or partial.shape[-1] != 3 or len(partial) < 1:
            raise UserError(f"partial must be [batch, points, 3] and not empty, got {list(partial.shape)}")
        if partial.shape[1] < self.first_samples:
            raise UserError(
                f"partial {list(partial.shape)} has fewer points than first_samples {self.first_samples}: give more "
                "points, or build the backbone with fewer samples"
            )


class Pointwise(nn.Module):
    """Two linear layers per point, with batch norm and leaky ReLU between them."""

    def __init__(self, channels_in: int, hidden: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels_in, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        return self.second(F.leaky_relu(x, 0.2))


class Neighborhood(nn.Module):
    """Combine the attention output with nearest-neighbor features (Yu et al., section 3.3, Fig. 3)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.edges = nn.Linear(2 * embed_dim, embed_dim)
        self.merge = nn.Linear(2 * embed_dim, embed_dim)

    def forward(self, attended: Tensor, x: Tensor, neighbors: Tensor | None, center: Tensor) -> Tensor:
        """Return ``attended`` unchanged if there are no ``neighbors`` [B, M, k] of ``center`` in ``x``."""
        if neighbors is None:
            return attended
        edges = F.leaky_relu(self.edges(edge_features(x, neighbors, center)), 0.2).amax(dim=2)
        return self.merge(torch.cat([attended, edges], dim=-1))


class EncoderBlock(nn.Module):
    """Self attention (NS) with a neighborhood branch, and feed-forward layer; pre-norm."""

    def __init__(
        self, attention: Callable[..., Attention], embed_dim: int, ffn_dim: int, *, layer_position: LayerPosition
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)
        self.attention = attention(Pattern.NS, layer_position=layer_position)
        self.neighborhood = Neighborhood(embed_dim)
        self.mlp_norm = nn.LayerNorm(embed_dim)
        self.mlp = FeedForward(embed_dim, ffn_dim, activation="gelu")

    def forward(self, x: Tensor, neighbors: Tensor | None) -> Tensor:
        y = self.norm(x)
        x = x + self.neighborhood(self.attention(y), y, neighbors, y)
        return x + self.mlp(self.mlp_norm(x))


class DecoderBlock(nn.Module):
    """Self attention (NS) and cross attention (NC), both with a neighborhood branch, and feed-forward layer."""

    def __init__(
        self, attention: Callable[..., Attention], embed_dim: int, ffn_dim: int, *, layer_position: LayerPosition
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)
        self.self_attention = attention(Pattern.NS, layer_position=layer_position)
        self.self_neighborhood = Neighborhood(embed_dim)
        self.query_norm = nn.LayerNorm(embed_dim)
        self.memory_norm = nn.LayerNorm(embed_dim)
        self.cross_attention = attention(Pattern.NC, layer_position=layer_position)
        self.cross_neighborhood = Neighborhood(embed_dim)
        self.mlp_norm = nn.LayerNorm(embed_dim)
        self.mlp = FeedForward(embed_dim, ffn_dim, activation="gelu")

    def forward(self, q: Tensor, memory: Tensor, near_self: Tensor | None, near_cross: Tensor | None) -> Tensor:
        y = self.norm(q)
        q = q + self.self_neighborhood(self.self_attention(y), y, near_self, y)
        y, memory = self.query_norm(q), self.memory_norm(memory)
        q = q + self.cross_neighborhood(self.cross_attention(y, memory, memory), memory, near_cross, y)
        return q + self.mlp(self.mlp_norm(q))


class Folding(nn.Module):
    """Fold a grid twice into a patch of points (Yang et al. 2018): [B, Q, D] to [B, Q, side^2, 3]."""

    grid: Tensor

    def __init__(self, embed_dim: int, side: int, *, hidden: int = 256) -> None:
        super().__init__()
        line = torch.linspace(-1.0, 1.0, side)
        self.register_buffer("grid", torch.cartesian_prod(line, line).reshape(side * side, 2), persistent=False)
        self.first = FoldingMaps(embed_dim + 2, hidden)
        self.second = FoldingMaps(embed_dim + 3, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_queries, _ = x.shape
        count = len(self.grid)
        x = x.unsqueeze(2).expand(-1, -1, count, -1)
        grid = self.grid.to(x.dtype).expand(batch_size, num_queries, -1, -1)
        points = self.first(torch.cat([grid, x], dim=-1))
        return self.second(torch.cat([points.to(x.dtype), x], dim=-1))


class FoldingMaps(nn.Module):
    """Three linear layers with batch norm and ReLU between them; the output is coordinates."""

    def __init__(self, channels_in: int, hidden: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(channels_in, hidden), nn.Linear(hidden, hidden // 2)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden // 2)])
        self.output = nn.Linear(hidden // 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[:-1]
        x = x.flatten(0, -2)
        for linear, norm in zip(self.maps, self.norms, strict=True):
            x = F.relu(norm(linear(x)))
        return self.output(x).unflatten(0, shape)
