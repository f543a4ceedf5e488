"""FLASH (Hua et al. 2022): gated attention units with all pairs, or quadratic within groups and linear between them.

Shapes: B batch, N tokens, D width, e = 2 D width of values and gate, s of queries and keys, C tokens of a group.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import sums_by_targets
from attentions.kernels.layers import rotate
from attentions.kernels.numerics import as_factor, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, padding_last
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive

BUCKETS, FARTHEST = 32, 128
"""Number of distinct relative positions, and the distance from which they are merged."""

ROTARY = 32
"""Coordinates of a query or key that turn with the position, at most."""


class GatedAttentionUnit(Attention):
    """Compute out_proj(u * A v) with u = silu(x W_u), v = silu(x W_v) and weights A of a single head.

    Eq. 3 and 4 of the paper. Queries and keys are elementwise affine maps of a common z = silu(x W_z).

    The paper replaces an attention *and* its feed-forward layer by two units. Here the unit replaces the attention
    only: the backbone keeps its feed-forward layer, residual connection and norm, so a layer has 2 D^2 + s D more
    parameters than with softmax attention. ``num_heads`` has no effect.
    """

    requires_right_padding = True
    claims = Claims(parameter_budget=0.13)
    num_maps = 2

    def __init__(self, *, query_key_dim: int, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.query_key_dim = query_key_dim
        self.gate_proj, self.v_proj = (nn.Linear(self.embed_dim, 2 * self.embed_dim) for _ in range(2))
        self.z_proj = nn.Linear(self.embed_dim, query_key_dim)
        self.out_proj = nn.Linear(2 * self.embed_dim, self.embed_dim)
        for linear in (self.gate_proj, self.v_proj, self.z_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.gamma = nn.Parameter(0.02 * torch.randn(self.num_maps, query_key_dim))
        self.beta = nn.Parameter(torch.zeros(self.num_maps, query_key_dim))
        self.position_bias = nn.Parameter(0.02 * torch.randn(BUCKETS).abs())  # no pair begins without weight

    def make_projections(self) -> None:
        """Create no projections: the unit creates its own, with its widths."""

    def maps(self, x: Tensor) -> list[Tensor]:
        """Compute queries and keys [B, N, s]."""
        z = upcast(F.silu(self.z_proj(x)))
        return list((z.unsqueeze(-2) * self.gamma + self.beta).unbind(dim=-2))

    def values(self, x: Tensor) -> Tensor:
        return upcast(F.silu(self.v_proj(x)))

    def finish(self, x: Tensor, sums: Tensor) -> Tensor:
        return self.out_proj(F.silu(self.gate_proj(x)) * sums.to(x.dtype))

    def weigh(self, query: Tensor, key: Tensor, distance: Tensor, scale: Tensor | float) -> Tensor:
        """Return relu(q k^T / scale + b)^2, with b by the ``distance`` of a target from a key; causal in CS."""
        bias = self.position_bias[self.bucket(distance)] * math.sqrt(self.query_key_dim)
        weights = (query @ key.mT / scale + bias).relu().square()
        return weights.masked_fill(distance < 0, 0.0) if self.pattern is Pattern.CS else weights

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the T5 bucket of a distance.

        The near half of the buckets holds one distance each; the others are logarithmic up to FARTHEST. In NS each
        direction has half of the buckets.
        """
        count, offset = BUCKETS, torch.zeros_like(distance)
        if self.pattern is not Pattern.CS:
            count //= 2
            offset = (distance < 0) * count
            distance = distance.abs()
        distance = distance.clamp(min=0)
        near = count // 2
        far = (distance.clamp(min=1) / near).log() / math.log(FARTHEST / near) * (count - near)
        return offset + torch.where(distance < near, distance, (near + far).long().clamp(max=count - 1))


@register_attention("flash_quad", patterns="NS CS", complexity="n^2", paper="Hua et al. 2022")
class QuadraticUnit(GatedAttentionUnit):
    """Compute a gated attention unit with A = relu(q k^T / n + b)^2 over all pairs (FLASH-Quad, Eq. 4).

    In NS, n is the length of the sequence. In CS an output must not depend on it, so n is ``scale_length``. Decoding
    stores the key and value of every token.

    Args:
        query_key_dim: width s of queries and keys.
        scale_length: n in CS, in tokens.
    """

    def __init__(
        self, *, query_key_dim: Positive = 128, scale_length: Positive = 512, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(query_key_dim=query_key_dim, **common)
        self.scale_length = scale_length

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        is_causal = self.pattern is Pattern.CS
        q, k = (x.unsqueeze(1) for x in self.maps(query))
        v = as_factor(F.silu(self.v_proj(query))).unsqueeze(1)
        scale: Tensor | float = self.scale_length
        if not is_causal:
            scale = lengths(query, padding.key).clamp(min=1)[:, None, None, None]
        hidden = None if padding.key is None or is_causal else padding.key[:, None, None]
        position = torch.arange(query.shape[1], device=query.device)

        def weights_of(targets: slice, num_keys: int) -> Tensor:
            distance = position[targets, None] - position[:num_keys]
            weights = self.weigh(q[:, :, targets], k[:, :, :num_keys], distance, scale)
            return weights if hidden is None else weights.masked_fill(hidden, 0.0)

        with torch.autocast(query.device.type, enabled=False):
            sums = sums_by_targets(weights_of, q, v, is_causal=is_causal, dropout=self.weight_dropout)
        return self.finish(query, sums[:, 0])

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: object) -> Tensor:
        q, k = self.maps(query)
        position = torch.arange(len(query), device=query.device)
        scale = self.scale_length if self.pattern is Pattern.CS else len(query)
        return self.finish(query, self.weigh(q, k, position[:, None] - position, scale) @ self.values(query))

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state: tokens and their number."""
        state = empty_cache(batch_size, upcast(like), key=(1, self.query_key_dim), value=(1, 2 * self.embed_dim))
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        q, k = (x.unsqueeze(1) for x in self.maps(tokens))
        position = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        new = padding_last(append_tokens(state, mask, key=k, value=self.values(tokens).unsqueeze(1)), "key", "value")
        new["length"] = state["length"] + lengths(tokens, mask)
        with torch.autocast(tokens.device.type, enabled=False):
            distance = position.unsqueeze(2) - torch.arange(new["key"].shape[2], device=tokens.device)
            weights = self.weigh(q, new["key"], distance.unsqueeze(1), self.scale_length)
            sums = F.dropout(weights, self.weight_dropout) @ new["value"]
        return self.finish(tokens, sums[:, 0]), new


@register_attention("flash_gau", patterns="NS CS", complexity="n", paper="Hua et al. 2022")
class GroupedUnit(GatedAttentionUnit):
    """Compute a unit that is quadratic within groups of C tokens and linear between groups (FLASH, Eq. 6 to 9).

    The output is A v with A = relu(q k^T / C + b)^2 within the group, plus q' sum_j k'_j v_j. In NS the sum is over all
    n tokens and divided by n; in CS it is over earlier groups and divided by C.

    Groups begin with the first token. Rotary embeddings are applied to the first coordinates of q, k, q' and k'. The
    decode state has constant size: the sum over earlier groups, and keys and values of the open group.

    Args:
        group_size: tokens C per group.
        query_key_dim: width s of queries and keys.
    """

    has_constant_size_state = True
    num_maps = 4

    def __init__(
        self, *, group_size: Positive = 256, query_key_dim: Positive = 128, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(query_key_dim=query_key_dim, **common)
        self.group_size = group_size

    def rotated_maps(self, x: Tensor, position: Tensor) -> list[Tensor]:
        """Return q, k, q' and k' [B, N, s] of tokens at positions ``place`` [B or 1, N]."""
        width = min(ROTARY, self.query_key_dim // 2 * 2)
        maps = torch.stack(self.maps(x), dim=1)
        rotated = rotate(maps[..., :width], position)
        return list(torch.cat([rotated, maps[..., width:]], dim=-1).unbind(dim=1))

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        length, size = query.shape[1], min(self.group_size, query.shape[1])
        maps = self.rotated_maps(query, torch.arange(length, device=query.device).unsqueeze(0))
        v = self.values(query)
        if padding.key is not None:  # a token without value and key counts nowhere
            hidden = padding.key.unsqueeze(-1)
            v, maps[3] = v.masked_fill(hidden, 0.0), maps[3].masked_fill(hidden, 0.0)
        missing = -length % size
        q, k, far_q, far_k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(1, (-1, size)) for x in (*maps, v))
        position = torch.arange(size, device=query.device)

        def weights_of(targets: slice, num_keys: int) -> Tensor:
            distance = position[targets, None] - position[:num_keys]
            return self.weigh(q[:, :, targets], k[:, :, :num_keys], distance, self.group_size)

        is_causal = self.pattern is Pattern.CS
        with torch.autocast(query.device.type, enabled=False):
            near = sums_by_targets(weights_of, q, v, is_causal=is_causal, dropout=self.weight_dropout)
            written = far_k.mT @ v  # of each group, [B, J, s, e]
            if is_causal:
                memory = F.pad(written.cumsum(dim=1)[:, :-1], (0, 0, 0, 0, 1, 0)) / self.group_size
            else:
                count = lengths(query, padding.key).clamp(min=1)[:, None, None, None]
                memory = written.sum(dim=1, keepdim=True) / count
            sums = (near + far_q @ memory).flatten(1, 2)[:, :length]
        return self.finish(query, sums)

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: object) -> Tensor:
        position, size = torch.arange(len(query), device=query.device), self.group_size
        q, k, far_q, far_k = (x[0] for x in self.rotated_maps(query.unsqueeze(0), position.unsqueeze(0)))
        group = position // size
        weights = self.weigh(q, k, position[:, None] - position, size).masked_fill(group[:, None] != group, 0.0)
        if self.pattern is Pattern.CS:
            far = (far_q @ far_k.mT / size).masked_fill(group[:, None] <= group, 0.0)
        else:
            far = far_q @ far_k.mT / len(query)
        return self.finish(query, (weights + far) @ self.values(query))

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the sum over earlier groups, and k, k' and v of the open group, all empty."""
        like, s, e = upcast(like), self.query_key_dim, 2 * self.embed_dim
        state = {"sums": like.new_zeros(batch_size, s, e), "value": like.new_zeros(batch_size, self.group_size, e)}
        state |= {name: like.new_zeros(batch_size, self.group_size, s) for name in ("key", "far_key")}
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        """Read token by token, since sequences can be at different positions of their groups."""
        position = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        maps, v = self.rotated_maps(tokens, position), self.values(tokens)
        outputs = []
        with torch.autocast(tokens.device.type, enabled=False):
            for t in range(tokens.shape[1]):
                real = None if mask is None else ~mask[:, t]
                output, state = self.read_token([x[:, t : t + 1] for x in (*maps, v)], state, real)
                outputs.append(output)
        return self.finish(tokens, torch.cat(outputs, dim=1)), state

    def read_token(self, token: list[Tensor], state: DecodeState, real: Tensor | None) -> Decoded:
        """Return weighted sums [B, 1, e] of one token per sequence (some not ``real``, [B]), and the new state."""
        q, k, far_q, far_k, v = token
        slot = state["length"] % self.group_size
        slots = torch.arange(self.group_size, device=q.device)
        here = slots == slot.unsqueeze(1)
        if real is not None:
            here = here & real.unsqueeze(1)
        here = here.unsqueeze(-1)
        key, far_key, value = (
            torch.where(here, x, state[name]) for name, x in (("key", k), ("far_key", far_k), ("value", v))
        )
        weights = self.weigh(q, key, (slot.unsqueeze(1) - slots).unsqueeze(1), self.group_size)
        output = F.dropout(weights, self.weight_dropout) @ value + far_q @ state["sums"] / self.group_size
        is_full = slot == self.group_size - 1
        if real is not None:
            is_full = is_full & real
        sums = torch.where(is_full[:, None, None], state["sums"] + far_key.mT @ value, state["sums"])
        length = state["length"] + (1 if real is None else real.long())
        return output, {"sums": sums, "value": value, "key": key, "far_key": far_key, "length": length}
