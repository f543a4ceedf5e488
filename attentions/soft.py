"""SOFT (Lu et al. 2021): a Gaussian kernel of queries with queries, through the means of segments.

Shapes: B batch, H heads, N tokens, E width of a head, r landmarks.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.bases.options import check_at_least, check_odd, check_positive
from attentions.kernels.gaussian import gaussian, gaussian_sums, solve_regularized
from attentions.kernels.key_summaries import average, segment_means, segments
from attentions.kernels.layers import depthwise_conv
from attentions.kernels.numerics import upcast
from cab import Attention, PaddingMasks, register_attention
from cab.attention import CommonArguments
from cab.padding import lengths


@register_attention("soft", patterns="NS", complexity="n", paper="Lu et al. 2021")
class SoftAttention(Attention):
    """Compute kappa(Q, L) (kappa(L, L) + ridge I)^-1 kappa(L, Q) V + conv(V), kappa = exp(-|x - y|^2 / 2) (Eq. 8).

    Keys are the queries. Landmarks L = GELU(LN(W q)) of the means q of r segments, with W and the norm shared by all
    heads; queries come divided by E^(1/4). The released code has a strided convolution of an image in the place of
    the means, and inverts by 20 steps of Newton's iteration; here the system is solved. There are no weights over
    tokens to drop, so ``dropout`` is not used (as released).

    Args:
        num_landmarks: segments r.
        conv_kernel_size: odd width of a depthwise convolution of the values over positions, one filter a head;
            None for none.
        ridge: what is added to the diagonal.
    """

    requires_right_padding = True

    def __init__(
        self,
        *,
        num_landmarks: int = 49,
        conv_kernel_size: int | None = 9,
        ridge: float = 0.01,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        check_at_least(1, num_landmarks=num_landmarks)
        check_odd(conv_kernel_size=conv_kernel_size)
        check_positive(ridge=ridge)
        self.num_landmarks, self.ridge = num_landmarks, ridge
        self.k_proj = nn.Identity()  # type: ignore[assignment]  # keys are the queries
        self.landmark_map = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.landmark_norm = nn.LayerNorm(self.head_dim)
        self.conv = None
        if conv_kernel_size is not None:
            size, padding = (conv_kernel_size, 1), (conv_kernel_size // 2, 0)
            self.conv = nn.Conv2d(
                self.num_heads, self.num_heads, size, padding=padding, groups=self.num_heads, bias=False
            )

    def landmarks(self, means: Tensor) -> Tensor:
        """[..., r, E] of segments to the same."""
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
            output = gaussian_sums(q, points, solve_regularized(middle, sums, self.ridge))
            if self.conv is not None:
                output = output + depthwise_conv(v, self.conv.weight)
            return output.to(query.dtype)

    def reference(self, query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        query = query * self.head_dim**-0.25
        points = self.landmarks(segments(query, self.num_landmarks))

        def kappa(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-0.5 * (x.unsqueeze(2) - y.unsqueeze(1)).square().sum(dim=-1))

        middle = kappa(points, points) + self.ridge * torch.eye(points.shape[1], dtype=query.dtype)
        output = kappa(query, points) @ torch.linalg.inv(middle) @ kappa(points, query) @ value
        return output if self.conv is None else output + self.conv(value.unsqueeze(0))[0]
