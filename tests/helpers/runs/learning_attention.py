"""An attention that asks everything of a training loop: a loss of its own, a buffer that learns, a rate of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attentions.softmax import VanillaAttention
from cab.training import ParamGroupOverride

LOSS = 0.25


class Learning(VanillaAttention):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {"gate": ParamGroupOverride(learning_rate=0.5, weight_decay=0.0)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **extras: Any) -> Tensor:
        self.add_loss(self.gate.sum() * LOSS)
        self.accumulate_statistics(seen=torch.ones(()))
        return super().attend(query, key, value, *rest, **extras)

    def update_buffers(self, *, seen: Tensor) -> None:
        self.seen += seen  # type: ignore[operator]
