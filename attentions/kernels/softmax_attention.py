"""Softmax attention by torch's fused kernels, and by FlexAttention where weights depend on positions.

Shapes: B batch, H heads, N targets, M sources, E width of a head. Keys and values may have fewer heads, each shared by
consecutive heads of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentions.kernels.window_attention import FLEX_BLOCK, TRIALS, block_mask, compiled_flex, refuses_flex
from cab.kernels import Backend, Operation


def _by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(q k^T scale) v, [B, H, N, E], by the kernel that torch chooses.

    Args:
        query, key, value: [B, H, N or M, E].
        mask: bool, True = visible, or numbers that are added to the logits, [B or 1, 1 or H, 1 or N, M].
        dropout: probability of dropping a weight.
        is_causal: whether source j is hidden from target i < j.
        scale: factor of the logits; 1 / sqrt(E) if None.
    """
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale=scale)


def _fused(name: str, kernel: SDPBackend, *dtypes: torch.dtype) -> Backend:
    """Return one kernel of torch, for which torch's own rules apply; it runs only if it is named."""

    def run(*inputs: Any, **options: Any) -> Tensor:
        with sdpa_kernel(kernel):
            return _by_torch(*inputs, **options)

    def refuses(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> str | None:
        if torch.compiler.is_compiling():  # parameters would break the graph; torch raises an error of its own
            return None
        params = torch.backends.cuda.SDPAParams(query, key, value, mask, dropout, is_causal, False)
        can_use = getattr(torch.backends.cuda, f"can_use_{name}_attention")
        if can_use(params):
            return None
        return "a mask" if name == "flash" and mask is not None else "torch refuses these shapes"

    return Backend(name, run, dtypes=dtypes, refuses=refuses, declines=lambda *_, **__: "chosen by torch")


HALVES = (torch.bfloat16, torch.float16)
softmax = Operation(
    "softmax",
    _by_torch,
    _fused("flash", SDPBackend.FLASH_ATTENTION, *HALVES),
    _fused("cudnn", SDPBackend.CUDNN_ATTENTION, *HALVES),
    _fused("efficient", SDPBackend.EFFICIENT_ATTENTION, torch.float32, *HALVES),
)


def over_visible(
    kernel: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool
) -> Tensor:
    """Call ``kernel`` with these arguments; a target without a visible source gets zero."""
    if visible is None:
        return kernel(query, key, value, None, is_causal)
    adds = visible.is_floating_point()
    sees_none = (visible == -torch.inf if adds else ~visible).all(dim=-1, keepdim=True)
    mask = visible.masked_fill(sees_none, 0.0 if adds else True)
    return kernel(query, key, value, mask, False).masked_fill(sees_none, 0.0)


class Positions(NamedTuple):
    """How the weight of a pair depends on the positions i of the target and j of the source.

    Attributes:
        is_causal: j > i is hidden.
        window: j <= i - window is hidden, except for the first ``sinks`` positions; None for no window.
        sinks: number of first positions that every target sees.
        slopes: s [H] in float64; s_h |i - j| is subtracted from the logits. None for no slopes.
    """

    is_causal: bool
    window: int | None = None
    sinks: int = 0
    slopes: Tensor | None = None

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether targets at positions i see sources at j."""
        seen = i >= j if self.is_causal else (i >= 0) & (j >= 0)
        return seen if self.window is None else seen & ((i - j < self.window) | (j < self.sinks))

    def mask(self, targets: Tensor, sources: Tensor, visible: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Restrict ``visible`` and add slopes.

        Args:
            targets, sources: positions [B or 1, N] and [B or 1, M].
            visible: bool [B or 1, 1, 1 or N, M].
            dtype: of a mask with slopes.

        Returns:
            A bool mask, or with slopes one that is added to the logits, [B or 1, 1 or H, N, M].
        """
        i, j = targets[:, None, :, None], sources[:, None, None]
        seen = self.seen(i, j) if visible is None else self.seen(i, j) & visible
        if self.slopes is None:
            return seen
        return (-self.slopes.view(-1, 1, 1) * (i - j).abs()).to(dtype).masked_fill(~seen, -torch.inf)


def _by_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    *,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return softmax attention of a sequence to itself, with a mask of N x N numbers.

    Args:
        query, key, value: [B, H, N, E].
        positions: of the tokens, which count from 0.
        hidden: bool [B, N], True = hidden from all targets.
        dropout: probability of dropping a weight.
        scale: factor of the logits; 1 / sqrt(E) if None.
    """
    position = torch.arange(query.shape[2], device=query.device)[None]
    visible = positions.mask(position, position, None if hidden is None else ~hidden[:, None, None], query.dtype)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return softmax.rounding_to(query.dtype)(query, key, value, mask, dropout, is_causal, scale=scale)

    return over_visible(kernel, query, key, value, visible, False)


def _by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    *,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Compute the tiles of :func:`_by_mask` that have a visible pair, without a mask."""
    assert not dropout
    (is_causal, window, sinks, slopes), length = positions, query.shape[2]

    def visible(row: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = positions.seen(i, j)
        return seen if hidden is None else seen & ~hidden[row, j]

    def with_slope(logit: Tensor, _row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert slopes is not None
        return logit - slopes[head].to(logit.dtype) * (i - j).abs()

    begin = torch.arange(0, length, FLEX_BLOCK, device=query.device)
    first, needed = begin.unsqueeze(1), torch.ones(len(begin), len(begin), dtype=torch.bool, device=query.device)
    if is_causal:
        needed = needed & (begin <= first)
    if window is not None:
        needed = needed & ((begin + FLEX_BLOCK > first - window + 1) | (begin < sinks))
    return compiled_flex()(
        query,
        key.to(query.dtype),
        value.to(query.dtype),
        score_mod=None if slopes is None else with_slope,
        block_mask=block_mask(needed, visible, (length, length)),
        scale=scale,
        enable_gqa=key.shape[1] < query.shape[1],
    )


TRIALS["positions"] = lambda x, hidden: _by_flex(x, x[:, :1], x[:, :1], Positions(True, 20, 3), hidden=hidden)
TRIALS["slopes"] = lambda x, hidden: _by_flex(
    x, x[:, :1], x[:, :1], Positions(True, 20, 3, torch.ones(2, dtype=torch.float64, device=x.device)), hidden=hidden
)


def _refuses(query: Tensor, _key: Tensor, _value: Tensor, positions: Positions, **options: Any) -> str | None:
    return refuses_flex(query, form="positions" if positions.slopes is None else "slopes", **options)


positional_softmax = Operation("positional_softmax", _by_mask, Backend("flex", _by_flex, refuses=_refuses))
