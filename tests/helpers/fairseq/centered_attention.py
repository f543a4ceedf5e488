"""An attention that asks everything of a training loop, in a way that its outputs depend on."""

from typing import Any

import torch
from torch import Tensor, nn

from attentions.softmax import VanillaAttention
from cab import PaddingMasks, ParamGroupOverride, register_attention
from cab.registry.registries import ATTENTIONS


def register_centered() -> None:
    """As ``centered``, in this process."""
    ATTENTIONS.names()  # finds those of the packages before one more is added
    register_attention("centered", patterns="CS NS CC", complexity="n^2", paper="none")(Centered)


class Centered(VanillaAttention):
    """Softmax attention to values from which a running mean is taken.

    The queries' gain has a rate of its own, the shift of the outputs a weight decay; long queries cost.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gain = nn.Parameter(torch.ones(self.num_heads, 1, 1))
        self.shift = nn.Parameter(torch.ones(self.num_heads, 1, self.head_dim))
        self.register_buffer("mean", torch.zeros(self.num_heads, 1, self.head_dim))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {
            "gain": ParamGroupOverride(learning_rate=0.05, weight_decay=0.0),
            "shift": ParamGroupOverride(weight_decay=0.5),
        }

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **more: Any) -> Tensor:
        self.add_loss(query.square().mean(dim=(1, 3)), padding)
        real = torch.ones_like(value[:, :1, :, :1])
        if padding.key is not None:
            real = real.masked_fill(padding.key[:, None, :, None], 0.0)
        self.accumulate_statistics(total=(value * real).sum(dim=(0, 2))[:, None], count=real.sum())
        return super().attend(self.gain * query, key, value - self.mean, padding, **more) + self.shift

    def update_buffers(self, *, total: Tensor, count: Tensor) -> None:
        self.mean.lerp_((total / count).to(self.mean.dtype), 0.3)
