"""FNet: a Fourier transform in the place of attention (Lee-Thorp et al. 2022).

Shapes: B batch, N tokens, D width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attentions.kernels.chunks import by_length
from attentions.kernels.numerics import upcast
from cab import Attention, PaddingMasks, register_attention


@register_attention("fnet", patterns="NS", complexity="n log n", paper="Lee-Thorp et al. 2022")
class FNetAttention(Attention):
    """Compute Re F_N x F_D: discrete Fourier transforms over features and tokens, without parameters (Eq. 3).

    A row is transformed at its own length; the published code transforms padding along with it. Numbers are in
    float32 at least. As published, they are sqrt(N D) times as large as those of the input.
    """

    requires_right_padding = True

    def make_projections(self) -> None:
        """Create no projections."""
        self.out_proj = nn.Identity()  # type: ignore[assignment]

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            return by_length(self.transform, (upcast(query),), padding.query).to(query.dtype)

    def transform(self, x: Tensor) -> Tensor:
        """Transform [B, N, D]; using the symmetry of real inputs is slower on a CPU."""
        return torch.fft.fft2(x, dim=(1, 2)).real

    def compute_row(self, query: Tensor, *_: Any) -> Tensor:
        """Compute C_N x C_D - S_N x S_D with matrices of cosines and sines."""
        (cos_n, sin_n), (cos_d, sin_d) = (self.waves(size, query) for size in query.shape)
        return cos_n @ query @ cos_d - sin_n @ query @ sin_d

    def waves(self, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.arange(size, device=like.device)
        angle = (number[:, None] * number % size).to(like.dtype) * (2 * math.pi / size)
        return angle.cos(), angle.sin()
