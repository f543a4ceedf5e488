"""FNet: a Fourier transform in the place of attention (Lee-Thorp et al. 2022).

Shapes: B batch, N tokens, D width.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from attentions.kernels.chunks import by_length
from attentions.kernels.numerics import upcast
from cab import Attention, PaddingMasks, register_attention
from cab.attention import CommonArguments


@register_attention("fnet", patterns="NS", complexity="n log n", paper="Lee-Thorp et al. 2022")
class FNetAttention(Attention):
    """Compute Re F_N x F_D: discrete Fourier transforms over features and tokens, without parameters (Eq. 3).

    A row is transformed at its own length; the published code transforms padding along with it. Numbers are in
    float32 at least.

    Args:
        norm: ``backward``, as published: the transform as it is, whose numbers are sqrt(N D) times as large as the
            input's; ``ortho`` divides by that, for networks that add the output to what it was computed from.
    """

    requires_right_padding = True

    def __init__(self, *, norm: Literal["backward", "ortho"] = "backward", **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.norm = norm

    def make_projections(self) -> None:
        """Create no projections."""
        self.out_proj = nn.Identity()  # type: ignore[assignment]

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            return by_length(self.transform, (upcast(query),), padding.query).to(query.dtype)

    def transform(self, x: Tensor) -> Tensor:
        """Transform [B, N, D]; using the symmetry of real inputs is slower on a CPU."""
        return torch.fft.fft2(x, dim=(1, 2), norm=self.norm).real

    def compute_row(self, query: Tensor, *_: Any) -> Tensor:
        """Compute C_N x C_D - S_N x S_D with matrices of cosines and sines."""
        (cos_n, sin_n), (cos_d, sin_d) = (self.waves(size, query) for size in query.shape)
        return cos_n @ query @ cos_d - sin_n @ query @ sin_d

    def waves(self, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.arange(size, device=like.device)
        angle = (number[:, None] * number % size).to(like.dtype) * (2 * math.pi / size)
        scale = size**-0.5 if self.norm == "ortho" else 1.0
        return angle.cos() * scale, angle.sin() * scale
