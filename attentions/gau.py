"""FLASH (Hua et al. 2022): gated attention units, with all pairs or within groups and linear between them.

Shapes: B batch, N tokens, D width, e = 2 D width of values and gate, s of queries and keys, C tokens of a group.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.common.precision import upcast
from attentions.kernels.common.rotary import rotate
from attentions.kernels.common.token_cache import no_tokens, with_tokens
from attentions.kernels.gathers.key_blocks import in_order
from attentions.kernels.gathers.target_blocks import sums_by_targets
from cab import Attention, Pattern, register_attention
from cab.attention import PaddingMasks
from cab.attention_types import CommonArguments, DecodeState
from cab.errors import UserError
from cab.padding import lengths

BUCKETS, FARTHEST = 32, 128
"""Number of distinct relative positions, and the distance from which they are merged."""

ROTARY = 32
"""Coordinates of a query or key that turn with the position, at most."""


class GatedAttentionUnit(Attention):
    """out_proj(u * A v), u = silu(W_u x), v = silu(W_v x), with weights A of one head  (their Eq. 3 and 4).

    Queries and keys are affine maps, coordinate by coordinate, of one z = silu(W_z x).

    It was published in the place of an attention *and* its feed-forward layer, twice as many of it. A slot of a
    backbone holds the attention alone, so here the backbone's feed-forward layer stays, and its residual and norm are
    the unit's: a layer has 2 D^2 + s D parameters more than with softmax attention. ``num_heads`` changes nothing.
    """

    requires_right_padding = True
    parameter_budget = 0.13
    num_maps = 2

    def __init__(self, *, query_key_dim: int, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        if query_key_dim < 1:
            raise UserError(f"query_key_dim must be at least 1, got {query_key_dim}")
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
        """Those of the unit are made with its widths."""

    def maps(self, x: Tensor) -> list[Tensor]:
        """Compute queries and keys [B, N, s]."""
        z = upcast(F.silu(self.z_proj(x)))
        return list((z.unsqueeze(-2) * self.gamma + self.beta).unbind(dim=-2))

    def values(self, x: Tensor) -> Tensor:
        """[B, N, e]."""
        return upcast(F.silu(self.v_proj(x)))

    def finish(self, x: Tensor, sums: Tensor) -> Tensor:
        """From weighted sums [B, N, e] to the output."""
        return self.out_proj(F.silu(self.gate_proj(x)) * sums.to(x.dtype))

    def weigh(self, query: Tensor, key: Tensor, distance: Tensor, scale: Tensor | float) -> Tensor:
        """relu(q k^T / scale + b)^2, b of ``distance``, how far a target stands after a key; causal in CS."""
        bias = self.position_bias[self.bucket(distance)] * math.sqrt(self.query_key_dim)
        weights = (query @ key.mT / scale + bias).relu().square()
        return weights.masked_fill(distance < 0, 0.0) if self.pattern is Pattern.CS else weights

    def bucket(self, distance: Tensor) -> Tensor:
        """T5's: one each for the near half, by logarithm up to FARTHEST for the rest; in NS a half for each side."""
        count, first = BUCKETS, torch.zeros_like(distance)
        if self.pattern is not Pattern.CS:
            count //= 2
            first = (distance < 0) * count
            distance = distance.abs()
        distance = distance.clamp(min=0)
        near = count // 2
        far = (distance.clamp(min=1) / near).log() / math.log(FARTHEST / near) * (count - near)
        return first + torch.where(distance < near, distance, (near + far).long().clamp(max=count - 1))


@register_attention("flash_quad", patterns="NS CS", complexity="n^2", paper="Hua et al. 2022")
class QuadraticUnit(GatedAttentionUnit):
    """A gated attention unit with A = relu(q k^T / n + b)^2 of all pairs  (FLASH-Quad, their Eq. 4).

    n is the length of the row in NS. In CS no output may depend on it: there n is ``scale_length``. Decoding keeps
    key and value of every token.

    Args:
        query_key_dim: s.
        scale_length: n in CS.

    Raises:
        ValueError: for options below 1.
    """

    def __init__(self, *, query_key_dim: int = 128, scale_length: int = 512, **common: Unpack[CommonArguments]) -> None:
        super().__init__(query_key_dim=query_key_dim, **common)
        if scale_length < 1:
            raise UserError(f"scale_length must be at least 1, got {scale_length}")
        self.scale_length = scale_length

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        is_causal = self.pattern is Pattern.CS
        q, k = (x.unsqueeze(1) for x in self.maps(query))
        v = self.values(query).unsqueeze(1)
        scale: Tensor | float = self.scale_length
        if not is_causal:
            scale = lengths(query, padding.key).clamp(min=1)[:, None, None, None]
        hidden = None if padding.key is None or is_causal else padding.key[:, None, None]
        place = torch.arange(query.shape[1], device=query.device)

        def weights_of(targets: slice, num_keys: int) -> Tensor:
            distance = place[targets, None] - place[:num_keys]
            weights = self.weigh(q[:, :, targets], k[:, :, :num_keys], distance, scale)
            return weights if hidden is None else weights.masked_fill(hidden, 0.0)

        with torch.autocast(query.device.type, enabled=False):
            sums = sums_by_targets(weights_of, q, v, is_causal=is_causal, dropout=self.weight_dropout)
        return self.finish(query, sums[:, 0])

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: object) -> Tensor:
        q, k = self.maps(query)
        place = torch.arange(len(query), device=query.device)
        scale = self.scale_length if self.pattern is Pattern.CS else len(query)
        return self.finish(query, self.weigh(q, k, place[:, None] - place, scale) @ self.values(query))

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """No tokens yet, and how many there are."""
        state = no_tokens(batch_size, upcast(like), key=(1, self.query_key_dim), value=(1, 2 * self.embed_dim))
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> tuple[Tensor, DecodeState]:
        q, k = (x.unsqueeze(1) for x in self.maps(tokens))
        place = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        new = in_order(with_tokens(state, mask, key=k, value=self.values(tokens).unsqueeze(1)), "key", "value")
        new["length"] = state["length"] + lengths(tokens, mask)
        with torch.autocast(tokens.device.type, enabled=False):
            distance = place.unsqueeze(2) - torch.arange(new["key"].shape[2], device=tokens.device)
            weights = self.weigh(q, new["key"], distance.unsqueeze(1), self.scale_length)
            sums = F.dropout(weights, self.weight_dropout) @ new["value"]
        return self.finish(tokens, sums[:, 0]), new


@register_attention("flash_gau", patterns="NS CS", complexity="n", paper="Hua et al. 2022")
class GroupedUnit(GatedAttentionUnit):
    """Gated attention unit, quadratic within groups of C tokens and linear between groups (FLASH, Eq. 6 to 9).

    The output is A v with A = relu(q k^T / C + b)^2 within the group, plus q' sum_j k'_j v_j. In NS the sum is over all
    n tokens and divided by n; in CS it is over earlier groups and divided by C.

    Groups begin with the first token. The first coordinates of q, k, q', k' turn with the position. The state of CS is
    the sum over earlier groups, and keys and values of the open one: of constant size.

    Args:
        group_size: C.
        query_key_dim: s.

    Raises:
        ValueError: for options below 1.
    """

    has_constant_size_state = True
    num_maps = 4

    def __init__(self, *, group_size: int = 256, query_key_dim: int = 128, **common: Unpack[CommonArguments]) -> None:
        super().__init__(query_key_dim=query_key_dim, **common)
        if group_size < 1:
            raise UserError(f"group_size must be at least 1, got {group_size}")
        self.group_size = group_size

    def rotated_maps(self, x: Tensor, place: Tensor) -> list[Tensor]:
        """q, k, q', k' [B, N, s] of tokens at ``place`` [B or 1, N]."""
        width = min(ROTARY, self.query_key_dim // 2 * 2)
        maps = torch.stack(self.maps(x), dim=1)
        rotated = rotate(maps[..., :width], place)
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
        place = torch.arange(size, device=query.device)

        def weights_of(targets: slice, num_keys: int) -> Tensor:
            distance = place[targets, None] - place[:num_keys]
            return self.weigh(q[:, :, targets], k[:, :, :num_keys], distance, self.group_size)

        is_causal = self.pattern is Pattern.CS
        with torch.autocast(query.device.type, enabled=False):
            near = sums_by_targets(weights_of, q, v, is_causal=is_causal, dropout=self.weight_dropout)
            written = far_k.mT @ v  # of each group, [B, J, s, e]
            if is_causal:
                before = F.pad(written.cumsum(dim=1)[:, :-1], (0, 0, 0, 0, 1, 0)) / self.group_size
            else:
                count = lengths(query, padding.key).clamp(min=1)[:, None, None, None]
                before = written.sum(dim=1, keepdim=True) / count
            sums = (near + far_q @ before).flatten(1, 2)[:, :length]
        return self.finish(query, sums)

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: object) -> Tensor:
        place, size = torch.arange(len(query), device=query.device), self.group_size
        q, k, far_q, far_k = (x[0] for x in self.rotated_maps(query.unsqueeze(0), place.unsqueeze(0)))
        group = place // size
        weights = self.weigh(q, k, place[:, None] - place, size).masked_fill(group[:, None] != group, 0.0)
        if self.pattern is Pattern.CS:
            far = (far_q @ far_k.mT / size).masked_fill(group[:, None] <= group, 0.0)
        else:
            far = far_q @ far_k.mT / len(query)
        return self.finish(query, (weights + far) @ self.values(query))

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the sum over earlier groups, and k, k' and v of the open group, all empty."""
        like, s, e = upcast(like), self.query_key_dim, 2 * self.embed_dim
        state = {"sums": like.new_zeros(batch_size, s, e), "value": like.new_zeros(batch_size, self.group_size, e)}
        state |= {name: like.new_zeros(batch_size, self.group_size, s) for name in ("key", "far_key")}
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Token by token: rows may stand at different places of their groups."""
        place = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        maps, v = self.rotated_maps(tokens, place), self.values(tokens)
        outputs = []
        with torch.autocast(tokens.device.type, enabled=False):
            for t in range(tokens.shape[1]):
                real = None if mask is None else ~mask[:, t]
                output, state = self.read_token([x[:, t : t + 1] for x in (*maps, v)], state, real)
                outputs.append(output)
        return self.finish(tokens, torch.cat(outputs, dim=1)), state

    def read_token(self, token: list[Tensor], state: DecodeState, real: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Weighted sums [B, 1, e] of q, k, q', k', v of one token a row, some not ``real`` [B]; the new state."""
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
