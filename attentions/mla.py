"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values are linear maps of one short vector per token.

Shapes: B batch, H heads, N targets, M keys, D width, E width per head, r width of the latent, p width of the
rotary parts.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.layers import rotate
from attentions.kernels.numerics import masked_softmax, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, masked_tokens
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Even, Positive


@register_attention("mla", patterns="NS CS NC CC", complexity="n^2", paper="DeepSeek-AI 2024")
class LatentKeyValueAttention(Attention):
    """Compute softmax((q k^T + q' k'^T) / sqrt(E + p)) v with k, v = W_k c, W_v c and a latent c = RMSNorm(W_c x).

    DeepSeek-V2, Eq. 9 to 19. q' (per head) and k' (shared by all heads) are maps of x to width p, rotated by the
    position; cross patterns count the positions of targets and source separately. Queries are not compressed, as in
    DeepSeek-V2-Lite. No map has a bias.

    The decoding state is c and k' of every token, r + p numbers. Decoding does not compute keys or values: W_k is
    applied to the queries and W_v to the weighted mean of c.

    Args:
        kv_rank: r. The default is four head widths but at most a quarter of ``embed_dim``. This is the r of all
            released models: 512 with heads of 128, for 128 heads (DeepSeek-V2 and V3) and 16 (DeepSeek-V2-Lite).
        rotary_dim: p, even; half a head's width by default, as in the released models.
    """

    requires_right_padding = True
    claims = Claims(absorbed=("k_proj", "v_proj"))

    def __init__(
        self, *, kv_rank: Positive | None = None, rotary_dim: Even | None = None, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        rank = max(1, min(4 * self.head_dim, self.embed_dim // 4)) if kv_rank is None else kv_rank
        rotary = max(self.head_dim // 4 * 2, 2) if rotary_dim is None else rotary_dim
        self.down = nn.Linear(self.embed_dim, rank, bias=False)
        self.norm = nn.RMSNorm(rank, eps=1e-6)
        self.k_proj, self.v_proj = (nn.Linear(rank, self.embed_dim, bias=False) for _ in range(2))
        self.q_rotary = nn.Linear(self.embed_dim, self.num_heads * rotary, bias=False)
        self.k_rotary = nn.Linear(self.embed_dim, rotary, bias=False)
        for linear in (self.down, self.k_proj, self.v_proj, self.q_rotary, self.k_rotary):
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
        for linear in (self.q_proj, self.out_proj):
            linear.register_parameter("bias", None)
        self.logit_factor = (self.head_dim + rotary) ** -0.5

    def latent(self, x: Tensor) -> Tensor:
        """Compute the latents c of tokens, [B, N, r]."""
        return self.norm(upcast(self.down(x))).to(self.norm.weight.dtype)

    def queries(self, x: Tensor, position: Tensor) -> Tensor:
        """Compute [q, q'] of targets at ``position`` [B or 1, N]: [B, H, N, E + p]."""
        rotary = self.q_rotary(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return torch.cat([self.split_heads(self.q_proj(x)), rotate(rotary, position)], dim=-1)

    def shared_key(self, x: Tensor, position: Tensor) -> Tensor:
        """Compute k' of tokens, [B, 1, N, p]."""
        return rotate(self.k_rotary(x).unsqueeze(1), position)

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        positions = [torch.arange(x.shape[1], device=x.device).unsqueeze(0) for x in (query, key)]
        q = self.queries(query, positions[0])
        latent = self.latent(key)
        rotary = self.shared_key(key, positions[1]).expand(-1, self.num_heads, -1, -1)
        k = torch.cat([self.split_heads(self.k_proj(latent)), rotary.to(latent.dtype)], dim=-1)
        v = self.split_heads(self.v_proj(latent if key is value else self.latent(value)))
        v = F.pad(v, (0, k.shape[-1] - v.shape[-1]))  # the fused kernels require equal widths
        visible, sees_none, is_causal = None, None, self.pattern is Pattern.CS
        if padding.key is not None and not is_causal:
            sees_none = padding.key.all(dim=1)[:, None, None, None]
            visible = ~padding.key[:, None, None] | sees_none
        heads = F.scaled_dot_product_attention(
            q, k.to(q.dtype), v.to(q.dtype), visible, self.weight_dropout, is_causal, scale=self.logit_factor
        )[..., : self.head_dim]
        if sees_none is not None:
            heads = heads.masked_fill(sees_none, 0.0)
        return self.out_proj(self.merge_heads(heads))

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, _draws: object) -> Tensor:
        """Compute the outputs of one row from the full matrix of scores, [n, D] to [n, D]."""
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        targets, sources = (torch.arange(x.shape[1], device=x.device).unsqueeze(0) for x in (query, key))
        rotary_query = self.q_rotary(query).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        logits = self.split_heads(self.q_proj(query)) @ self.split_heads(self.k_proj(self.latent(key))).mT
        logits = logits + rotate(rotary_query, targets) @ rotate(self.k_rotary(key).unsqueeze(1), sources).mT
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        heads = (logits * self.logit_factor).softmax(dim=-1) @ self.split_heads(self.v_proj(self.latent(value)))
        return self.out_proj(self.merge_heads(heads))[0]

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        state = empty_cache(
            batch_size, like, latent=(1, self.down.out_features), rotary=(1, self.k_rotary.out_features)
        )
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def encode_source_inputs(self, key: Tensor, value: Tensor, mask: Tensor | None) -> DecodeState:
        """Compute c and k' of the source, and a second c for values that are not the keys."""
        position = torch.arange(key.shape[1], device=key.device).unsqueeze(0)
        hidden = torch.zeros(key.shape[:2], dtype=torch.bool, device=key.device) if mask is None else mask
        state = {"latent": self.latent(key).unsqueeze(1), "rotary": self.shared_key(key, position), "hidden": hidden}
        state["length"] = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        return state if key is value else {**state, "value_latent": self.latent(value).unsqueeze(1)}

    encode_source = encode_source_inputs

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        position = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        query = self.queries(tokens, position)
        new = {**state, "length": state["length"] + lengths(tokens, mask)}
        if self.pattern is Pattern.CS:
            latent, rotary = self.latent(tokens).unsqueeze(1), self.shared_key(tokens, position)
            new = append_tokens(new, mask, latent=latent, rotary=rotary)
            masked = masked_tokens(new, tokens.shape[1])
        else:
            masked = state["hidden"][:, None, None]
        with torch.autocast(tokens.device.type, enabled=False):
            q, latent, rotary = upcast(query), upcast(new["latent"]), upcast(new["rotary"])
            k_up, v_up = (upcast(x.weight).unflatten(0, (self.num_heads, -1)) for x in (self.k_proj, self.v_proj))
            logits = q[..., : self.head_dim] @ k_up @ latent.mT + q[..., self.head_dim :] @ rotary.mT
            weights = masked_softmax(logits * self.logit_factor, masked)
            mean = F.dropout(weights, self.weight_dropout) @ upcast(new.get("value_latent", new["latent"]))
            heads = (mean @ v_up.mT).to(query.dtype)
        return self.out_proj(self.merge_heads(heads)), new
