"""Random features of the softmax kernel: Performer (Choromanski et al. 2021) and RFA (Peng et al. 2021)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from attentions.bases.linearized import LinearizedAttention, PositionInfo, mask_fill
from attentions.kernels.chunks import Extras
from attentions.kernels.exponential_features import KeyMeans, read_features
from attentions.kernels.linear_attention import Trigonometric
from attentions.kernels.norms import unit
from attentions.kernels.numerics import mask_value
from cab import DecodeState, Pattern, UnsupportedError, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims, SoftmaxLimit
from cab.registry.options import NonNegativeFloat, Positive

RELEASED_OFFSET = 1e-4


class ReleasedExponential:
    """Compute (exp(x) + 1e-4) / sqrt(r), as released, of logarithms whose maximum is zero."""

    def num_features(self, width: int) -> int:
        return width

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        return x.exp().add_(RELEASED_OFFSET).mul_(x.shape[-1] ** -0.5)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        return (features - RELEASED_OFFSET * features.shape[-1] ** -0.5).mul_(grad)


@register_attention("performer", patterns="NS CS NC CC", complexity="n", paper="Choromanski et al. 2021")
class PerformerAttention(LinearizedAttention):
    """Compute phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)), phi(x) = exp(W x - |x|^2 / 2) / sqrt(r) (CAB, Eq. 12, 13).

    x is scaled by E^(-1/4), so that phi(q) . phi(k) estimates exp(q . k / sqrt(E)). The rows of W are orthogonal
    Gaussians, drawn once for each head when the module is made and kept in the state_dict: training, evaluation
    and decoding use the same features (the released code redraws in every training step, and evaluates with
    a matrix that is not saved).

    Factors that keep exponentials in range cancel in the quotient and look at nothing they must not: NS, NC and CC
    are two softmaxes (``kernels.exponential_features``), CS has the running maximum over the keys up to the target.

    Args:
        num_features: random features r of each head.
        denominator_floor: 0 is the method. The released code has 0.1 together with features
            (exp(W x - |x|^2 / 2 - max W x) + 1e-4) / sqrt(r), the maximum over all features (and keys); any
            value above 0 does the same. Not in CS, where the released code sees the future.
    """

    # The error falls with the square root of the number of features.
    claims = Claims(softmax_limit=SoftmaxLimit(tuple({"num_features": n} for n in (64, 512, 4096)), tolerance=0.1))
    feature_map = ReleasedExponential()
    weights: Tensor

    def __init__(
        self,
        *,
        num_features: Positive = 16,
        denominator_floor: NonNegativeFloat = 0.0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if denominator_floor and self.pattern is Pattern.CS:
            raise UnsupportedError("denominator_floor is not supported in pattern CS; set it to 0")
        self.num_features = num_features
        self.denominator_floor = denominator_floor
        self.smallest_denominator = denominator_floor or LinearizedAttention.smallest_denominator
        self.register_buffer("weights", orthogonal_gaussians(self.num_heads, num_features, self.head_dim))

    def logarithms(self, x: Tensor) -> Tensor:
        """Compute W x - |x|^2 / 2 of scaled inputs, [B, H, N, E] to [B, H, N, r]."""
        x = x * self.head_dim**-0.25
        return x @ self.weights.to(x.dtype).transpose(-2, -1) - x.square().sum(dim=-1, keepdim=True) / 2

    def released_logarithms(self, x: Tensor, padding: Tensor | None, dim: tuple[int, ...]) -> Tensor:
        """Subtract the largest W x over ``dim`` from the logarithms, as the released code does."""
        squares = x.square().sum(dim=-1, keepdim=True) * self.scale / 2
        logs = self.logarithms(x)
        largest = mask_fill(logs + squares, padding, mask_value()).amax(dim=dim, keepdim=True)
        return mask_fill(logs, padding, mask_value()) - largest

    def reduce_source(self, key: Tensor, value: Tensor, padding: Tensor | None, where: PositionInfo) -> DecodeState:
        """Return the mean value of each feature, ``means`` [B, H, r, E], and the log of its sum, ``log_mass``."""
        if self.denominator_floor:
            return super().reduce_source(self.released_logarithms(key, padding, dim=(-2, -1)), value, padding, where)
        means, log_mass = feature_means(key * self.head_dim**-0.25, value, self.weights, padding)
        if padding is not None:
            means = means.masked_fill(padding.all(dim=1)[:, None, None, None], 0.0)
        return {"means": means, "log_mass": log_mass}

    def read(self, query: Tensor, summary: DecodeState, where: PositionInfo) -> Tensor:
        if self.denominator_floor:
            return super().read(self.released_logarithms(query, None, dim=(-1,)), summary, where)
        memory = [summary[name].flatten(0, 1) for name in ("means", "log_mass")]
        heads = (query * self.head_dim**-0.25).flatten(0, 1)
        return read_features(heads, _per_sequence(self.weights, query), *memory).unflatten(0, query.shape[:2])

    def features(self, x: Tensor, _where: PositionInfo) -> Tensor:
        logs = self.logarithms(x)
        return (logs - logs.detach().amax(dim=-1, keepdim=True)).exp()

    def write_state(
        self, key: Tensor, padding: Tensor | None, _where: PositionInfo, state: DecodeState, _extras: Extras
    ) -> tuple[Tensor, Tensor | None, DecodeState]:
        """Return phi(k) divided by exp of the running maximum of the logarithms, as the sums are."""
        logs = mask_fill(self.logarithms(key), padding, mask_value())
        running = logs.detach().amax(dim=-1).cummax(dim=-1).values
        previous = running[..., :1]
        if "scale" in state:
            previous = state["scale"].unsqueeze(-1)
            running = torch.maximum(running, previous)
        log_decay = torch.cat([previous, running[..., :-1]], dim=-1) - running
        keys = mask_fill((logs - running.unsqueeze(-1)).exp(), padding)
        return keys, log_decay, {"scale": running[..., -1]}

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys = self.logarithms(query), self.logarithms(key)
        if self.denominator_floor:
            queries, keys = (
                self.released_logarithms(x[None], None, dim)[0].exp() + RELEASED_OFFSET
                for x, dim in ((query, (-1,)), (key, (-2, -1)))
            )
            return self.normalize(queries @ keys.mT / self.num_features) @ value
        logs = (queries.unsqueeze(2) + keys.unsqueeze(1)).logsumexp(dim=-1)  # of phi(q) . phi(k)
        if self.pattern is Pattern.CS:
            logs = logs.masked_fill(torch.ones_like(logs, dtype=torch.bool).triu(1), -torch.inf)
        return logs.softmax(dim=-1) @ value


def feature_means(key: Tensor, value: Tensor, weights: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean value of each feature of keys [B, H, M, E], [B, H, r, E], and the logarithm of its sum."""
    hidden = None
    if padding is not None:
        hidden = torch.zeros_like(padding, dtype=key.dtype).masked_fill_(padding, mask_value(key.dtype))
        hidden = hidden[:, None, None].expand(-1, key.shape[1], -1, -1).flatten(0, 1)
    rows = key.flatten(0, 1), value.flatten(0, 1), _per_sequence(weights, key)
    means, log_mass = (x.unflatten(0, key.shape[:2]) for x in KeyMeans.apply(*rows, hidden))
    return means, log_mass


def _per_sequence(weights: Tensor, x: Tensor) -> Tensor:
    """Expand [H, r, E] to [B H, r, E]."""
    return weights.to(x.dtype).expand(x.shape[0], -1, -1, -1).flatten(0, 1)


def orthogonal_gaussians(num_heads: int, num_features: int, head_dim: int) -> Tensor:
    """Draw [H, r, E]: in blocks of E, orthogonal directions with the lengths of independent Gaussian vectors."""
    blocks = -(-num_features // head_dim)
    directions = torch.linalg.qr(torch.randn(num_heads, blocks, head_dim, head_dim)).Q.flatten(1, 2)
    lengths = torch.randn(num_heads, blocks * head_dim, head_dim).norm(dim=-1, keepdim=True)
    return (directions * lengths)[:, :num_features].contiguous()


@register_attention("rfa", patterns="NS CS NC CC", complexity="n", paper="Peng et al. 2021")
class RandomFeatureAttention(LinearizedAttention):
    """Compute phi(q) (phi(k)^T v) / phi(q) . sum phi(k), phi(x) = [sin W x', cos W x'] / sqrt(D) (RFA, Eq. 4 and 5).

    x' = x / |x|, and the rows of W are Gaussian with a learned standard deviation for each feature of a head, one at
    first: phi(q) . phi(k) estimates exp(-|q' - k'|^2 / 2), so weights are near those of softmax attention of unit
    vectors. They are drawn once and kept in the state_dict (the released code redraws in every training step).

    Estimates can be negative, so denominators are kept at least 0.001 from zero on their own side. The released code's
    causal form never goes below 1.0, with features times 0.1 in place of 1 / sqrt(D). The paper's gate (Eq. 7) is left
    out.

    Args:
        num_features: D, pairs of features of each head.
    """

    feature_map = Trigonometric()
    smallest_denominator = 0.001
    weights: Tensor

    def __init__(self, *, num_features: Positive = 64, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.deviation = nn.Parameter(torch.ones(self.num_heads, 1, self.head_dim))
        self.register_buffer("weights", torch.randn(self.num_heads, num_features, self.head_dim))

    def prepare(self, x: Tensor) -> Tensor:
        """Compute W x', [B, H, N, E] to [B, H, N, D]."""
        return unit(x) @ (self.weights * self.deviation).to(x.dtype).mT

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute with weights mean cos(w . (q' - k'))."""
        rows = self.weights * self.deviation
        query, key = (x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
        angles = torch.einsum("hde,hnme->hnmd", rows, query.unsqueeze(2) - key.unsqueeze(1))
        return self.normalize(angles.cos().mean(dim=-1)) @ value
