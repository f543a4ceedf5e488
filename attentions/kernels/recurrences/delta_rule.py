"""The (gated) delta rule: a matrix state that corrects what it returns for a key, computed block by block.

    S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}),    o_t = q_t S_t,    a_t = exp(g_t)

Shapes: B batch, H heads, N tokens, K and V widths of a key and a value; J blocks of C tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.kernels.recurrences.delta_rule_chunked import delta_rule_chunked
from attentions.kernels.recurrences.recurrence import block_size, head_decays, in_blocks

BLOCK = 32
"""Tokens of a block; the cost of its triangular system grows with the square. Of 16 to 128 the fastest on a CPU."""


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, N, V] and the state [B, H, K, V] after the last token.

    Within a block the written value, u_t = b_t (v_t - a_t k_t S_{t-1}), solves (1 + A) u = b (v - d k S) with A
    the decayed products b_i k_i . k_j of later with earlier tokens and S before the block: a triangular system for
    the two parts of the right side at once, since S is not known yet (the WY form).

    States grow if keys are longer than one. Computed in float32 or wider.

    Args:
        query, key: [B, H, N, K].
        value: [B, H, N, V].
        strength: b [B, H, N].
        log_decay: g <= 0, [B, H, N], or None for no decay.
        state: S before the first token, [B, H, K, V].
    """
    length = query.shape[2]
    size = block_size(length, BLOCK)
    q, k, v, b = (in_blocks(x, size) for x in (query, key, value, strength.unsqueeze(-1)))
    products, scores = b * (k @ k.mT), (q @ k.mT).tril()
    read, late, whole = k, k, None
    if log_decay is not None:
        between, prefix, suffix, whole = head_decays(in_blocks(log_decay, size), query.dtype)
        products, scores = products * between, scores * between
        q, read, late = q * prefix, k * prefix, k * suffix
    sides = torch.cat([b * v, -b * read], dim=-1)
    solved = torch.linalg.solve_triangular(products.tril(-1), sides, upper=False, unitriangular=True)
    own, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    written, before, state = delta_rule_chunked(state, own, erased, late, whole)
    output = scores @ written + q @ before
    return output.flatten(2, 3)[:, :, :length], state
