"""Check the arguments of an attention; every error message contains the shapes.

Shapes: B batch, N targets, M keys, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cab.errors import UserError
from cab.patterns import Pattern


def check_dimensions(embed_dim: int, num_heads: int, dropout: float) -> None:
    """Raise UserError for inconsistent constructor arguments."""
    if embed_dim < 1 or num_heads < 1:
        raise UserError(f"embed_dim and num_heads must be at least 1, got {embed_dim} and {num_heads}")
    if embed_dim % num_heads:
        raise UserError(
            f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}; "
            f"choose num_heads among the divisors of {embed_dim}"
        )
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"dropout must be in [0, 1), got {dropout}")


def check_sequence(name: str, x: Tensor, mask: Tensor | None, width: int) -> None:
    """Raise UserError unless ``x`` is a non-empty tensor [B, N, width] with a mask [B, N], if any."""
    if x.dim() != 3 or x.shape[-1] != width or 0 in x.shape:
        raise UserError(
            f"{name} must be [batch, length, {width}] with batch and length of at least 1, got {tuple(x.shape)}"
        )
    check_mask(f"{name}_padding_mask", mask, x)


def check_mask(name: str, mask: Tensor | None, x: Tensor) -> None:
    """Raise UserError unless ``mask`` is None or a bool tensor [B, N] for ``x`` [B, N, D]."""
    if mask is not None and (mask.dtype is not torch.bool or mask.shape != x.shape[:2]):
        raise UserError(
            f"{name} must be bool {list(x.shape[:2])} with True = padding, got {mask.dtype} {list(mask.shape)}"
        )


def check_step(query: Tensor) -> None:
    """Raise UserError for an argument of ``step`` that is not one token per sequence."""
    if query.dim() not in (2, 3) or (query.dim() == 3 and query.shape[1] != 1):
        raise UserError(f"step reads one token, [B, D] or [B, 1, D], got {tuple(query.shape)}")


def check_source(key: Tensor, value: Tensor, key_padding_mask: Tensor | None, batch_size: int, width: int) -> None:
    """Raise UserError for a key, value or key mask with a wrong shape or type."""
    check_sequence("key", key, key_padding_mask, width)
    check_sequence("value", value, None, width)
    if key.shape != value.shape or key.shape[0] != batch_size:
        raise UserError(
            f"key and value must have the same shape [B, M, D] and the {batch_size} rows of query, got "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}"
        )


def check_inputs(
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    query_padding_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    width: int,
) -> None:
    """Raise UserError for inputs of ``forward`` that do not match the pattern or each other."""
    check_sequence("query", query, query_padding_mask, width)
    if pattern.is_cross:
        if key is None or value is None:
            raise UserError(f"pattern {pattern} is cross attention: give both key and value, [B, M, D]")
        check_source(key, value, key_padding_mask, len(query), width)
    elif key is not None or value is not None:
        raise UserError(f"pattern {pattern} is self attention: leave key and value out, query is both")
    else:
        check_mask("key_padding_mask", key_padding_mask, query)


def check_decoding(
    pattern: Pattern, batch_size: int, key: Tensor | None, value: Tensor | None, mask: Tensor | None, width: int
) -> None:
    """Raise UserError for arguments of ``init_state`` that do not match the pattern."""
    if not pattern.is_causal:
        raise UserError(f"pattern {pattern} is noncausal: only CS and CC decode token by token")
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    if (pattern is Pattern.CC) != (key is not None and value is not None):
        raise UserError("init_state takes key and value in pattern CC, and neither in pattern CS")
    if key is not None and value is not None:
        check_source(key, value, mask, batch_size, width)


def check_heads(attention: object, heads: Tensor, query: Tensor, width: int) -> None:
    """Raise UserError unless ``attend`` returned heads [B, H, N, E] with H E = ``width`` for ``query`` [B, N, D]."""
    is_fitting = heads.dim() == 4 and (heads.shape[0], heads.shape[2]) == query.shape[:2]
    if not is_fitting or heads.shape[1] * heads.shape[3] != width:  # text of a size would fix it in compiled graphs
        batch_size, num_tokens = query.shape[:2]
        raise UserError(
            f"{type(attention).__name__}.attend must return [B, H, N, E] with B = {batch_size}, N = {num_tokens} and "
            f"H E = {width}, got {list(heads.shape)}"
        )
