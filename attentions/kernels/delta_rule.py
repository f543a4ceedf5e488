"""Delta rules: a matrix state that corrects what it returns for a key, computed block by block.

Gated (Yang et al. 2024), with a_t = exp(g_t):

    S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}),    o_t = q_t S_t

Generalized (RWKV-7), with a transition that is diagonal plus rank one:

    S_t = exp(g_t) S_{t-1} - e_t (x) (r_t S_{t-1}) + k_t (x) v_t,    o_t = q_t S_t

The recurrence over blocks, u_j = x_j + w_j S_j and S_(j+1) = f_j S_j + k_j^T u_j, is one kernel on a GPU with Triton,
otherwise one step per block. Its gradient is the same recurrence in reverse with w and k exchanged, so the kernel is
also its own backward pass.

Shapes: B batch, H heads, N tokens, K and V widths of a key and a value; J blocks of C tokens.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from attentions.kernels import fla_kernels
from attentions.kernels.numerics import accumulation_dtype, upcast
from attentions.kernels.operator import differentiable_operator
from attentions.kernels.recurrence import block_size, head_decays, in_blocks
from cab.flash_linear_attention import fla_backend
from cab.kernels import Backend, Operation

WIDEST = 512
"""Largest number of rows K of a state for which the kernel has room."""


def _by_steps(initial: Tensor, x: Tensor, w: Tensor, k: Tensor, decay: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return u of every block [B, H, J, C, V], the states before them [B, H, J, K, V], and the last state.

    Args:
        initial: S before the first block, [B, H, K, V].
        x: [B, H, J, C, V].
        w, k: [B, H, J, C, K].
        decay: f of each row of a state [B or 1, H, J, K, 1], of the whole state [B or 1, H, J, 1, 1], or None for 1.
    """
    u, states = [], [initial]
    decays = [None] * x.shape[2] if decay is None else decay.unbind(dim=2)
    for x_j, w_j, k_j, f_j in zip(x.unbind(2), w.unbind(2), k.unbind(2), decays, strict=True):
        u.append(x_j + w_j @ states[-1])
        states.append((states[-1] if f_j is None else f_j * states[-1]) + k_j.mT @ u[-1])
    return torch.stack(u, dim=2), torch.stack(states[:-1], dim=2), states[-1]


def _by_kernel(initial: Tensor, x: Tensor, w: Tensor, k: Tensor, decay: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if decay is not None:
        decay = decay.expand(*x.shape[:3], -1, -1).contiguous()
    return _fused(*(y.contiguous() for y in (initial, x, w, k)), decay)


def _refuses(initial: Tensor, *_: Tensor | None) -> str | None:
    """Refuse states [B, H, K, V] that are too wide, and to run where products in a kernel are not counted."""
    if initial.shape[2] > WIDEST:
        return f"more than {WIDEST} rows of a state"
    return "an operation counter" if is_in_torch_dispatch_mode(False) else None


def _states(initial: Tensor, x: Tensor, w: Tensor, k: Tensor, decay: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from attentions.kernels.triton_kernels import delta_rule_states

    return delta_rule_states(initial, x, w, k, decay)


def _states_backward(
    d_u: Tensor,
    d_states: Tensor,
    d_last: Tensor,
    initial: Tensor,
    x: Tensor,
    w: Tensor,
    k: Tensor,
    decay: Tensor | None,
    u: Tensor,
    states: Tensor,
) -> list[Tensor]:
    """Return the gradients, from the reverse recurrence over the gradients of x and of the state after each block."""
    from attentions.kernels.triton_kernels import delta_rule_states

    d_x, d_after, d_initial = delta_rule_states(d_last, d_u, k, w, decay, added=d_states, backwards=True)
    gradients = [d_initial.to(initial.dtype), d_x.to(x.dtype), d_x @ states.mT, u @ d_after.mT]
    if decay is not None:
        kept = [dim for dim in (-2, -1) if decay.shape[dim] == 1]
        products = d_after.to(accumulation_dtype(d_after.dtype)) * states
        gradients.append(products.sum(dim=kept, keepdim=True).to(decay.dtype))
    return gradients


def _shapes(initial: Tensor, x: Tensor, w: Tensor, _k: Tensor, _decay: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), initial.new_empty(*w.shape[:3], *initial.shape[2:]), torch.empty_like(initial)


_fused = differentiable_operator(
    "delta_rule_chunked",
    _states,
    _states_backward,
    shapes=_shapes,
    gradients=("initial", "x", "w", "k", "decay"),
    keeps=(0, 1),
)

delta_rule_chunked = Operation(
    "delta_states", _by_steps, Backend("triton", _by_kernel, package="triton", refuses=_refuses)
)


BLOCK = 32
"""Tokens of a block; the cost of its triangular system grows with the square. Of 16 to 128 the fastest on a CPU."""


def _by_blocks(
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
    k_cumdecay, k_to_end, decay = k, k, None
    if log_decay is not None:
        between, prefix, suffix, decay = head_decays(in_blocks(log_decay, size), query.dtype)
        products, scores = products * between, scores * between
        q, k_cumdecay, k_to_end = q * prefix, k * prefix, k * suffix
    # (1 + A) [u, w] = b [v, -k d]: the WY form (Yang et al. 2024, Eq. 10)
    right_sides = torch.cat([b * v, -b * k_cumdecay], dim=-1)
    uw = torch.linalg.solve_triangular(products.tril(-1), right_sides, upper=False, unitriangular=True)
    u, w = uw.split([v.shape[-1], k.shape[-1]], dim=-1)
    u, h, state = delta_rule_chunked(state, u, w, k_to_end, decay)  # u + w h, with h the state before the block
    output = scores @ u + q @ h
    return output.flatten(2, 3)[:, :, :length], state


delta_rule = Operation("delta_rule", _by_blocks, fla_kernels.backend(fla_kernels.delta_rule))

GENERALIZED_BLOCK = 16
"""Tokens per block, whose products with each other are formed. A power of two."""

SPAN = 8
"""Tokens per span. Decays between its tokens are quotients of decays from its middle. A power of two."""

SPAN_ROUNDING = "decays are relative to the middle of a span of tokens"
"""Why the first tokens of a span round differently if later ones change."""


def generalized_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    removal: Tensor,
    erasure: Tensor,
    log_decay: Tensor,
    state: Tensor,
    *,
    span: int = SPAN,
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, N, V] and the state [B, H, K, V] after the last token.

    Within a block what a token adds along e, u_t = -r_t S_{t-1}, solves (1 + A) u = -D v - d r S with A and D the
    decayed products of r with earlier e and k, and S before the block: a triangular system for the two parts of the
    right side at once, since S is not known yet (the WY form). Computed in float32 or wider.

    Args:
        query, key: q and k [B, H, N, K].
        value: [B, H, N, V].
        removal, erasure: r, by which the state is read, and e, where that is taken away, [B, H, N, K]. Products r_i e_j
            beyond one make states that grow.
        log_decay: g <= 0, [B, H, N, K]. Within a block, a feature retains at least 2e-8 of itself per
            token in float32, and 2e-62 in float64.
        state: S before the first token, [B, H, K, V].
        span: tokens whose decays are divided by each other. Twice as many are faster, for g >= -8 in float32.
            Factors stay below exp(-g span / 2); with exp(11), float16 has room in a backward pass under autocast.
    """
    length = query.shape[2]
    size = block_size(length, GENERALIZED_BLOCK)
    span = min(span, size)
    q, k, v, r, e, g = (in_blocks(x, size) for x in (query, key, value, removal, erasure, log_decay))
    from_start = g.cumsum(dim=-2)
    through, before = from_start.exp(), F.pad(from_start[..., :-1, :], (0, 0, 1, 0)).exp()
    to_end = (g.new_ones(size, size).triu(1) @ g).exp()  # sums, not differences of sums
    for_q, for_r, for_ke = _span_decays(g, span)
    rows = [x.unflatten(3, (-1, span)) * factors for x, factors in ((q, for_q), (r, for_r))]
    columns = [(x.unsqueeze(3) * for_ke).mT for x in (k, e)]
    # Decayed products within the block: of q with k and e (outputs), of r with k and with e (what is removed)
    a_qk, a_qe, a_rk, a_re = ((x @ y).flatten(3, 4) for x in rows for y in columns)
    a_q, a_rk, a_re = torch.cat([a_qk.tril(), a_qe.tril()], dim=-1), a_rk.tril(-1), a_re.tril(-1)
    # (1 + a_re) [u, w] = -[a_rk v, r d]: the WY form
    right_sides = torch.cat([a_rk @ v, r * before], dim=-1).neg_()
    uw = torch.linalg.solve_triangular(a_re, right_sides, upper=False, unitriangular=True)
    u, w = uw.split([v.shape[-1], k.shape[-1]], dim=-1)
    ke_to_end = torch.cat([k * to_end, e * to_end], dim=-2).mT
    vu, h, state = _removals(state, v, u, w, ke_to_end, through[..., -1:, :].mT)
    output = a_q @ vu + (q * through) @ h
    return output.flatten(2, 3)[:, :, :length], state


rwkv7 = Operation(
    "rwkv7",
    partial(generalized_delta_rule, span=GENERALIZED_BLOCK),
    fla_kernels.backend(fla_kernels.generalized_delta_rule),
)


def _kda(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute S_t = (I - k_t (b_t * k_t)^T) diag(exp(g_t)) S_{t-1} + (b_t * k_t) (x) v_t with a strength per head."""
    written = key * strength
    return generalized_delta_rule(query, written, value, key * log_decay.exp(), written, log_decay, state)


def _gated_delta_rule_2(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute S_t = (I - k_t (b_t * k_t)^T) diag(exp(g_t)) S_{t-1} + k_t (x) v_t with a strength per feature."""
    return generalized_delta_rule(query, key, value, strength * key * log_decay.exp(), key, log_decay, state)


def _comba(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute S_t = exp(g_t) S_{t-1} + b_t k_t (x) (v_t - r_t S_{t-1}); b and g are per head, [B, H, N]."""
    written = key * strength.unsqueeze(-1)
    log_decay = log_decay.unsqueeze(-1).expand_as(key)
    return generalized_delta_rule(query, written, value, removal, written, log_decay, state)


def _delta_product(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated delta rule over n N keys: the first of the n of a token decays, the last one is read.

    Args:
        query: [B, H, N, K].
        key, value: [B, H, n N, K] and [B, H, n N, V].
        strength: [B, H, n N].
        log_decay: [B, H, N].
        state: S before the first token, [B, H, K, V].
    """
    count = key.shape[2] // query.shape[2]
    query = F.pad(query.unsqueeze(3), (0, 0, count - 1, 0)).flatten(2, 3)
    log_decay = F.pad(log_decay.unsqueeze(3), (0, count - 1)).flatten(2)
    output, state = _by_blocks(query, key, value, strength, log_decay, state)
    return output[:, :, count - 1 :: count], state


def _kda_decay(logits: Tensor, log_rate: Tensor) -> Tensor:
    """Return -exp(log_rate) softplus(logits) in float32 or wider, from [B, H, N, K] and [H, 1, 1]."""
    return -upcast(log_rate).exp() * F.softplus(upcast(logits))


kda_decay = Operation("kda_decay", _kda_decay, fla_backend(fla_kernels.kda_decay))
kda = Operation("kda", _kda, fla_kernels.backend(fla_kernels.kda))
gated_delta_rule_2 = Operation(
    "gated_delta_rule_2", _gated_delta_rule_2, fla_kernels.backend(fla_kernels.gated_delta_rule_2)
)
comba = Operation("comba", _comba, fla_kernels.backend(fla_kernels.comba))
delta_product = Operation("delta_product", _delta_product, fla_kernels.backend(fla_kernels.delta_product))


def _span_decays(g: Tensor, span: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decays of q and of r [B, H, J, spans, span, K], and those of k and e [B, H, J, spans, C, K].

    They are relative to the middle of a span. What token j <= i writes is read by token i of the span with the product
    of the decays from the middle to i and from j to the middle, of which one may be a quotient. Neither overflows.
    Those of k and e are meaningless after the span.
    """
    size = g.shape[-2]
    bounded = g.clamp(min=-1.6 * math.log(torch.finfo(g.dtype).max) / max(span, 2))  # at most half a span in a factor
    t = torch.arange(size, device=g.device)
    last = t[span - 1 :: span]
    middles, writers = last - span // 2, torch.minimum(t, last.unsqueeze(1)).flatten()
    middle = middles.repeat_interleave(span)
    after, until = torch.cat([middle, middle, writers]), torch.cat([t, t - 1, middles.repeat_interleave(size)])
    signs = (t <= until.unsqueeze(1)).to(g.dtype) - (t <= after.unsqueeze(1)).to(g.dtype)
    for_q, for_r, for_ke = (signs @ bounded.detach()).split([size, size, len(writers)], dim=-2)
    # The gradients of the middle cancel: as if decays were relative to the start, which no later token has a part in
    sums = bounded.cumsum(dim=-2)
    sums = sums - sums.detach()
    for_q, for_r = for_q + sums, for_r + F.pad(sums[..., :-1, :], (0, 0, 1, 0))
    for_ke = for_ke.unflatten(3, (-1, size)) - sums.unsqueeze(3)
    return for_q.exp().unflatten(3, (-1, span)), for_r.exp().unflatten(3, (-1, span)), for_ke.exp()


def _removals_by_steps(
    state: Tensor, value: Tensor, u: Tensor, w: Tensor, ke_to_end: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return v and u + w h of each block, [B, H, J, 2 C, V], the states h before the blocks, and the last state.

    Args:
        state: before the first block, [B, H, K, V].
        value: v, [B, H, J, C, V].
        u, w: solutions of the triangular system, [B, H, J, C, V] and [B, H, J, C, K].
        ke_to_end: k and e, decayed to the end of the block, [B, H, J, K, 2 C].
        decay: over the block, [B, H, J, K, 1].
    """
    written, states = [], [state]
    for v_j, u_j, w_j, rows, factor in zip(*(x.unbind(2) for x in (value, u, w, ke_to_end, decay)), strict=True):
        written.append(torch.cat([v_j, u_j + w_j @ states[-1]], dim=-2))
        states.append(factor * states[-1] + rows @ written[-1])
    return torch.stack(written, dim=2), torch.stack(states[:-1], dim=2), states[-1]


def _removals_by_kernel(
    state: Tensor, value: Tensor, u: Tensor, w: Tensor, ke_to_end: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute values as rows that read nothing of the state."""
    u, w = torch.cat([value, u], dim=-2), F.pad(w, (0, 0, value.shape[-2], 0))
    return _by_kernel(state, u, w, ke_to_end.mT, decay)


_removals = Operation(
    "generalized_delta_states",
    _removals_by_steps,
    Backend("triton", _removals_by_kernel, package="triton", refuses=_refuses),
)
