"""TransNormer (Qin et al. 2022): attention within blocks in the first half of a network, linear in the second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Unpack

from torch import Tensor

from attentions.diag_attention import DiagAttention
from attentions.norm_attention import NormAttention
from cab import Attention, DecodeState, LayerPosition, PaddingMasks, register_attention
from cab.attention import SINGLE_LAYER, CommonArguments


class TransNormer(Attention):
    """Compute DiagAttention in layers 0 to L // 2 - 1 of the L of its kind, and NormAttention in the others (Figure 3).

    Of an odd number the middle one is late; so is a slot alone. The released code would leave the last layer out.

    Args:
        block_size: tokens of a block of DiagAttention.
        positions: none, the paper's text; lrpe, as released: see the two.
    """

    weights: ClassVar[str]
    """Of DiagAttention."""
    kernel: ClassVar[str]
    """Of NormAttention."""

    requires_right_padding = True
    has_constant_size_state = True

    def __init__(
        self,
        *,
        block_size: int = 64,
        positions: str = "none",
        layer_position: LayerPosition = SINGLE_LAYER,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.form: Attention
        if layer_position.index < layer_position.num_layers // 2:
            self.form = DiagAttention(
                pattern=self.pattern,
                embed_dim=self.embed_dim,
                num_heads=self.num_heads,
                dropout=self.dropout,
                block_size=block_size,
                weights=self.weights,
                positions=positions,
            )
        else:
            self.form = NormAttention(
                pattern=self.pattern,
                embed_dim=self.embed_dim,
                num_heads=self.num_heads,
                kernel=self.kernel,
                positions=positions,
            )

    def make_projections(self) -> None:
        """Those of the form."""

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return self.form.compute(query, key, value, padding)

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        return self.form.compute_row(query, key, value, draws)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        assert self.form.init_decode_state is not None
        return self.form.init_decode_state(batch_size, like)

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self.form.decode_inputs(tokens, mask, state)


@register_attention("transnormer_t1", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class TransNormerT1(TransNormer):
    """Compute TransNormer with ReLU in its blocks and elu as kernel."""

    weights = "rela"
    kernel = "elu"


@register_attention("transnormer_t2", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class TransNormerT2(TransNormer):
    """Compute TransNormer with softmax in its blocks and 1 + elu as kernel."""

    weights = "softmax"
    kernel = "elu1"
