"""An attention of another package: every target gets the mean of the values."""

from torch import Tensor

from cab import Attention, PaddingMasks, Pattern, register_attention


@register_attention("mean", patterns="NS NC", complexity="n", paper="a fixture")
class MeanAttention(Attention):
    """mean over keys of v, times ``gain``."""

    def __init__(
        self, *, pattern: Pattern | str, embed_dim: int, num_heads: int, dropout: float = 0.0, gain: float = 1.0
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.gain = gain

    def attend(self, query: Tensor, _key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if padding.key is None:
            mean = value.mean(dim=2, keepdim=True)
        else:
            real = (~padding.key)[:, None, :, None].to(value.dtype)
            mean = (value * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)
        return self.gain * mean.expand_as(query)
