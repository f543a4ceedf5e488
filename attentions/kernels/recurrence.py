"""Gated linear attention: a decaying matrix state with one rank-one write per token, computed block by block.

    S_t = exp(g_t) S_{t-1} + k_t (x) v_t,    o_t = q_t S_t

The recurrence over blocks, s_(j+1) = f_j s_j + a_j, is one kernel on a GPU with Triton (CUDA builds of torch include
it), otherwise one step per block. The gradient is the same recurrence in reverse, so the kernel is also its own
backward pass.

Shapes: B batch, H heads, N tokens, K and V widths of a key and a value; J blocks of C tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels import fla_kernels
from attentions.kernels.numerics import accumulation_dtype
from attentions.kernels.operator import differentiable_operator
from cab.kernels import Backend, Operation

Form = Callable[..., tuple[Tensor, Tensor]]
"""From the terms of tokens and the state before the first to outputs and the state after the last."""


def _by_steps(initial: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the states before each block [B, H, J, K, V], and the state after the last block [B, H, K, V].

    Args:
        initial: s before the first block, [B, H, K, V].
        added: a, [B, H, J, K, V].
        factor: f of each row of a state [B or 1, H, J, K, 1], of the whole state [B or 1, H, J, 1, 1], or None for 1.
    """
    states = _one_by_one(initial, added, factor)
    return torch.stack(states[:-1], dim=2), states[-1]


def _in_one_tensor(initial: Tensor, added: Tensor, factor: Tensor) -> Tensor:
    """Return the states before each block and after the last one in one tensor, [B, H, J + 1, K, V]."""
    return torch.stack(_one_by_one(initial, added, factor), dim=2)


def _one_by_one(initial: Tensor, added: Tensor, factor: Tensor | None) -> list[Tensor]:
    s = [initial]
    factors = [None] * added.shape[2] if factor is None else factor.unbind(dim=2)
    for a_j, f_j in zip(added.unbind(dim=2), factors, strict=True):
        s.append(a_j + s[-1] if f_j is None else torch.addcmul(a_j, f_j, s[-1]))
    return s


def _by_kernel(initial: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    if factor is not None:
        factor = factor.expand(*added.shape[:3], -1, -1).contiguous()
    return _fused(initial.contiguous(), added.contiguous(), factor)  # as the compiler assumes of the gradients


def _in_one_tensor_by_kernel(initial: Tensor, added: Tensor, factor: Tensor) -> Tensor:
    states, last = _by_kernel(initial, added, factor)
    return torch.cat([states, last.unsqueeze(2)], dim=2)


def _sums(initial: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    from attentions.kernels.triton_kernels import recurrence_sums

    return recurrence_sums(initial, added, factor, backwards=False)


def _sums_backward(
    d_states: Tensor, d_last: Tensor, initial: Tensor, added: Tensor, factor: Tensor | None, states: Tensor
) -> list[Tensor]:
    """Return the gradients; that of a block's write is the gradient of the state after it."""
    from attentions.kernels.triton_kernels import recurrence_sums

    d_added, d_initial = recurrence_sums(d_last, d_states, factor, backwards=True)
    gradients = [d_initial.to(initial.dtype), d_added.to(added.dtype)]
    if factor is not None:
        kept = [dim for dim in (-2, -1) if factor.shape[dim] == 1]
        products = d_added.to(accumulation_dtype(d_added.dtype)) * states
        gradients.append(products.sum(dim=kept, keepdim=True).to(factor.dtype))
    return gradients


def _shapes(initial: Tensor, added: Tensor, _factor: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(added), torch.empty_like(initial)


_fused = differentiable_operator(
    "gated_linear_recurrence",
    _sums,
    _sums_backward,
    shapes=_shapes,
    gradients=("initial", "added", "factor"),
    keeps=(0,),
)

block_recurrence = Operation("block_recurrence", _by_steps, Backend("triton", _by_kernel, package="triton"))
block_states = Operation("block_states", _in_one_tensor, Backend("triton", _in_one_tensor_by_kernel, package="triton"))


BLOCK = 64
"""Tokens per block, whose products with each other are formed. A power of two."""

FORGOTTEN = -1e3
"""A log decay whose exp is zero in every dtype, and that leaves the digits of sums in float64."""


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, N, V] and the state [B, H, K, V] after the last token.

    Every factor is exp of a sum of log decays between two tokens, never of a difference of such sums. No factor exceeds
    one, and none loses precision to earlier decays.

    Args:
        query, key: [B, H or 1, N, K]; with 1, all heads share one product.
        value: [B, H, N, V].
        log_decay: g <= 0 per head [B or 1, H, N] or per feature [B or 1, H, N, K]; None for no decay.
        state: S before the first token, [B, H, K, V].
    """
    length = query.shape[2]
    if length == 1:  # of decoding: blocks of one are right as well, and slower
        if log_decay is not None:
            state = state * (log_decay.unsqueeze(-1) if log_decay.dim() == 3 else log_decay.mT).exp()
        state = state + key.mT * value
        return query @ state, state
    size = block_size(length)
    q, k, v = (in_blocks(x, size) for x in (query, key, value))
    if log_decay is None:
        scores, decay = (q @ k.mT).tril_(), None
    else:
        factors = _head_factors if log_decay.dim() == 3 else _feature_factors
        scores, prefix, suffix, decay = factors(q, k, in_blocks(log_decay, size))
        q, k = q * prefix, k * suffix
    # s_(j+1) = f_j s_j + a_j over blocks, with a = k^T v decayed to the end of the block; h are the states before them
    h, state = block_recurrence(state, k.mT @ v, decay)
    output = scores @ v + q @ h
    return output.flatten(2, 3)[:, :, :length], state


recurrence = Operation("recurrence", _by_blocks, fla_kernels.backend(fla_kernels.recurrence))


def block_size(length: int, most: int = BLOCK) -> int:
    """Return the smallest power of two of at least ``length``, but at most ``most``."""
    return min(most, 1 << (length - 1).bit_length())


def in_blocks(x: Tensor, size: int) -> Tensor:
    """Reshape [B, H, N, ...] to [B, H, J, C, ...], padded with zeros on the right."""
    missing = -x.shape[2] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, size))


def head_decays(g: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the decays within blocks from log decays [B, H, J, C].

    Sums are in float64, so that their differences are exact to float32.

    Returns:
        Decays from token j to token i [.., C, C], zero for j > i; from before the block to each token [.., C, 1]; from
        each token to the end of the block [.., C, 1]; and over the block [.., 1, 1].
    """
    sums = g.double().clamp(min=FORGOTTEN).cumsum(dim=-1)
    upper = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(dtype).masked_fill(upper, -torch.inf).exp()
    suffix = (sums[..., -1:] - sums).to(dtype).exp().unsqueeze(-1)
    prefix = sums.to(dtype).exp().unsqueeze(-1)
    return between, prefix, suffix, prefix[..., -1:, :]


def _head_factors(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return decayed products within blocks [B, H, J, C, C], and the last three results of :func:`head_decays`."""
    between, prefix, suffix, whole = head_decays(g, q.dtype)
    return (q @ k.mT) * between, prefix, suffix, whole


def _feature_factors(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what :func:`_head_factors` does for log decays per feature [B, H, J, C, K]; the last one is [.., K, 1]."""
    shape = torch.broadcast_shapes(q.shape, k.shape, g.shape)
    flat = [x.expand(shape).reshape(-1, *shape[-2:]) for x in (q, k, g)]
    scores = _decayed_products(*flat).unflatten(0, shape[:-2])
    from_start, to_end = _sums_to(g, inclusive=True), _sums_to(g, inclusive=False)
    return scores, from_start.exp(), to_end.exp(), from_start[..., -1, :].exp().unsqueeze(-1)


def _sums_to(g: Tensor, *, inclusive: bool) -> Tensor:
    """Sum log decays [..., C, K] from the first token to each one, or over the tokens after each one."""
    ones = torch.ones(g.shape[-2], g.shape[-2], dtype=g.dtype, device=g.device)
    return (ones.tril() if inclusive else ones.triu(1)) @ g


def _decayed_products(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """Return sum_c q_ic k_jc exp(g_(j+1)c + ... + g_ic) for j <= i, else zero: [P, C, K] to [P, C, C].

    A block is split in halves. A pair with one token in each half decays to the border and on from it, by two factors
    of at most one, so these pairs are one matrix product. The pairs within each half are two blocks of half the size.
    """
    size = q.shape[1]
    if size == 1:
        return (q * k).sum(dim=-1, keepdim=True)
    half = size // 2
    halves = [x.unflatten(1, (2, half)) for x in (q, k, g)]
    (_, late_q), (early_k, _), (early_g, late_g) = (x.unbind(dim=1) for x in halves)
    late_q = late_q * _sums_to(late_g, inclusive=True).exp()
    early_k = early_k * _sums_to(early_g, inclusive=False).exp()
    across = late_q @ early_k.mT
    within = _decayed_products(*(x.flatten(0, 1) for x in halves))
    early, late = within.unflatten(0, (-1, 2)).unbind(dim=1)
    return torch.cat([F.pad(early, (0, half)), torch.cat([across, late], dim=2)], dim=1)
