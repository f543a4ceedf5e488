"""Norms of the heads of a token, and the gates that follow them.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.operator import elementwise_backend
from cab.flash_linear_attention import call, fla_backend
from cab.kernels import Operation

Activation = Literal["silu", "sigmoid"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    gate: Tensor | None = None,
    *,
    eps: float,
    activation: Activation = "silu",
    is_joint: bool = False,
    gates_first: bool = False,
) -> Tensor:
    """Divide x [B, H, N, E] by its root mean square, and multiply it by ``weight`` and by the activated gate.

    Args:
        x: [B, H, N, E].
        weight: [E], [H E] for a joint norm, or None.
        gate: logits [B, N, H E] of a factor, or None.
        eps: added to the mean square.
        activation: of the gate.
        is_joint: whether the mean is over all heads of a token.
        gates_first: whether the gate multiplies x before the norm.
    """
    factor = None if gate is None else ACTIVATIONS[activation](gate.unflatten(-1, (x.shape[1], -1)).transpose(1, 2))
    if gates_first and factor is not None:
        x, factor = x * factor, None
    x = x * (x.square().mean([1, 3] if is_joint else [3], keepdim=True) + eps).rsqrt()
    if weight is not None:
        weight = weight.to(x.dtype)
        x = x * (weight.view(x.shape[1], 1, x.shape[3]) if is_joint else weight)
    return x if factor is None else x * factor


def _rms_norm_by_fla(
    x: Tensor, weight: Tensor | None, gate: Tensor | None = None, *, eps: float, **form: Any
) -> Tensor:
    tokens = x.transpose(1, 2)
    rows = tokens.flatten(2) if form.get("is_joint") else tokens
    if gate is None:
        output = call("modules.norm.layernorm.rms_norm", rows, weight, None, eps=eps)
    elif form.get("gates_first"):
        gate = gate.view(rows.shape)
        name = "modules.norm.layernorm_gated.rmsnorm_fn"
        output = call(name, rows, weight, None, gate, eps=eps, norm_before_gate=False)
    else:
        name = "modules.norm.fused_norm_gate.rms_norm_gated"
        output = call(name, rows, gate.view(rows.shape), weight, None, form.get("activation", "silu"), eps=eps)
    result: Tensor = output.view(tokens.shape).transpose(1, 2)
    return result


rms_norm = Operation("rms_norm", _rms_norm, fla_backend(_rms_norm_by_fla))


def _unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide x [..., E] by the square root of its squared norm plus ``eps``."""
    return x * (x.square().sum(dim=-1, keepdim=True) + eps).rsqrt()


def _unit_by_fla(x: Tensor, eps: float = 1e-6) -> Tensor:
    result: Tensor = call("modules.norm.l2norm.l2norm", x.transpose(1, 2), eps).transpose(1, 2)
    return result


unit = Operation("unit", _unit, fla_backend(_unit_by_fla))


def _gated_skip(
    output: Tensor,
    skip: Tensor,
    value: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    first: Tensor | None = None,
    *,
    eps: float = 0.0,
) -> Tensor:
    """Compute (output + skip value) silu(gate), and with ``weight`` its RMS norm over all heads of a token.

    Args:
        output, value: [B, H, N, E].
        skip: [B or 1, H, N or 1, 1].
        gate: [B, N, H E].
        weight: [H E], or None.
        first: output [B, H, 1, E] of the first token, if that of each other one is at the token before it, or None.
        eps: added to the mean square.
    """
    if first is not None:
        output = torch.cat([first, output[:, :, :-1]], dim=2)
    x = torch.addcmul(output, skip.to(value.dtype), value)
    if weight is not None:
        return rms_norm(x, weight, gate, eps=eps, is_joint=True, gates_first=True)
    return x * F.silu(gate.unflatten(-1, (x.shape[1], -1)).transpose(1, 2))


def _gated_skip_kernel(
    output: Tensor,
    skip: Tensor,
    value: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    first: Tensor | None = None,
    *,
    eps: float = 0.0,
) -> Tensor:
    from attentions.kernels.triton_kernels import gated_skip

    tokens, of_heads = (x.transpose(1, 2).contiguous() for x in (output, skip))
    value, first = value.transpose(1, 2).contiguous(), None if first is None else first.contiguous()
    result = gated_skip(tokens, of_heads, value, gate.contiguous(), weight, first, eps)
    return result.transpose(1, 2)


gated_skip = Operation("gated_skip", _gated_skip, elementwise_backend(_gated_skip, _gated_skip_kernel))
