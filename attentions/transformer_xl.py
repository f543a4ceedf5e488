"""Transformer-XL (Dai et al. 2019): segments that read a memory of what came before, and relative positions.

Shapes: B batch, H heads, N tokens, D width, E width of a head, L segment, M memory, W distances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from attentions.bases.sparse import SparseAttention
from attentions.kernels.numerics import accumulation_dtype
from attentions.kernels.relative import all_pairs_attention, segment_attention
from cab import Attention, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.registry.options import Positive


class RelativeAttention(Attention):
    """Compute softmax over j of ((q_i + u) k_j + (q_i + v) W_R r_{i-j}) / sqrt(E) (Dai et al., section 3.3).

    r_d is the sinusoid of a distance, first sines, then cosines; u and v are a head's own. Projections have no
    biases; weights are drawn from N(0, 0.02).
    """

    requires_right_padding = True

    def make_projections(self) -> None:
        """Create the projections, and W_R of the relative positions."""
        for name in ("q_proj", "k_proj", "v_proj", "out_proj", "position_proj"):
            linear = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
            nn.init.normal_(linear.weight, std=0.02)
            self.add_module(name, linear)
        self.position_proj: nn.Linear
        self.content_bias = nn.Parameter(torch.randn(self.num_heads, self.head_dim) * 0.02)
        self.position_bias = nn.Parameter(torch.randn(self.num_heads, self.head_dim) * 0.02)

    def remove_positions(self) -> None:
        """Remove u, v and W_R, so that the logits are q_i k_j."""
        del self.position_proj, self.content_bias, self.position_bias

    @property
    def has_positions(self) -> bool:
        return hasattr(self, "position_proj")

    def embed(self, distance: Tensor) -> Tensor:
        """Return W_R r_d of distances [W], [H, W, E]; zero without positions."""
        weight = self.q_proj.weight
        if not self.has_positions:
            return weight.new_zeros(self.num_heads, len(distance), self.head_dim)
        feature = torch.arange(0, self.embed_dim, 2, device=weight.device, dtype=accumulation_dtype(weight.dtype))
        angle = distance.unsqueeze(1) * 10000.0 ** (-feature / self.embed_dim)
        sinusoid = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, : self.embed_dim].to(weight.dtype)
        return self.split_heads(self.position_proj(sinusoid)[None])[0]

    def with_content(self, query: Tensor) -> Tensor:
        """Return q + u."""
        return query + self.content_bias.unsqueeze(-2).to(query.dtype) if self.has_positions else query

    def position_biases(self, embedded: Tensor) -> Tensor:
        """Return (v - u) W_R r_d / sqrt(E), [H, W], which the distance adds to (q + u) W_R r_d."""
        if not self.has_positions:
            return embedded[..., 0]
        return torch.einsum("hwe,he->hw", embedded, self.position_bias - self.content_bias) * self.scale

    def pair_logits(self, query: Tensor, key: Tensor, distance: Tensor, farthest: int | None = None) -> Tensor:
        """Compute logits of [..., T, E] and [..., S, E] at distances [..., T, S]."""
        if not self.has_positions:
            return query @ key.mT * self.scale
        least, most = (int(distance.min()), int(distance.max())) if farthest is None else (0, farthest)
        embedded = self.embed(torch.arange(least, most + 1, device=query.device))
        by_distance = (query + self.position_bias.unsqueeze(-2)) @ embedded.mT
        content = self.with_content(query) @ key.mT
        return (content + by_distance.gather(-1, (distance - least).expand(content.shape))) * self.scale


@register_attention("transformer_xl", patterns="NS CS", complexity="n^2", paper="Dai et al. 2019")
class TransformerXLAttention(RelativeAttention, SparseAttention):
    """Compute softmax attention over the segment up to the token, and ``memory`` tokens before it (section 3.2).

    Logits have relative positions: :class:`RelativeAttention`. No gradient reaches the inputs of the memory, as in a
    network that has stored them; it does reach the projections. What is computed is what the loop over segments
    computes. In CS time is N (L + M), and decoding keeps at most L + M - 1 keys and values: a state of constant
    size. In NS there are no segments: all pairs, with positive and negative distances, in quadratic time.

    Args:
        segment: L.
        memory: M.
        position: ``relative``; ``none`` leaves u, v and W_R out.
    """

    claims = Claims(softmax_limit=softmax_if(segment=NUM_TOKENS, position="none"))
    has_constant_size_state = True

    def __init__(
        self,
        *,
        segment: Positive = 150,
        memory: int = 150,
        position: Literal["relative", "none"] = "relative",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if position == "none":
            self.remove_positions()
        self.segment, self.memory = segment, memory
        self.max_kept = segment + memory
        self.claims = replace(self.claims, has_exact_gradient=self.pattern is Pattern.NS)

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Return keys and values of the memory: equal numbers, without a gradient to the inputs."""
        if self.pattern is Pattern.NS:
            return {}
        return {"past_key": self.k_proj(x.detach()), "past_value": self.v_proj(x.detach())}

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        if self.pattern is Pattern.NS:
            return (query - key) == (query - key)
        return (key <= query) & (key >= query // self.segment * self.segment - self.memory)

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return key >= length // self.segment * self.segment - self.memory

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **past: Tensor) -> Tensor:
        if self.pattern is Pattern.NS:
            return super().attend(query, key, value, padding)
        past_key, past_value = (self.split_heads(past[name]) for name in ("past_key", "past_value"))
        length, segment, memory = query.shape[2], self.segment, min(self.memory, query.shape[2])
        begin = torch.arange(0, length, segment, device=query.device)[:, None]
        memory_table = begin + torch.arange(-memory, 0, device=query.device)
        segment_table = begin + torch.arange(min(segment, length), device=query.device)
        segment_table = torch.where(segment_table < length, segment_table + length, -1)  # behind the memory
        table = torch.cat([memory_table.clamp(min=-1), segment_table], dim=1)
        embedded = self.embed(torch.arange(table.shape[1] - 1, -1, -1, device=query.device))
        source = torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)
        query, size, biases = self.with_content(query), min(segment, length), self.position_biases(embedded)
        return segment_attention(query, source, table, size, embedded, biases, dropout=self.weight_dropout)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        reach = query.shape[2] - 1
        embedded = self.embed(torch.arange(reach, -reach - 1, -1, device=query.device))
        biases = self.position_biases(embedded)
        query = self.with_content(query)
        dropout = self.weight_dropout
        return all_pairs_attention(query, key, value, embedded, biases, hidden=hidden, dropout=dropout)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **past: Tensor) -> Tensor:
        position = torch.arange(query.shape[1], device=query.device)
        distance = position[:, None] - position
        seen = self.is_visible(position[:, None], position, 0)
        if not past:
            return self.pair_logits(query, key, distance).softmax(dim=-1) @ value
        past_key, past_value = (self.split_heads(past[name][None])[0] for name in ("past_key", "past_value"))
        in_memory = position < position[:, None] // self.segment * self.segment
        logits = torch.where(
            in_memory, self.pair_logits(query, past_key, distance), self.pair_logits(query, key, distance)
        )
        weights = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        return weights.where(in_memory, 0.0) @ past_value + weights.where(~in_memory, 0.0) @ value
