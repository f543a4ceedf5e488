"""Modules of public packages whose constructors have other arguments: factories for `cab verify`.

A package is imported by its factory, because only one of them may be installed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cab import Pattern


class WithMask(nn.Module):
    """A module that receives the mask of the real tokens under a name of its own, which it may require."""

    def __init__(self, module: nn.Module, argument: str, *, is_required: bool = False) -> None:
        super().__init__()
        self.module, self.argument, self.is_required = module, argument, is_required

    def forward(
        self, x: Tensor, *, query_padding_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        padding = query_padding_mask if query_padding_mask is not None else key_padding_mask
        if padding is None and self.is_required:
            padding = x.new_zeros(x.shape[:2]).bool()
        output = self.module(x, **({} if padding is None else {self.argument: ~padding}))
        return output[0] if isinstance(output, tuple) else output


def min_gru(embed_dim: int) -> nn.Module:
    """Return the layer of minGRU-pytorch, which is causal."""
    from minGRU_pytorch import minGRU

    return minGRU(embed_dim)


def memory_compressed(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Return the attention of memory-compressed-attention."""
    from memory_compressed_attention import MemoryCompressedAttention

    module = MemoryCompressedAttention(embed_dim, heads=num_heads, causal=pattern is Pattern.CS)
    return WithMask(module, "input_mask")


def selective(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Return the selective attention of x-transformers."""
    return _x_transformers(pattern, embed_dim, num_heads, selective=True)


def data_dependent_alibi(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Return the attention of x-transformers whose positions depend on the data."""
    return _x_transformers(pattern, embed_dim, num_heads, data_dependent_alibi=True)


def _x_transformers(pattern: Pattern, embed_dim: int, num_heads: int, **options: Any) -> nn.Module:
    from x_transformers import Attention

    head_dim, causal = embed_dim // num_heads, pattern is Pattern.CS
    return WithMask(Attention(embed_dim, heads=num_heads, dim_head=head_dim, causal=causal, **options), "mask")


def retention(embed_dim: int, num_heads: int) -> nn.Module:
    """Return the parallel form of the layer of yet-another-retnet, which is causal."""
    from yet_another_retnet.retention import MultiScaleRetention

    class Retention(MultiScaleRetention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x, x, x)[0]

    return Retention(embed_dim, num_heads)


class RotaryAttention(nn.Module):
    """Softmax attention with the rotary embeddings of rotary-embedding-torch."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.num_heads = num_heads
        self.project, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.rotary = RotaryEmbedding(embed_dim // num_heads)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        rotate = self.rotary.rotate_queries_or_keys
        output = nn.functional.scaled_dot_product_attention(rotate(query), rotate(key), value)
        return self.out(output.transpose(1, 2).flatten(2))


def light_recurrent_unit(embed_dim: int) -> nn.Module:
    """Return a layer of light-recurrent-unit-pytorch, which is causal."""
    from light_recurrent_unit_pytorch import LightRecurrentUnitLayer

    return LightRecurrentUnitLayer(embed_dim)


def fastformer(embed_dim: int, num_heads: int) -> nn.Module:
    """Return the attention of fast-transformer-pytorch, which always needs a mask."""
    from fast_transformer_pytorch.fast_transformer_pytorch import FastAttention

    module = FastAttention(embed_dim, heads=num_heads, dim_head=embed_dim // num_heads)
    return WithMask(module, "mask", is_required=True)
