"""Attention with the Gaussian kernel: kernelized attention and Skyformer (Chen et al. 2021), SOFT (Lu et al. 2021).

Shapes: B batch, H heads, N targets, M keys, E width of a head, r landmarks.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.bases.pairwise import PairwiseAttention
from attentions.kernels.chunks import sums_by_targets
from attentions.kernels.key_summaries import average, segment_means, segments
from attentions.kernels.layers import depthwise_conv, value_convolution
from attentions.kernels.numerics import upcast
from attentions.kernels.token_cache import gather_tokens
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.padding import lengths
from cab.registry.options import Positive

SKYFORMER_RIDGE, SOFT_RIDGE = 0.1, 0.01
"""Added to the diagonal of the landmarks' matrix, which is then invertible."""


@register_attention("kernelized", patterns="NS CS NC CC", complexity="n^2", paper="Chen et al. 2021")
class KernelizedAttention(PairwiseAttention):
    """Compute sum_j exp(-|q_i - k_j|^2 / (2 sqrt(E))) v_j without normalization (Skyformer, Eq. 3).

    What Skyformer approximates. Outputs grow with the number of keys that are near the query.
    """

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, _count: Tensor) -> Tensor:
        return gaussian(query, key, masked)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        distances = (query.unsqueeze(2) - key.unsqueeze(1)).square().sum(dim=-1)
        weights = torch.exp(-0.5 * distances * self.scale)
        if self.pattern is Pattern.CS:
            weights = weights.tril()
        return weights @ value


@register_attention("skyformer", patterns="NS NC CC", complexity="n", paper="Chen et al. 2021")
class SkyformerAttention(Attention):
    """Compute kappa(Q, L) (kappa(L, L) + I / 10)^-1 kappa(L, K) V, kappa = exp(-|x - y|^2 / (2 sqrt(E))) (Eq. 5).

    Landmarks L are tokens: half of them queries and half keys, so that all four matrices are blocks of one of
    queries and keys. In CC, where queries are still to come, all are keys. With every token among them and no ridge it
    is ``kernelized``.

    A landmark is drawn from its own stretch of the sequence, once, at construction, and kept in the state_dict as a
    part of the length, so that a row has the same alone and in a batch. The system is solved by Cholesky's
    factorization. (The released code redraws in every call, in evaluation too, and takes six steps of an iteration
    that starts from the largest sum of the whole batch.) ``dropout`` is not used (as released).

    Args:
        num_landmarks: r.
    """

    requires_right_padding = True
    has_constant_size_state = True

    places: Tensor

    def __init__(
        self,
        *,
        num_landmarks: Annotated[int, Ge(2)] = 128,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        counts = [num_landmarks]
        if self.pattern is not Pattern.CC:
            counts = [num_landmarks // 2, num_landmarks - num_landmarks // 2]
        self.num_queries = counts[0] if len(counts) == 2 else 0
        places = [(torch.arange(count) + torch.rand(count)) / count for count in counts]
        self.register_buffer("places", torch.cat(places))

    def landmarks(self, query: Tensor, key: Tensor, padding: PaddingMasks) -> Tensor:
        """Select some of the queries and some of the keys, [B, H, r, E]."""
        chosen = []
        for x, mask, places in (
            (query, padding.query, self.places[: self.num_queries]),
            (key, padding.key, self.places[self.num_queries :]),
        ):
            length = lengths(x, mask).unsqueeze(1)
            index = (places * length).long().minimum(length - 1).clamp_min(0)  # in 16 bit, a place can be rounded to 1
            chosen.append(gather_tokens(x, index))
        return torch.cat(chosen, dim=2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, k = upcast(query), upcast(key)
            landmarks = self.landmarks(q, k, padding)
            return gaussian_sums(q, landmarks, self.reduce_source(landmarks, k, upcast(value), padding.key)).to(
                query.dtype
            )

    def reduce_source(self, landmarks: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the values aggregated per landmark, [B, H, r, E]."""
        sums = gaussian_sums(landmarks, key, value, hidden)
        return solve_regularized(gaussian(landmarks, landmarks), sums, SKYFORMER_RIDGE)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys = self.places[: self.num_queries], self.places[self.num_queries :]
        chosen = [x[:, (places * x.shape[1]).long()] for x, places in ((query, queries), (key, keys))]
        landmarks = torch.cat(chosen, dim=1)

        def kappa(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-0.5 * (x.unsqueeze(2) - y.unsqueeze(1)).square().sum(dim=-1) * self.scale)

        middle = kappa(landmarks, landmarks) + SKYFORMER_RIDGE * torch.eye(landmarks.shape[1], dtype=query.dtype)
        return kappa(query, landmarks) @ torch.linalg.inv(middle) @ kappa(landmarks, key) @ value

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return landmarks among the keys, and their aggregated values."""
        with torch.autocast(key.device.type, enabled=False):
            k = upcast(key)
            landmarks = self.landmarks(k, k, padding)
            return {"landmarks": landmarks, "values": self.reduce_source(landmarks, k, upcast(value), padding.key)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            return gaussian_sums(upcast(query), state["landmarks"], state["values"]).to(query.dtype), state


@register_attention("soft", patterns="NS", complexity="n", paper="Lu et al. 2021")
class SoftAttention(Attention):
    """Compute kappa(Q, L) (kappa(L, L) + I / 100)^-1 kappa(L, Q) V + conv(V), kappa = exp(-|x - y|^2 / 2) (Eq. 8).

    Keys are the queries. Landmarks L = GELU(LN(W q)) of the means q of r segments, with W and the norm shared by all
    heads; queries come divided by E^(1/4). The released code has a strided convolution of an image in the place of
    the means, and inverts by 20 steps of Newton's iteration; here the system is solved. ``dropout`` is not used.

    Args:
        num_landmarks: segments r.
        conv_kernel_size: odd width of a depthwise convolution of the values over positions, one filter a head;
            None for none.
    """

    requires_right_padding = True

    def __init__(
        self,
        *,
        num_landmarks: Positive = 49,
        conv_kernel_size: Positive | None = 9,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.num_landmarks = num_landmarks
        self.k_proj = nn.Identity()  # type: ignore[assignment]  # keys are the queries
        self.make_convolutions()
        self.landmark_map = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.landmark_norm = nn.LayerNorm(self.head_dim)
        self.conv = value_convolution(self.num_heads, conv_kernel_size)

    def landmarks(self, means: Tensor) -> Tensor:
        """Map means of segments [..., r, E] to landmarks."""
        return F.gelu(self.landmark_norm(self.landmark_map(means.to(self.landmark_map.weight.dtype))))

    def attend(self, query: Tensor, _key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, v = upcast(query), mask_fill(upcast(value), padding.key)
            count = lengths(q, padding.key)
            weights, absent = segment_means(self.num_landmarks, count, q.shape[2], q.dtype)
            # gaussian() divides the square by sqrt(E); a landmark is the same after that division.
            points = self.landmarks(average(weights, q) * q.shape[-1] ** -0.25).to(q.dtype) * q.shape[-1] ** 0.25
            none = absent[:, None, :, None] | absent[:, None, None]
            middle = gaussian(points, points, none)
            sums = gaussian_sums(points, q, v, padding.key).masked_fill(absent[:, None, :, None], 0.0)
            output = gaussian_sums(q, points, solve_regularized(middle, sums, SOFT_RIDGE))
            if self.conv is not None:
                output = output + depthwise_conv(v, self.conv.weight)
            return output.to(query.dtype)

    def reference(self, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        query = query * self.head_dim**-0.25
        points = self.landmarks(segments(query, self.num_landmarks))

        def kappa(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-0.5 * (x.unsqueeze(2) - y.unsqueeze(1)).square().sum(dim=-1))

        middle = kappa(points, points) + SOFT_RIDGE * torch.eye(points.shape[1], dtype=query.dtype)
        output = kappa(query, points) @ torch.linalg.inv(middle) @ kappa(points, query) @ value
        return output if self.conv is None else output + self.conv(value.unsqueeze(0))[0]


def gaussian(x: Tensor, y: Tensor, masked: Tensor | None = None) -> Tensor:
    """exp(-|x_i - y_j|^2 / (2 sqrt(E))), [B, H, N, M], of x [B, H, N, E] and y [B, H, M, E]; zero where ``masked``.

    The exponent is a difference of products, which rounding may bring above zero: it is held there.
    """
    scale = x.shape[-1] ** -0.5
    norms = x.square().sum(dim=-1, keepdim=True) + y.square().sum(dim=-1).unsqueeze(-2)
    weights = (x @ y.mT - 0.5 * norms).mul(scale).clamp(max=0.0).exp()
    return weights if masked is None else weights.masked_fill(masked, 0.0)


def gaussian_sums(x: Tensor, y: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Multiply :func:`gaussian` with ``value`` [B, H, M, E] in chunks of x; ``hidden`` y [B, M] have no weight."""
    mask = None if hidden is None else hidden[:, None, None]
    return sums_by_targets(lambda some, _: gaussian(x[:, :, some], y, mask), x, value, is_causal=False)


def solve_regularized(matrix: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Compute (matrix + ridge I)^-1 right for a symmetric positive semidefinite ``matrix``."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix + ridge * identity))
