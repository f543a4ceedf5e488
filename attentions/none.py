"""No attention at all: the ablation of CAB, section 4.2, "Benefit of Attention"."""

from __future__ import annotations

import torch
from torch import Tensor

from cab import Attention, register_attention
from cab.attention import State, without_padding


@register_attention("none", patterns="NS CS NC CC", complexity="1", paper="Zhang et al. 2023 (CAB)")
class NoAttention(Attention):
    """Zero for every target, without parameters: what is left of a residual branch is the identity."""

    def make_projections(self) -> None:
        """There are none."""

    def compute(
        self,
        query: Tensor,
        key: Tensor,  # noqa: ARG002
        value: Tensor,  # noqa: ARG002
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        # Filled rather than new, so that gradients to the inputs are zero and not missing.
        return without_padding(query, query.new_ones(query.shape[:2], dtype=torch.bool))

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> State:
        self._check_decoding(batch_size, key, value, key_padding_mask)
        return {}

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        self._check_tokens(query, query_padding_mask)
        return without_padding(query, query.new_ones(query.shape[:2], dtype=torch.bool)), state
