"""Kernel attention over all keys: feature maps that are cheap to evaluate, and sums of their products.

Tokens are processed in pieces whose features fit in the processor cache. For the backward pass, features are stored in
place of the tokens if they are as wide, and recomputed otherwise. The gradients are hand-written
(results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B batch, H heads, N queries, M keys, E width of a head, r features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import groups_at_once, tokens_at_once
from attentions.kernels.numerics import once_differentiable

LEAK = 0.01
"""Slope of the leaky ReLU below zero, torch's."""

HEAD_WIDTH = 64
"""Features of a head, for which the number of tokens at once was measured."""


class Elementwise(NamedTuple):
    """An elementwise function, its derivative as a function of its value, and whether it is never negative."""

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    is_positive: bool

    def num_features(self, width: int) -> int:
        return width

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        return self.function(x)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        return self.slope(features).mul_(grad)


def elu1(x: Tensor) -> Tensor:
    """Return elu(x) + 1, on a CPU as max(x, 0) + exp(min(x, 0)), since elu(x) + 1 is 0 for x below -17 in float32."""
    if x.device.type != "cpu":
        return F.elu(x).add_(1.0)
    return F.threshold(x, 0.0, 0.0).add_(x.clamp(max=0.0).exp_())


Kernel = Literal["elu1", "relu", "leaky_relu", "identity"]

KERNELS: dict[Kernel, Elementwise] = {
    "elu1": Elementwise(elu1, lambda y: y.clamp(max=1.0), True),
    "relu": Elementwise(F.relu, lambda y: (y > 0).to(y.dtype), True),
    "leaky_relu": Elementwise(lambda x: F.leaky_relu(x, LEAK), lambda y: (y > 0).to(y.dtype).clamp_(min=LEAK), False),
    "identity": Elementwise(torch.clone, torch.ones_like, False),
}


class Reweighted:
    """Multiply features [.., N, E] with factors cos and sin [.., N, 2, 1] of a position: [.., N, 2 E].

    The same two factors give the features back, since their squares sum to one.
    """

    def __init__(self, kernel: Elementwise) -> None:
        self.kernel = kernel

    def num_features(self, width: int) -> int:
        return 2 * width

    def forward(self, x: Tensor, factors: Tensor | None) -> Tensor:
        assert factors is not None
        return (self.kernel.function(x).unsqueeze(-2) * factors).flatten(-2)

    def backward(self, features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:
        assert factors is not None
        cos, sin = factors.unbind(dim=-2)
        plain, grad = ((x * cos).addcmul_(y, sin) for x, y in (features.chunk(2, dim=-1), grad.chunk(2, dim=-1)))
        return self.kernel.slope(plain).mul_(grad)


class Trigonometric:
    """Map [.., r] to [sin x, cos x] / sqrt(r), [.., 2 r]; products of two are the mean of cos(x - y)."""

    def num_features(self, width: int) -> int:
        return 2 * width

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        return torch.cat([x.sin(), x.cos()], dim=-1).mul_(x.shape[-1] ** -0.5)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        sin, cos = features.chunk(2, dim=-1)
        d_sin, d_cos = grad.chunk(2, dim=-1)
        return (d_sin * cos).addcmul_(d_cos, sin, value=-1.0)


class Taylor:
    """Map [.., d] to 1, x and pairwise products, [.., 1 + d + d (d + 1) / 2]: second-order Taylor features.

    The inner product of two feature vectors is 1 + s + s^2 / 2 with s = x.y. Each pair of different features occurs
    once; in the published form it occurs twice, scaled by sqrt(1/2).
    """

    def num_features(self, width: int) -> int:
        return 1 + width + width * (width + 1) // 2

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        width = x.shape[-1]
        pairs = [x[..., : width - apart] * x[..., apart:] for apart in range(1, width)]
        return torch.cat([torch.ones_like(x[..., :1]), x, x.square().mul_(0.5**0.5), *pairs], dim=-1)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        width = int((2 * features.shape[-1]) ** 0.5) - 1
        sizes = [1, width, *range(width, 0, -1)]
        x = features[..., 1 : width + 1]
        _, linear, squared, *pairs = grad.split(sizes, dim=-1)
        result = linear.addcmul(squared, x, value=2**0.5)
        for apart, pair in enumerate(pairs, start=1):
            result[..., : width - apart].addcmul_(pair, x[..., apart:])
            result[..., apart:].addcmul_(pair, x[..., : width - apart])
        return result


class FeatureMap(Protocol):
    """A feature map phi and its gradient. ``factors`` [B or 1, 1, tokens, ...] depend on the position, or are None."""

    def num_features(self, width: int) -> int:
        """Return the number of features of tokens with ``width`` elements."""
        ...

    def forward(self, x: Tensor, factors: Tensor | None) -> Tensor:
        """Return the features of ``x``."""
        ...

    def backward(self, features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:
        """Return the gradient of ``x`` from its features and their gradient."""
        ...


def safe_denominator(x: Tensor, smallest: float) -> Tensor:
    """Return ``x`` with absolute values below ``smallest`` raised to it, signs kept, for use as a denominator."""
    return torch.where(x.abs() < smallest, torch.full_like(x, smallest).copysign(x), x)


_Piece = tuple[slice, slice, slice]
"""Rows, heads and tokens of a tensor [B, H, N, ...]; all heads."""


def _pieces(x: Tensor, num_features: int) -> Iterator[_Piece]:
    """Yield the pieces of ``x`` [B, H, N, E]: of few rows, as torch copies parts of several rows for a product.

    Under the compiler, whose graph has all of them, they are the fewest: of all rows.
    """
    num_rows, num_heads, length, _ = x.shape
    heads = max(1, num_heads * num_features // HEAD_WIDTH)
    at_once = num_rows if torch.compiler.is_compiling() else 1
    count = -(-length // tokens_at_once(heads * at_once, x.device))
    num_tokens = max(1, -(-length // max(count, 1)))
    num_rows_at_once = max(at_once, groups_at_once(heads * num_tokens, x.device))
    for row in range(0, num_rows, num_rows_at_once):
        for token in range(0, length, num_tokens):
            yield slice(row, row + num_rows_at_once), slice(None), slice(token, token + num_tokens)


def _cut(factors: Tensor | None, piece: _Piece) -> Tensor | None:
    """Return the position factors [B or 1, 1, N, ...] of a piece."""
    if factors is None:
        return None
    rows, _, tokens = piece
    return factors[rows if len(factors) > 1 else slice(None), :, tokens]


def _hide(x: Tensor, padding: Tensor | None, piece: _Piece) -> None:
    """Set a piece ``x`` of features or of their gradient to zero at the padding [B, M]."""
    if padding is not None:
        rows, _, tokens = piece
        x.masked_fill_(padding[rows, None, tokens, None], 0.0)


def _kept(ctx: Any, kind: FeatureMap, x: Tensor) -> Tensor | None:
    """Return where the features of ``x`` are to be stored, or None where the tokens are, or no gradient is needed."""
    stores_features = kind.num_features(x.shape[-1]) == x.shape[-1]
    return torch.empty_like(x) if stores_features and any(ctx.needs_input_grad) else None


def sum_of_keys(
    kind: FeatureMap, key: Tensor, value: Tensor, factors: Tensor | None, padding: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute phi(k)^T v [B, H, r, E] and phi(k)^T 1 [B, H, r] from keys and values [B, H, M, E] and padding [B, M]."""
    sums: tuple[Tensor, Tensor] = _SumOfKeys.apply(kind, key, _origin(key), value, factors, padding)
    return sums


def mean_of_queries(
    kind: FeatureMap, query: Tensor, factors: Tensor | None, sums: Tensor, mass: Tensor, smallest: float
) -> Tensor:
    """Compute phi(q) sums / phi(q) mass, [B, H, N, E], with denominators of at least ``smallest`` in absolute value."""
    mean: Tensor = _MeanOfQueries.apply(kind, query, _origin(query), factors, sums, mass, smallest)
    return mean


def _origin(x: Tensor) -> Tensor:
    """Return an empty tensor that depends on ``x``: stored, it lets a second derivative be refused."""
    return x[:0].clone()


class _SumOfKeys(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: FeatureMap,
        key: Tensor,
        origin: Tensor,
        value: Tensor,
        factors: Tensor | None,
        padding: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        kept, num_features = _kept(ctx, kind, key), kind.num_features(key.shape[-1])
        mass = key.new_zeros(*key.shape[:2], num_features)
        sums = key.new_zeros(*mass.shape, value.shape[-1])
        for piece in _pieces(key, num_features):
            features = kind.forward(key[piece], _cut(factors, piece))
            _hide(features, padding, piece)
            sums[piece[0]] += features.transpose(-2, -1) @ value[piece]
            mass[piece[0]] += features.sum(dim=-2)
            if kept is not None:
                kept[piece] = features
        ctx.kind, ctx.num_features, ctx.has_features = kind, num_features, kept is not None
        ctx.save_for_backward(key if kept is None else kept, origin, value, factors, padding)
        return sums, mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sums_grad: Tensor, mass_grad: Tensor) -> tuple[Tensor | None, ...]:
        key_or_features, _, value, factors, padding = ctx.saved_tensors
        key_grad, value_grad = torch.empty_like(key_or_features), torch.empty_like(value)
        with torch.autocast(value.device.type, enabled=False):
            for piece in _pieces(key_or_features, ctx.num_features):
                cut, d_sums, d_mass = _cut(factors, piece), sums_grad[piece[0]], mass_grad[piece[0]]
                features = key_or_features[piece]
                if not ctx.has_features:
                    features = ctx.kind.forward(features, cut)
                    _hide(features, padding, piece)
                value_grad[piece] = features @ d_sums
                grad = (value[piece] @ d_sums.transpose(-2, -1)).add_(d_mass.unsqueeze(-2))
                _hide(grad, padding, piece)
                key_grad[piece] = ctx.kind.backward(features, cut, grad)
                del features, grad  # before those of the next piece are computed
        return None, key_grad, None, value_grad, None, None


def _masses(features: Tensor, mass: Tensor) -> Tensor:
    """Return phi(q) mass, [B, H, tokens, 1]. A matrix-vector product would be eight times slower here."""
    return (features * mass.unsqueeze(-2)).sum(dim=-1, keepdim=True)


class _MeanOfQueries(torch.autograd.Function):
    """The gradient of a denominator is minus the product of features and their gradient, divided by the denominator."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: FeatureMap,
        query: Tensor,
        origin: Tensor,
        factors: Tensor | None,
        sums: Tensor,
        mass: Tensor,
        smallest: float,
    ) -> Tensor:
        (num_rows, num_heads, length, _), width = query.shape, sums.shape[-1]
        # laid out as [B, N, H, E], so that heads are joined without a copy
        strides = length * num_heads * width, width, num_heads * width, 1
        output = query.new_empty_strided((num_rows, num_heads, length, width), strides)
        divisors = query.new_empty(num_rows, num_heads, length, 1)
        kept, num_features = _kept(ctx, kind, query), kind.num_features(query.shape[-1])
        for piece in _pieces(query, num_features):
            features = kind.forward(query[piece], _cut(factors, piece))
            divisors[piece] = divisor = safe_denominator(_masses(features, mass[piece[0]]), smallest)
            output[piece] = (features @ sums[piece[0]]).div_(divisor)
            if kept is not None:
                kept[piece] = features
            del features  # before those of the next piece are computed
        ctx.kind, ctx.num_features, ctx.has_features = kind, num_features, kept is not None
        ctx.smallest = smallest
        ctx.save_for_backward(query if kept is None else kept, origin, factors, sums, mass, divisors)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_or_features, _, factors, sums, mass, divisors = ctx.saved_tensors
        query_grad = torch.empty_like(query_or_features)
        sums_grad, mass_grad = torch.zeros_like(sums), torch.zeros_like(mass)
        with torch.autocast(grad.device.type, enabled=False):
            for piece in _pieces(query_or_features, ctx.num_features):
                rows, cut, divisor = piece[0], _cut(factors, piece), divisors[piece]
                features = query_or_features[piece]
                if not ctx.has_features:
                    features = ctx.kind.forward(features, cut)
                g = grad[piece] / divisor
                features_grad = g @ sums[rows].transpose(-2, -1)
                share = (features * features_grad).sum(dim=-1, keepdim=True).div_(divisor)
                share.masked_fill_(divisor.abs() <= ctx.smallest, 0.0)
                sums_grad[rows] += features.transpose(-2, -1) @ g
                mass_grad[rows] -= (features * share).sum(dim=-2)
                features_grad.addcmul_(share, mass[rows].unsqueeze(-2), value=-1.0)
                query_grad[piece] = ctx.kind.backward(features, cut, features_grad)
                del features, g, features_grad  # before those of the next piece are computed
        return None, query_grad, None, None, sums_grad, mass_grad, None
