"""The layer of Mamba-3 (Lahoti et al. 2026), with one input and one output per feature (SISO)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, jointly, projection, tokens_read
from attentions.kernels.chunks import Heads
from attentions.kernels.norms import gated_skip, rms_norm
from attentions.kernels.numerics import upcast
from attentions.kernels.operator import elementwise_backend
from attentions.kernels.recurrence import BLOCK, in_blocks
from attentions.ssd import step_map
from cab import Attention, DecodeState, ParamGroupOverride, UserError, register_attention
from cab.attention import ConvolutionArguments, Decoded
from cab.claims import Claims
from cab.convolution import last_inputs
from cab.kernels import Operation
from cab.registry.options import Positive

SLOWEST = 1e-4
"""Least rate A."""


def rotated(query: Tensor, key: Tensor, query_bias: Tensor, key_bias: Tensor, angle: Tensor) -> list[Tensor]:
    """Add biases [H, 1, K] to queries and keys [B, 1, N, K] and turn both by angles [B, H, N, R], pair after pair."""
    size, tables = 2 * angle.shape[-1], [f(angle).to(query.dtype).transpose(1, 2) for f in (torch.cos, torch.sin)]
    outputs = []
    for x, bias in (query, query_bias), (key, key_bias):
        x = (x + bias.to(x.dtype)).transpose(1, 2)
        even, odd, cos, sin = x[..., 0:size:2], x[..., 1:size:2], *tables
        pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        outputs.append(torch.cat([pairs, x[..., size:]], dim=-1).transpose(1, 2))
    return outputs


def _turned(
    query: Tensor,
    key: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    turn: Tensor,
    step: Tensor,
    before: Tensor,
    query_factor: Tensor | None = None,
    key_factor: Tensor | None = None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize queries and keys of all heads, add biases, and turn both by the angles so far.

    Args:
        query, key: [B, 1, N, K].
        query_norm, key_norm: weights [K] of the RMS norms.
        query_bias, key_bias: [H, 1, K].
        turn: change [B, N, R] of an angle per unit of time.
        step: time [B, H, N] that a token takes.
        before: angles [B, H, R] before the first token.
        query_factor, key_factor: factors [B, H, N] of the results, or None. With factors, each query is at the token
            before its own, and the first one is at the last token.
        eps: added to the mean squares.

    Returns:
        Queries and keys [B, H, N, K], the product of those of a token without factors [B, H, N], and the angles after
        the last token [B, H, R].
    """
    # Sums in float64: float32 loses digits of an angle after thousands of tokens
    moved = (turn.unsqueeze(1) * step.unsqueeze(-1)).cumsum(dim=2, dtype=torch.float64)
    angle = (before.unsqueeze(2) + moved).remainder(2 * math.pi).to(step.dtype)
    query, key = rms_norm(query, query_norm, eps=eps), rms_norm(key, key_norm, eps=eps)
    query, key = rotated(query, key, query_bias, key_bias, angle)
    product = (query * key).sum(dim=-1)
    if query_factor is not None and key_factor is not None:
        query, key = (x * f.unsqueeze(-1).to(x.dtype) for x, f in ((query, query_factor), (key, key_factor)))
        query = query.roll(-1, dims=2)
    return query, key, product, angle[:, :, -1]


def _turned_by_kernel(
    query: Tensor,
    key: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    turn: Tensor,
    step: Tensor,
    before: Tensor,
    query_factor: Tensor | None = None,
    key_factor: Tensor | None = None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from attentions.kernels.triton_kernels import turned

    steps, turns = in_blocks(step, BLOCK).double(), in_blocks(turn.unsqueeze(1), BLOCK).squeeze(1).double()
    sums = torch.einsum("bhjc,bjcr->bhjr", steps, turns).cumsum(dim=2)
    starts = torch.cat([before.unsqueeze(2), before.unsqueeze(2) + sums], dim=2).remainder(2 * math.pi).to(step.dtype)
    query, key, weights = query.squeeze(1), key.squeeze(1), (query_norm, key_norm, query_bias, key_bias)
    if query.stride() != key.stride() or query.stride(2) != 1:
        query, key = query.contiguous(), key.contiguous()
    factors = [None if x is None else x.contiguous() for x in (query_factor, key_factor)]
    angles = turn.contiguous(), step.contiguous(), starts
    query, key, product = turned(query, key, *weights, *angles, *factors, eps=eps, block=BLOCK)
    return query.transpose(1, 2), key.transpose(1, 2), product, starts[:, :, -1]


turned = Operation("turned", _turned, elementwise_backend(_turned, _turned_by_kernel))


@register_attention("mamba3", patterns="CS", complexity="n", paper="Lahoti et al. 2026")
class Mamba3Attention(Recurrent):
    """Compute h_t = a_t (h_{t-1} + (1 - l_t) dt_t B_{t-1} (x) x_{t-1}) + l_t dt_t B_t (x) x_t, y_t = C_t h_t + D x_t.

    Mamba-3, arXiv:2603.15569, the SISO layer. B = R(norm(k) + b) and C = R(norm(q) + c) with an RMS norm over features
    that all heads share, one bias per head, and rotations R of pairs of features by the angles sum_{s <= t} pi
    tanh(u_s W_r) dt_s; half of the features are rotated. x = v, twice as wide as ``embed_dim``; dt = softplus(u W_d +
    d), a = exp(-dt max(softplus(u W_a), 1e-4)) and l = sigmoid(u W_l) have one number per head. The factor silu(u W_z)
    and ``out_proj`` follow. There is no convolution and no norm of the output.

    The initialization is that of state-spaces/mamba (attentions/defaults.csv). D and d have no weight decay.

    Args:
        state_size: width of B and C, the state size per feature; 128 as published.

    Raises:
        ValueError: for a ``state_size`` below 4.
    """

    norm_eps = 1e-5
    autocast_dtypes = (torch.bfloat16,)  # without a norm, outputs for large inputs exceed the range of float16
    claims = Claims(parameter_budget=0.15)  # 6 D^2 per layer, as published

    def __init__(self, *, state_size: Positive = 128, **common: Unpack[ConvolutionArguments]) -> None:
        if state_size < 4:
            raise UserError(f"state_size must be at least 4, got {state_size}")
        super().__init__(
            key_width=state_size,
            value_expansion=2.0,
            gate=True,
            gain=None,
            out_gain=None,
            shares_keys=True,
            norm_has_weight=False,
            **common,
        )
        self.query_norm = nn.Parameter(torch.ones(state_size))
        self.key_norm = nn.Parameter(torch.ones(state_size))
        self.query_bias = nn.Parameter(torch.ones(self.num_heads, 1, state_size))
        self.key_bias = nn.Parameter(torch.ones(self.num_heads, 1, state_size))
        self.skip = nn.Parameter(torch.ones(self.num_heads, 1, 1))
        self.step_proj = step_map(self.embed_dim, self.num_heads)
        self.rate_proj = projection(self.embed_dim, self.num_heads, None)
        self.share_proj = projection(self.embed_dim, self.num_heads, None)
        self.angle_proj = projection(self.embed_dim, state_size // 4, None)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("skip", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        maps = {"step": self.step_proj, "rate": self.rate_proj, "share": self.share_proj, "angle": self.angle_proj}
        return dict(zip(maps, jointly(key, list(maps.values())), strict=True))

    def dynamics(self, extras: Extras) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Compute -dt A, (1 - l) dt, l dt and dt [B, H, N], and pi tanh of the angles' logits [B, N, R]."""
        step, rate, share = (upcast(extras[name]).transpose(1, 2).contiguous() for name in ("step", "rate", "share"))
        step, share = F.softplus(step), share.sigmoid()
        turn = math.pi * upcast(extras["angle"]).tanh()
        return -step * F.softplus(rate).clamp(min=SLOWEST), step * (1 - share), step * share, step, turn

    def open_gates(self) -> None:
        """Slow the decay by a factor of 1e-4, so that `cab verify` can observe far tokens."""
        dynamics = self.dynamics

        def opened(extras: Extras) -> tuple[Tensor, ...]:
            log_decay, *others = dynamics(extras)
            return log_decay * 1e-4, *others

        self.dynamics = opened  # type: ignore[method-assign, assignment]

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        """Multiply by silu of the gate."""
        return output * F.silu(self.split_heads(extras["gate"]))

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the initial state: ``memory`` without the last token, and angles, B, x and l dt of that token."""
        heads = self.num_heads
        shapes = {
            "angle": (self.angle_proj.out_features,),
            "key": (self.key_width,),
            "value": (self.value_width,),
            "written": (1,),
        }
        last = {name: upcast(like.new_zeros(batch_size, heads, *shape)) for name, shape in shapes.items()}
        return {**super().init_decode_state(batch_size, like), **last}

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, extras: Extras) -> Decoded:
        """Compute the sum over earlier tokens as a recurrence, and add the current one.

        What a token adds is known at the next one, and is added there. In 16 bits, which a backend multiplies, keys and
        values stay in place instead: the memory after a token is read with the next query.
        """
        inputs, extras = self.widened(heads, state, extras)
        (query, key, value), past = Attention.convolve(self, inputs, padding, state)
        log_decay, before, now, step, turn = self.dynamics(extras)
        scale, factors = torch.cat([state["written"], now[:, :, :-1]], dim=2) + before, tuple[Tensor, ...]()
        reads_ahead, mask = value.dtype.itemsize == 2, None if padding is None else padding[:, None]
        if mask is not None:
            step = step.masked_fill(mask, 0.0)
        if reads_ahead:
            if mask is not None:
                log_decay, scale = log_decay.masked_fill(mask, 0.0), scale.masked_fill(mask, 1.0)
            added = F.pad(scale[:, :, 1:], (0, 1), value=1.0)
            factors = log_decay.exp(), added if mask is None else added.masked_fill(mask, 0.0)
        weights = self.query_norm, self.key_norm, self.query_bias, self.key_bias
        query, key, product, angle = turned(
            query, key, *weights, turn, step, state["angle"], *factors, eps=self.norm_eps
        )
        form, memory, first = self.operation.rounding_to(heads[0].dtype), state["memory"], None
        own = (now * product).unsqueeze(-1) + self.skip.to(now.dtype)
        if reads_ahead:
            last = scale[:, :, :1] if mask is None else scale[:, :, :1].masked_fill(mask[:, :, :1], 0.0)
            memory = torch.addcmul(memory, (last * state["key"]).unsqueeze(-1), state["value"].unsqueeze(-2))
            first = (upcast(query[:, :, -1:]) @ memory).to(value.dtype)
            output, memory = self.update(RecurrenceInputs(query, key, value, log_decay), memory, form)
            now = now - 1.0  # of what the last token adds, the memory has one time the product
        else:
            key_before, value_before = (
                shifted(state[name].unsqueeze(2), x) for name, x in (("key", key), ("value", value))
            )
            value_before = (scale * log_decay.exp()).unsqueeze(-1).to(value.dtype) * value_before
            terms = RecurrenceInputs(query, key_before, value_before, log_decay)
            output, memory = self.update(self.mask_padding(terms, padding), memory, form)
        output = gated_skip(output, own, value, extras["gate"], None, first)
        tokens = {"key": key, "value": value, "written": now.unsqueeze(-1)}
        kept = {name: last_inputs(x, state[name].unsqueeze(2), padding).squeeze(2) for name, x in tokens.items()}
        length = tokens_read(state, query, padding)
        return output, {"memory": memory, "length": length, "angle": angle, **kept, **past}

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **extras: Tensor) -> Tensor:
        """Compute the recurrence of one row token by token, [H or 1, n, ...] to [H, n, V]."""
        extras = {name: x[None] for name, x in extras.items()}
        log_decay, before, now, step, turn = self.dynamics(extras)
        angle = (turn.unsqueeze(1) * step.unsqueeze(-1)).cumsum(dim=2)
        weights = self.query_norm, self.key_norm
        query, key = (rms_norm(x[None], w, eps=self.norm_eps) for x, w in zip((query, key), weights, strict=True))
        query, key = rotated(query, key, self.query_bias, self.key_bias, angle)
        written = torch.einsum("bhnk,bhnv->nbhkv", key, value[None])
        memory, previous, outputs = torch.zeros_like(written[0]), torch.zeros_like(written[0]), []
        for t, current in enumerate(written):
            decay, weight, share = (x[:, :, t, None, None] for x in (log_decay.exp(), before, now))
            memory = decay * (memory + weight * previous) + share * current
            outputs.append(torch.einsum("bhk,bhkv->bhv", query[:, :, t], memory))
            previous = current
        return self.finish(torch.stack(outputs, dim=2) + self.skip * value, value[None], extras)[0]


def shifted(first: Tensor, x: Tensor) -> Tensor:
    """Return ``first`` [B, H, 1, E] and all tokens of x [B, H, N, E] but the last, one token after the other."""
    return torch.cat([first.to(x.dtype).transpose(1, 2), x[:, :, :-1].transpose(1, 2)], dim=1).transpose(1, 2)
