"""Norms, token and position embeddings, and input checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from cab import UserError

NormKind = Literal["layer", "rms", "simplerms"]
NORM_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": partial(nn.RMSNorm, eps=1e-6),
    "simplerms": partial(nn.RMSNorm, eps=1e-16, elementwise_affine=False),
}
"""``simplerms`` (Qin et al. 2022) is x / rms(x), without weights; it adds 1e-8 to the root."""


def make_norm(kind: NormKind, width: int) -> nn.Module:
    """Return the norm called ``kind``."""
    return NORM_LAYERS[kind](width)


class TokenEmbedding(nn.Module):
    """scale * embedding + position, followed by an optional norm and dropout.

    The table is drawn from N(0, 1 / embed_dim), as in fairseq.

    Args:
        positions: position encoding: :class:`SinusoidalPositions`, :class:`LearnedPositions` or :class:`NoPositions`.
        scale: factor of the embedding; sqrt(embed_dim) in fairseq and Vaswani et al.
        norm: kind of norm, or None.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        positions: SinusoidalPositions | LearnedPositions | NoPositions,
        scale: float = 1.0,
        norm: NormKind | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dim)
        nn.init.normal_(self.tokens.weight, std=embed_dim**-0.5)
        self.positions = positions
        self.scale = scale
        self.norm = nn.Identity() if norm is None else make_norm(norm, embed_dim)
        self.dropout = nn.Dropout(dropout)

    @property
    def vocab_size(self) -> int:
        return self.tokens.num_embeddings

    def check(self, name: str, tokens: Tensor, padding_mask: Tensor | None) -> None:
        """Raise UserError for tokens that have no embedding or no position; ``name`` is theirs."""
        check_tokens(name, tokens, padding_mask, vocab_size=self.vocab_size, max_length=self.positions.max_length)

    def forward(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Embed tokens [B, N] at positions ``index`` [1 or B, N] as [B, N, D]."""
        x = self.tokens(tokens) * self.scale
        return self.dropout(self.norm(x + self.positions(index).to(x.dtype)))


class SinusoidalPositions(nn.Module):
    """Sines in one half of the width, cosines in the other, of the position times 10,000^(-k / (D/2 - 1)).

    This is the form of tensor2tensor and fairseq (Vaswani et al. 2017 interleave both and divide by D/2). Positions
    start at ``offset``, 2 in fairseq. Any length works; there are no parameters.
    """

    max_length: int | None = None

    def __init__(self, embed_dim: int, *, offset: int = 2) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.offset = offset

    def forward(self, index: Tensor) -> Tensor:
        half = self.embed_dim // 2
        step = math.log(10000.0) / max(half - 1, 1)
        frequency = torch.exp(torch.arange(half, dtype=torch.float32, device=index.device) * -step)
        angle = (index + self.offset).to(torch.float32).unsqueeze(-1) * frequency
        encoding = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return nn.functional.pad(encoding, (0, self.embed_dim % 2))


class NoPositions(nn.Module):
    """Zero, for attentions with relative positions."""

    max_length: int | None = None

    def forward(self, index: Tensor) -> Tensor:
        return torch.zeros((), device=index.device)


class LearnedPositions(nn.Module):
    """One vector per position.

    Args:
        offset: unused rows of the table before the first position; 2 in fairseq's RoBERTa.
    """

    def __init__(self, max_length: int, embed_dim: int, *, offset: int = 0) -> None:
        super().__init__()
        if max_length < 1:
            raise UserError(f"learned positions need a max_length of at least 1, got {max_length}")
        self.max_length = max_length
        self.offset = offset
        self.table = nn.Embedding(max_length + offset, embed_dim)
        nn.init.normal_(self.table.weight, std=embed_dim**-0.5)

    def forward(self, index: Tensor) -> Tensor:
        return self.table(index + self.offset)


def number_positions(tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Return the position numbers of ``tokens`` [B, N], counting real tokens from 0: [1, N], or [B, N] with a mask.

    The numbers do not depend on where the padding is; those at padding are arbitrary.
    """
    if padding_mask is None:
        return torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    return ((~padding_mask).cumsum(dim=1) - 1).clamp(min=0)


def check_tokens(
    name: str, tokens: Tensor, padding_mask: Tensor | None, *, vocab_size: int, max_length: int | None
) -> None:
    """Raise UserError for tokens that a backbone cannot read.

    Values are checked on the CPU and outside torch.compile only: the host would wait for a GPU.
    """
    if tokens.dim() != 2 or 0 in tokens.shape:
        raise UserError(
            f"{name} must be [batch, length] with batch and length of at least 1, got {tuple(tokens.shape)}"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise UserError(f"{name} must be token ids, int64 or int32, got {tokens.dtype} {tuple(tokens.shape)}")
    if max_length is not None and tokens.shape[1] > max_length:
        raise UserError(
            f"{name} {tuple(tokens.shape)} is longer than the {max_length} learned positions: shorten it, or build "
            "the backbone with more of them"
        )
    check_padding(f"the padding mask of {name}", padding_mask, tokens)
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocab_size:
            raise UserError(
                f"{name} {tuple(tokens.shape)} has ids from {low} to {high}, the vocabulary has 0 to {vocab_size - 1}"
            )


def check_padding(name: str, padding_mask: Tensor | None, sequence: Tensor) -> None:
    """Raise UserError if a mask does not match ``sequence`` [B, N, ...] or, on the CPU, masks a whole sequence."""
    if padding_mask is None:
        return
    if padding_mask.dtype is not torch.bool or padding_mask.shape != sequence.shape[:2]:
        raise UserError(
            f"{name} must be bool {list(sequence.shape[:2])} with True = padding, "
            f"got {padding_mask.dtype} {list(padding_mask.shape)}"
        )
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return
    empty = padding_mask.all(dim=1)
    if bool(empty.any()):
        rows = empty.nonzero().flatten().tolist()
        raise UserError(
            f"{name} {list(padding_mask.shape)} hides every token of rows {rows}: leave out rows of length zero"
        )
