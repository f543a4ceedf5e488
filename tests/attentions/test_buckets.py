"""Attention inside buckets: random rotations, clusters that learn, chunks of sorted tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.reformer import ReformerAttention
from attentions.routing import RoutingAttention
from cab.attention import PaddingMasks
from cab.training import after_optimizer_step
from tests.attentions import agreement


def leak(module: Any, cut: int, length: int) -> float:
    """How far outputs before ``cut`` move when the tokens from there on are replaced."""
    x = torch.randn(1, length, agreement.WIDTH, dtype=torch.float64)
    other = torch.cat([x[:, :cut], torch.randn_like(x[:, cut:])], dim=1)
    return float((module(x) - module(other))[:, :cut].detach().abs().max())


class PublishedChunks(ReformerAttention):
    """The causal Reformer as published: chunks of the sorted row, each of which sees itself and the one before."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks, **draws: Tensor) -> Tensor:
        buckets = self.assign(query, **draws)[0]
        position = torch.arange(query.shape[2])
        chunk = buckets.argsort(dim=-1, stable=True).argsort(dim=-1) // self.bucket_window.left
        behind = chunk.unsqueeze(-1) - chunk.unsqueeze(-2)
        seen = (behind >= 0) & (behind <= 1) & (position < position[:, None])
        logits = query @ key.mT * self.scale
        return self.weigh(logits, seen, position == position[:, None]) @ value


def test_published_chunks_see_the_future() -> None:
    """Which earlier keys a token sees depends on later tokens, which move the borders of chunks."""
    options = {"pattern": "CS", "embed_dim": agreement.WIDTH, "num_heads": agreement.HEADS, "num_buckets": 4}
    published, sound = (cls(chunk_size=2, rounds=1, **options).double().eval() for cls in CLASSES)
    assert leak(published, 40, 60) > 0.01
    assert leak(sound, 40, 60) < 1e-12


CLASSES = PublishedChunks, ReformerAttention


class PublishedTopW(RoutingAttention):
    """The causal Routing Transformer as published: each cluster takes its nearest tokens, masked inside by position."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks) -> Tensor:
        length = query.shape[2]
        taken = self.scores(query).topk(self.size(length), dim=2).indices.mT  # [B, H, k, w]
        member = torch.zeros(*taken.shape[:3], length, dtype=torch.bool).scatter_(3, taken, True)
        seen = (member.unsqueeze(4) & member.unsqueeze(3)).tril()
        logits = (query @ key.mT * self.scale).unsqueeze(2)
        means = self.weigh(logits, seen, torch.eye(length, dtype=torch.bool)) @ value.unsqueeze(2)
        return (means * member.unsqueeze(4)).sum(dim=2) / member.sum(dim=2).clamp(min=1).unsqueeze(3)


def test_published_top_w_sees_the_future() -> None:
    """Whether a token is among the nearest of a cluster depends on later tokens."""
    options = {"pattern": "CS", "embed_dim": agreement.WIDTH, "num_heads": agreement.HEADS, "num_clusters": 4}
    published, sound = (cls(local_heads=False, **options).double() for cls in (PublishedTopW, RoutingAttention))
    assert leak(published, 40, 60) > 0.01
    assert leak(sound, 40, 60) < 1e-12


def test_centers_learn() -> None:
    """By 1 - decay towards the sum of their tokens, made of mean 0 and variance 1; those without tokens stay."""
    module = agreement.make("routing", "CS", num_clusters=3, local_heads=False, decay=0.75).train()
    before = module.centroids.clone()
    x = torch.randn(1, 2, agreement.WIDTH, dtype=torch.float64)
    module(x)
    routed = module.project(x, x, x)[0][0]
    after_optimizer_step(module)
    for head in range(agreement.HEADS):
        nearest = (routed[head] @ before[head].T).argmax(dim=-1)
        for cluster in range(3):
            own = routed[head][nearest == cluster]
            expected = before[head, cluster]
            if len(own):
                expected = 0.75 * expected + 0.25 * F.layer_norm(own.sum(dim=0), (module.head_dim,))
            torch.testing.assert_close(module.centroids[head, cluster], expected)


def test_centers_of_inputs_learn() -> None:
    """By 1 - decay to the mean of their tokens, which at decay 0 is k-means."""
    module = agreement.make("cluster_former", "NS", num_clusters=2, decay=0.0).train()
    x = torch.randn(1, 30, agreement.WIDTH, dtype=torch.float64)
    x[0, :15, 0], x[0, 15:, 0] = 9.0, -9.0
    module.centroids.zero_()[:, 0] = torch.tensor([1.0, -1.0])
    module(x)
    after_optimizer_step(module)
    torch.testing.assert_close(module.centroids, torch.stack([x[0, :15].mean(dim=0), x[0, 15:].mean(dim=0)]))
