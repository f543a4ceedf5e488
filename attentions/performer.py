"""Performer (Choromanski et al. 2021): positive random features of the softmax kernel, FAVOR+."""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.kernels.exponential_features import FeatureMean, KeyMeans
from attentions.kernels.precision import no_weight
from attentions.linear import normalised
from attentions.linearized import LinearizedAttention, Where, hide
from cab import Pattern, UserError, register_attention
from cab.attention import SoftmaxLimit, State


@register_attention("performer", patterns="NS CS NC CC", complexity="n", paper="Choromanski et al. 2021")
class PerformerAttention(LinearizedAttention):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)), phi(x) = exp(W x - |x|^2 / 2) / sqrt(r)  (CAB, Eq. 12 and 13).

    x is scaled by E^(-1/4), so that phi(q) . phi(k) estimates exp(q . k / sqrt(E)). The rows of W are orthogonal
    Gaussians, drawn once for each head when the module is made and kept in the state_dict: training, evaluation
    and decoding use the same features (the released code draws anew in every training step, and evaluates with
    a matrix that is not saved).

    Factors that keep exponentials in range cancel in the quotient and look at nothing they must not: NS, NC and CC
    are two softmaxes (``exponential_features``), CS has the running maximum over the keys up to the target.

    Args:
        num_features: random features r of each head.
        denominator_floor: 0 is the method. The released code has 0.1 together with features
            (exp(W x - |x|^2 / 2 - max) + 1e-4) / sqrt(r), the maximum over all features (and keys); any
            value above 0 does the same in NS, NC and CC, and bounds the running denominator in CS.

    Raises:
        ValueError: for ``num_features`` below 1 or a negative floor.
    """

    weights: Tensor

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_features: int = 16,
        denominator_floor: float = 0.0,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_features < 1:
            raise UserError(f"num_features must be at least 1, got {num_features}")
        if denominator_floor < 0:
            raise UserError(f"denominator_floor must not be negative, got {denominator_floor}")
        self.num_features = num_features
        self.denominator_floor = denominator_floor
        self.smallest_denominator = denominator_floor or LinearizedAttention.smallest_denominator
        self.register_buffer("weights", orthogonal_gaussians(num_heads, num_features, self.head_dim))

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, _num_tokens: int) -> SoftmaxLimit:
        """Many features: the error of the estimate falls with their square root."""
        return SoftmaxLimit(({"num_features": 64}, {"num_features": 512}, {"num_features": 4096}), tolerance=0.1)

    def logarithms(self, x: Tensor) -> Tensor:
        """W x - |x|^2 / 2 of scaled inputs, [B, H, N, E] to [B, H, N, r]."""
        x = x * self.head_dim**-0.25
        return x @ self.weights.to(x.dtype).transpose(-2, -1) - x.square().sum(dim=-1, keepdim=True) / 2

    # --- all keys ----------------------------------------------------------------------------------------

    def summarise(self, key: Tensor, value: Tensor, padding: Tensor | None, where: Where) -> State:  # noqa: ARG002
        """Of each feature the mean value ``means`` [B, H, r, E] and the logarithm of its sum, ``log_mass`` [B, H, r].

        With a floor, sums as released, divided by the largest feature.
        """
        if self.denominator_floor:
            logs = self.logarithms(key)
            if padding is not None:
                logs = logs.masked_fill(padding[:, None, :, None], no_weight())
            features = (logs - logs.detach().amax(dim=(-2, -1), keepdim=True)).exp()
            features = hide((features + RELEASED_OFFSET) * self.num_features**-0.5, padding)
            return {"sums": features.transpose(-2, -1) @ value, "mass": features.sum(dim=-2)}
        scale = self.head_dim**-0.25
        hidden = None
        if padding is not None:
            hidden = torch.zeros_like(padding, dtype=key.dtype).masked_fill_(padding, no_weight())
            hidden = hidden[:, None, None].expand(-1, self.num_heads, -1, -1).flatten(0, 1)
        heads = ((key * scale).flatten(0, 1), value.flatten(0, 1))
        means, log_mass = KeyMeans.apply(*heads, self._weights_of_rows(key), hidden)
        means, log_mass = (x.unflatten(0, key.shape[:2]) for x in (means, log_mass))
        if padding is not None:
            means = means.masked_fill(padding.all(dim=1)[:, None, None, None], 0.0)
        return {"means": means, "log_mass": log_mass}

    def read(self, query: Tensor, summary: State, where: Where) -> Tensor:
        if self.denominator_floor:
            features = self.query_features(query, where)
            mass = (features @ summary["mass"].unsqueeze(-1)).clamp(min=self.smallest_denominator)
            return features @ summary["sums"] / mass
        memory = [summary[name].flatten(0, 1) for name in ("means", "log_mass")]
        heads = (query * self.head_dim**-0.25).flatten(0, 1)
        return FeatureMean.apply(heads, self._weights_of_rows(query), *memory).unflatten(0, query.shape[:2])

    def _weights_of_rows(self, x: Tensor) -> Tensor:
        """[B H, r, E]."""
        return self.weights.to(x.dtype).expand(x.shape[0], -1, -1, -1).flatten(0, 1)

    # --- keys up to the query ----------------------------------------------------------------------------

    def query_features(self, query: Tensor, where: Where) -> Tensor:  # noqa: ARG002
        logs = self.logarithms(query)
        features = (logs - logs.detach().amax(dim=-1, keepdim=True)).exp()
        if self.denominator_floor and self.pattern is not Pattern.CS:
            features = (features + RELEASED_OFFSET) * self.num_features**-0.5
        return features

    def causal_key_features(
        self,
        key: Tensor,
        padding: Tensor | None,
        scale: Tensor | None,
        where: Where,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        logs = self.logarithms(key)
        if padding is not None:
            logs = logs.masked_fill(padding[:, None, :, None], no_weight())
        running = logs.detach().amax(dim=-1).cummax(dim=-1).values
        if scale is not None:
            running = torch.maximum(running, scale.unsqueeze(-1))
        features = (logs - running.unsqueeze(-1)).exp()
        if padding is not None:
            features = features.masked_fill(padding[:, None, :, None], 0.0)
        return features, running

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """With the weight of every pair written out: exp of the logarithms of its features, summed."""
        pairs = self.logarithms(query).unsqueeze(3) + self.logarithms(key).unsqueeze(2)
        logs = pairs.logsumexp(dim=-1)
        if self.pattern is Pattern.CS:
            future = torch.ones_like(logs, dtype=torch.bool).triu(1)
            logs = logs.masked_fill(future, no_weight())
        if key_padding_mask is not None:
            logs = logs.masked_fill(key_padding_mask[:, None, None, :], no_weight())
        if self.denominator_floor:
            return self._released(query, key, value, key_padding_mask)
        weights = (logs - logs.detach().amax(dim=-1, keepdim=True)).exp()
        return normalised(weights, value, self.pattern, key_padding_mask)

    def _released(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """The form with a floor under the denominator, pair by pair."""
        queries, keys = self.logarithms(query), self.logarithms(key)
        if key_padding_mask is not None:
            keys = keys.masked_fill(key_padding_mask[:, None, :, None], no_weight())
        queries = (queries - queries.detach().amax(dim=-1, keepdim=True)).exp()
        if self.pattern is Pattern.CS:
            largest = keys.detach().amax(dim=-1).cummax(dim=-1).values
            weights = (queries.unsqueeze(3) * (keys.unsqueeze(2) - largest[:, :, :, None, None]).exp()).sum(dim=-1)
        else:
            keys = (keys - keys.detach().amax(dim=(-2, -1), keepdim=True)).exp()
            weights = (queries + RELEASED_OFFSET) @ (keys + RELEASED_OFFSET).transpose(-2, -1) / self.num_features
        return normalised(weights, value, self.pattern, key_padding_mask, self.denominator_floor)


RELEASED_OFFSET = 1e-4


def orthogonal_gaussians(num_heads: int, num_features: int, head_dim: int) -> Tensor:
    """[H, r, E]: in blocks of E, orthogonal directions with the lengths of independent Gaussian vectors."""
    blocks = -(-num_features // head_dim)
    directions = torch.linalg.qr(torch.randn(num_heads, blocks, head_dim, head_dim)).Q.flatten(1, 2)
    lengths = torch.randn(num_heads, blocks * head_dim, head_dim).norm(dim=-1, keepdim=True)
    return (directions * lengths)[:, :num_features].contiguous()
