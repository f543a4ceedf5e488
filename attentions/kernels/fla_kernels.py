"""The recurrences computed by the kernels of flash-linear-attention.

Functions and shapes are those of `recurrence`, `delta_rule` and `causal_abc`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attentions.kernels.numerics import once_differentiable
from cab.flash_linear_attention import FACTORS, SHORTEST, call, fla_backend, has_wrong_gradients
from cab.kernels import Backend

WIDTHS = range(16, 257)
"""Of keys and values: a matrix product of Triton has 16 numbers or more, a state that is corrected at most 256 rows."""

FORGOTTEN = -100.0
"""A log decay whose exp is zero in float32, and beside which sums of a block in float32 keep their digits."""


def backend(run: Callable[..., tuple[Tensor, Tensor]]) -> Backend:
    """Return the backend of one of the functions below, whose last arguments are the log decays and the state."""
    return fla_backend(run, _refuses)


def _refuses(*terms: Tensor | None) -> str | None:
    *_, log_decay, state = terms
    assert state is not None
    if log_decay is not None and log_decay.dim() == 3 and torch.is_grad_enabled() and has_wrong_gradients(state.device):
        return "gradients of decays per head on a Hopper GPU need Triton 3.7.1 or newer"
    rows, columns = state.shape[2:]
    if rows in WIDTHS and columns in WIDTHS:
        return None
    return f"keys and values of {rows} and {columns} features, not {WIDTHS.start} to {WIDTHS.stop - 1}"


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated linear recurrence with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value}
    if log_decay is None:
        return _call("simple_gla.chunk_simple_gla", factors, {}, state)
    name = "simple_gla.chunk_simple_gla" if log_decay.dim() == 3 else "gla.chunk_gla"
    return _call(name, factors, {"g": bounded(log_decay)}, state)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a (gated) delta rule with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value, "beta": strength}
    if log_decay is None:
        return _call("delta_rule.chunk_delta_rule", factors, {}, state)
    return _call("gated_delta_rule.chunk_gated_delta_rule", factors, {"g": bounded(log_decay)}, state)


def generalized_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, erasure: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the generalized delta rule with the flash-linear-attention kernel, which adds a (b S): a = -r."""
    factors = {"q": query, "k": key, "v": value, "a": -removal, "b": erasure}
    return _call("generalized_delta_rule.dplr.chunk_dplr_delta_rule", factors, {"gk": log_decay}, state)


def kda(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule with decays per feature with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value, "beta": strength.squeeze(-1)}
    return _call("kda.chunk_kda", factors, {"g": bounded(log_decay)}, state)


def kda_decay(logits: Tensor, log_rate: Tensor) -> Tensor:
    """Compute the log decays of `kda` in float32 with the flash-linear-attention kernel."""
    result: Tensor = call("ops.kda.gate.fused_kda_gate", logits.transpose(1, 2), log_rate.flatten())
    return result.transpose(1, 2)


def gated_delta_rule_2(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute that with strengths per feature; the kernel has gates of values, too, which are one."""
    factors = {"q": query, "k": key, "v": value, "b": strength, "w": torch.ones_like(value)}
    return _call("gdn2.chunk_gdn2", factors, {"g": bounded(log_decay)}, state)


def comba(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated delta rule that reads the state by another key than it writes."""
    factors = {"q": query, "k": key, "v": value, "p": removal, "beta": strength}
    return _call("comba.chunk_comba", factors, {"g": bounded(log_decay)}, state)


def delta_product(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated delta rule with several keys per token."""
    factors = {"q": query, "k": key, "v": value, "beta": strength}
    steps = key.shape[2] // query.shape[2]
    name = "gated_delta_product.chunk_gated_delta_product"
    return _call(name, factors, {"g": bounded(log_decay)}, state, num_householder=steps)


def refuses_slots(_query: Tensor, *inputs: Tensor | None) -> str | None:
    """Refuse memories [2, B, H, r, E], the last of the inputs, of sizes that the kernels lack."""
    state = inputs[-1]
    assert state is not None
    return _refuses(None, state[0])


def causal_abc(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    compress: Tensor,
    padding: Tensor | None,
    mass: Tensor,
    mean: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute causal ABC as two recurrences whose decays are per slot: of keys, and of values.

    With z the logarithm of the sum of the weights exp(s) so far, a mean over tokens is a state that decays by
    exp(z_{t-1} - z_t) and adds exp(s_t - z_t) times the token.
    """
    (keys, key_decay, key_mass), (values, value_decay, value_mass) = (
        _shares(x, weight, padding, m) for x, weight, m in zip((key, value), compress, mass, strict=True)
    )
    tokens = [x.to(FACTORS).transpose(1, 2).contiguous() for x in (query, key, keys)]
    decay = bounded(key_decay).transpose(1, 2).contiguous()
    logits, key_mean = _SlotProducts.apply(*tokens, decay, mean[0].mT.contiguous())
    weights = (logits.float() * query.shape[-1] ** -0.5).softmax(dim=-1).transpose(1, 2)
    output, value_mean = recurrence(weights, values, value, value_decay, mean[1])
    return (
        output.to(query.dtype),
        torch.stack([key_mass, value_mass]).to(mass.dtype),
        torch.stack([key_mean.mT, value_mean]),
    )


def _shares(x: Tensor, compress: Tensor, padding: Tensor | None, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of each token in the mean up to it, the log of what it leaves, [B, H, N, r], and the last z."""
    scores = (x.transpose(1, 2) @ compress.to(x.dtype)).permute(0, 2, 3, 1)
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None], -torch.inf)
    total = torch.cat([mass.float().unsqueeze(-1), scores], dim=-1).logcumsumexp(dim=-1)
    shares = (scores - total[..., 1:]).exp()
    return shares.mT, (total[..., :-1] - total[..., 1:]).mT, total[..., -1]


class _SlotProducts(torch.autograd.Function):
    """Compute q_t S_t with S_t = S_{t-1} diag(exp(g_t)) + k_t (x) v_t, whose decays are of the columns.

    It is the first half of gated slot attention in flash-linear-attention, which has no function for it alone.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.cuda.device_of(query):
            sums = call("ops.utils.chunk_local_cumsum", log_decay, SHORTEST, scale=math.log2(math.e))
            inputs = {"q": query, "k": key, "v": value, "g": sums, "h0": state}
            _, last, output = call("ops.gsa.chunk_fwd.chunk_gsa_fwd_k", **inputs, output_final_state=True)
        ctx.save_for_backward(*inputs.values(), output)
        return output, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_last: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(("q", "k", "v", "g", "h0", "o"), ctx.saved_tensors, strict=True))
        outputs = {"do": d_output.contiguous(), "dht": d_last.contiguous(), "dg": torch.zeros_like(inputs["g"])}
        with torch.cuda.device_of(d_output):
            gradients: tuple[Tensor, ...] = call("ops.gsa.chunk_bwd.chunk_gsa_bwd_k", **inputs, **outputs, h=None)
        return gradients


def _call(
    path: str, factors: dict[str, Tensor], decays: dict[str, Tensor], state: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Call the function in ``path`` with tensors [B or 1, H or 1, N, ...] by the names of its arguments."""
    rows, dtype = factors["v"].shape[:2], factors["v"].dtype
    inputs = {name: x.to(FACTORS) for name, x in factors.items()} | decays
    inputs = {name: x.expand(*rows, *x.shape[2:]).transpose(1, 2) for name, x in inputs.items()}
    options = {"scale": 1.0, "initial_state": state, "output_final_state": True, **options}
    output, state = call(f"ops.{path}", **inputs, **options)
    return output.transpose(1, 2).to(dtype), state


def bounded(log_decay: Tensor) -> Tensor:
    """Return log decays that are at least FORGOTTEN."""
    return log_decay.clamp(min=FORGOTTEN)
