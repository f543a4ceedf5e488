"""No attention at all: the ablation of CAB, section 4.2, "Benefit of Attention"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cab import Attention, DecodeState, register_attention
from cab.attention import Decoded


@register_attention("none", patterns="NS CS NC CC", complexity="1", paper="Zhang et al. 2023 (CAB)")
class NoAttention(Attention):
    """Return zero for every target, without parameters, so a residual branch becomes the identity."""

    has_constant_size_state = True
    selects_tokens = True

    def make_projections(self) -> None:
        """Create no projections."""
        self.out_proj = nn.Identity()  # type: ignore[assignment]

    def compute(self, query: Tensor, *_: Any) -> Tensor:
        # Masked rather than new, so that gradients to the inputs are zero and not missing.
        return query.masked_fill(torch.ones_like(query, dtype=torch.bool), 0.0)

    def compute_row(self, query: Tensor, *_: Any) -> Tensor:
        return self.compute(query)

    def init_decode_state(self, *_: Any) -> DecodeState:
        return {}

    encode_source = init_decode_state
    encode_source_inputs = init_decode_state  # type: ignore[assignment]

    def decode_inputs(self, tokens: Tensor, _mask: Tensor | None, state: DecodeState) -> Decoded:
        return self.compute(tokens), state
