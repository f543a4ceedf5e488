"""The generalized delta rule of RWKV-7: a transition that is diagonal plus rank one, computed block by block.

    S_t = exp(g_t) S_{t-1} - e_t (x) (r_t S_{t-1}) + k_t (x) v_t,    o_t = q_t S_t

Shapes: B batch, H heads, N tokens, K and V widths of a key and a value; J
blocks of C tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.recurrences.delta_rule_chunked import delta_rule_chunked, is_fused
from attentions.kernels.recurrences.recurrence import block_size, in_blocks

BLOCK = 16
"""Tokens per block. Within a block decays are divided by each other, which bounds ``log_decay``."""


def generalized_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, erasure: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, N, V] and the state [B, H, K, V] after the last token.

    Within a block what a token finds, x_t = r_t S_{t-1}, solves (1 + A) x = D v + d r S with A and D the decayed
    products of r with earlier e and k, and S before the block: a triangular system for the two parts of the right side
    at once, since S is not known yet (the WY form). Float32 at least.

    Args:
        query, key: q and k [B, H, N, K].
        value: [B, H, N, V].
        removal, erasure: r, by which the state is read, and e, where that is taken away, [B, H, N, K]. Products r_i e_j
            beyond one make states that grow.
        log_decay: g [B, H, N, K], -1 <= g <= 0: with it factors within a block stay below exp(8), for which
            float16 has room too, in a backward pass under autocast.
        state: S before the first token, [B, H, K, V].
    """
    length = query.shape[2]
    size = block_size(length, BLOCK)
    q, k, v, r, e, g = (in_blocks(x, size) for x in (query, key, value, removal, erasure, log_decay))
    after = g.cumsum(dim=-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    last, middle = after[..., -1:, :], after[..., size // 2, None, :].detach()  # nothing depends on where the middle is
    read, found, early = q * (after - middle).exp(), r * (before - middle).exp(), (middle - after).exp()
    k_early, e_early = (k * early).mT, (e * early).mT
    scores = torch.cat([(read @ k_early).tril(), -(read @ e_early).tril()], dim=-1)
    sides = torch.cat([(found @ k_early).tril(-1) @ v, r * before.exp()], dim=-1)
    solved = torch.linalg.solve_triangular((found @ e_early).tril(-1), sides, upper=False, unitriangular=True)
    own, seen = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    late = (last - after).exp()
    kept = torch.cat([k * late, -e * late], dim=-2).mT
    written, states, state = _written(state, v, own, seen, kept, last.exp().mT)
    output = scores @ written + (q * after.exp()) @ states
    return output.flatten(2, 3)[:, :, :length], state


def _written(
    state: Tensor, value: Tensor, own: Tensor, seen: Tensor, kept: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Values above what is found, [B, H, J, 2 C, V]; the states before blocks [B, H, J, K, V], and after the last."""
    if is_fused(seen):  # values are rows that find what they are, whatever the state is
        own, seen = torch.cat([value, own], dim=-2), F.pad(seen, (0, 0, value.shape[-2], 0))
        return delta_rule_chunked(state, own, seen, kept.mT, decay)
    written, states = [], [state]
    for v, x, w, rows, factor in zip(*(y.unbind(2) for y in (value, own, seen, kept, decay)), strict=True):
        written.append(torch.cat([v, x + w @ states[-1]], dim=-2))
        states.append(factor * states[-1] + rows @ written[-1])
    return torch.stack(written, dim=2), torch.stack(states[:-1], dim=2), states[-1]
