"""Small network for synthetic probes: attention layers and little else. Used for probe; all patterns.

MAD (Poli et al. 2024) has a SwiGLU after every mixer; MQAR (Arora et al. 2024) has mixers only.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.tokens import LearnedPositions, NormKind, SinusoidalPositions, make_norm
from backbones.layers.transformer import stack
from cab import Backbone, LayerPosition, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory


@register_backbone("mixer", paper="Poli et al. 2024")
class Mixer(Backbone):
    """Predict a symbol at each position of a sequence.

    All attention layers have the tested pattern, and nothing else moves information between positions (except the
    optional convolution). In the cross patterns the queries are the sequence and the keys a source, whose positions are
    embedded and pass through SwiGLUs of their own between the layers without interacting.

    The defaults are MAD's network: two layers of mixer and SwiGLU, pre-norm with a final layer norm, tables drawn from
    N(0, 0.02^2), PyTorch's default initialization for linear layers. MQAR's has ``ffn_dim=0, num_heads=1, tied=true,
    positions="learned", embedding_dropout=0.1``.

    Args:
        make_attention: builds the attention layers, one per layer, in the tested pattern.
        vocab_size: number of symbols; 0 is the empty symbol.
        embed_dim, num_heads, num_layers: sizes of the stack.
        ffn_dim: inner width of the SwiGLU; 0 for mixers only.
        norm: ``layer``; ``rms``, with which a layer is a block of Llama; or ``simplerms``.
        positions: ``none``, ``learned`` or ``sinusoidal``.
        max_length: number of learned positions.
        convolution: kernel size of a causal depthwise convolution before the first mixer, on the sequence and on the
            source; 0 for none. Both protocols have been used with one; it joins neighboring positions without
            attention.
        tied: share the input and output tables.
        init_std: standard deviation of the tables.
        embedding_dropout: applied to the embedded symbols.
        attention_dropout: applied to attention weights.
        num_compressed_symbols: number of symbols that :meth:`decode_compressed` reads from one position; 0 to leave
            it out.
    """

    all_layers_use_tested_pattern = True

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 16,
        embed_dim: int = 128,
        num_heads: int = 16,
        num_layers: int = 2,
        ffn_dim: int = 352,
        norm: NormKind = "layer",
        positions: Literal["none", "learned", "sinusoidal"] = "none",
        max_length: int = 1280,
        convolution: int = 0,
        tied: bool = False,
        init_std: float = 0.02,
        embedding_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_compressed_symbols: int = 0,
    ) -> None:
        super().__init__()
        self._pattern = make_attention.pattern
        self.symbols = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.positions = _positions(positions, max_length, embed_dim, init_std)
        self.convolution = ShortConvolution(embed_dim, convolution) if convolution else None
        self.dropout = nn.Dropout(embedding_dropout)
        self.layers = stack(
            num_layers,
            partial(
                MixerLayer,
                make_attention,
                embed_dim=embed_dim,
                num_heads=num_heads,
                ffn_dim=ffn_dim,
                norm=norm,
                attention_dropout=attention_dropout,
            ),
        )
        self.final_norm = make_norm(norm, embed_dim)
        self.output = nn.Linear(embed_dim, vocab_size, bias=not tied)
        self.decompression = Decompression(embed_dim, num_compressed_symbols) if num_compressed_symbols else None
        nn.init.normal_(self.symbols.weight, std=init_std)
        with torch.no_grad():
            self.symbols.weight[0].zero_()
        if tied:
            self.output.weight = self.symbols.weight
        elif self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    @property
    def pattern(self) -> Pattern:
        """Return the pattern of all attention layers."""
        return self._pattern

    def forward(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits [B, N, V] at each position.

        Args:
            symbols: [B, N, S] ids; the vectors of the S symbols of a position are summed.
            source: [B, M, S] ids, in the cross patterns.
        """
        return self.output(self.final_norm(self._mixed(symbols, source)))

    def decode_compressed(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits [B, n, V] of n symbols, all read from the vector of the last position."""
        if self.decompression is None:
            raise UserError(
                "decode_compressed() needs backbone.num_compressed_symbols, the number of symbols in one position"
            )
        return self.output(self.final_norm(self.decompression(self._mixed(symbols, source)[:, -1])))

    def _mixed(self, symbols: Tensor, source: Tensor | None) -> Tensor:
        if (source is not None) != self.pattern.is_cross:
            raise UserError(f"pattern {self.pattern} {'needs a' if self.pattern.is_cross else 'has no'} source")
        x = self._embedded(symbols)
        memory = None if source is None else self._embedded(source)
        for layer in self.layers:
            x, memory = self.run_layer(layer, x, memory)
        return x

    def _embedded(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols).sum(dim=-2)
        if self.positions is not None:
            length, most = symbols.shape[1], self.positions.max_length
            if most is not None and length > most:
                raise UserError(f"{length} places are more than the {most} learned positions: raise max_length")
            x = x + self.positions(torch.arange(length, device=symbols.device).unsqueeze(0))
        x = self.dropout(x)
        return x if self.convolution is None else x + self.convolution(x)


def _positions(kind: str, max_length: int, embed_dim: int, std: float) -> LearnedPositions | SinusoidalPositions | None:
    if kind == "learned":
        learned = LearnedPositions(max_length, embed_dim)
        nn.init.normal_(learned.table.weight, std=std)
        return learned
    return SinusoidalPositions(embed_dim, offset=0) if kind == "sinusoidal" else None


class MixerLayer(nn.Module):
    """Attention and an optional SwiGLU, both pre-norm residual branches."""

    def __init__(
        self,
        make_attention: AttentionFactory,
        *,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        norm: NormKind,
        attention_dropout: float,
        layer_position: LayerPosition,
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(norm, embed_dim)
        self.attention = make_attention(
            make_attention.pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=attention_dropout,
            layer_position=layer_position,
        )
        self.feed_forward = Branch(embed_dim, ffn_dim, norm) if ffn_dim else nn.Identity()
        if make_attention.pattern.is_cross:
            self.source_norm = make_norm(norm, embed_dim)
            is_last = layer_position.index + 1 == layer_position.num_layers
            self.source_feed_forward = Branch(embed_dim, ffn_dim, norm) if ffn_dim and not is_last else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Map [B, N, D] to [B, N, D]; also return ``memory`` [B, M, D] for the next layer in the cross patterns."""
        if memory is None:
            return self.feed_forward(x + self.attention(self.attention_norm(x))), None
        read = self.source_norm(memory)
        x = x + self.attention(self.attention_norm(x), read, read)
        return self.feed_forward(x), self.source_feed_forward(memory)


class Branch(nn.Module):
    """x + SwiGLU(norm(x))."""

    def __init__(self, embed_dim: int, ffn_dim: int, norm: NormKind) -> None:
        super().__init__()
        self.norm = make_norm(norm, embed_dim)
        self.swiglu = SwiGLU(embed_dim, ffn_dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.swiglu(self.norm(x))


class SwiGLU(nn.Module):
    """W3 (silu(W1 x) * W2 x), linear layers without biases (Shazeer 2020)."""

    def __init__(self, embed_dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, ffn_dim, bias=False)
        self.expand = nn.Linear(embed_dim, ffn_dim, bias=False)
        self.reduce = nn.Linear(ffn_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(F.silu(self.gate(x)) * self.expand(x))


class ShortConvolution(nn.Module):
    """Depthwise convolution over the last ``kernel`` positions."""

    def __init__(self, embed_dim: int, kernel: int) -> None:
        super().__init__()
        self.maps = nn.Conv1d(embed_dim, embed_dim, kernel, groups=embed_dim)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        return self.maps(F.pad(x.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)


class Decompression(nn.Module):
    """MAD's decoder for compression: predict each symbol from one vector and a position index."""

    def __init__(self, embed_dim: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.positions = SinusoidalPositions(embed_dim, offset=0)
        self.maps = nn.Sequential(
            nn.LayerNorm(embed_dim),
            nn.Linear(embed_dim, embed_dim),
            nn.GELU(),
            nn.LayerNorm(embed_dim),
            nn.Linear(embed_dim, embed_dim),
            nn.GELU(),
        )

    def forward(self, packed: Tensor) -> Tensor:
        """Map [B, D] to [B, count, D]."""
        index = torch.arange(self.count, device=packed.device).unsqueeze(0)
        return self.maps(packed.unsqueeze(1) + self.positions(index))
