"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values are linear maps of one short vector per token.

Shapes: B batch, H heads, N targets, M keys, D width, E width per head, r width of the latent, p width of the
rotary parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.indexer import LightningIndexer
from attentions.kernels.layers import rotate
from attentions.kernels.numerics import masked_softmax, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, masked_tokens, padding_last
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Even, NonNegativeFloat, Positive


@register_attention("mla", patterns="NS CS NC CC", complexity="n^2", paper="DeepSeek-AI 2024")
class LatentKeyValueAttention(Attention):
    """Compute softmax((q k^T + q' k'^T) / sqrt(E + p)) v with k, v = W_k c, W_v c and a latent c = RMSNorm(W_c x).

    DeepSeek-V2, Eq. 9 to 19. q' (per head) and k' (shared by all heads) are maps of x to width p, rotated by the
    position; cross patterns count the positions of targets and source separately. Queries are maps of x, as in
    DeepSeek-V2-Lite, or of a latent of width ``query_rank``. No map has a bias.

    With ``top_k``, each target attends to the tokens that the indexer of ``dsa`` chooses, as in DeepSeek-V3.2: index
    queries are maps of the query latent, and min(p, ``index_dim``) features of index queries and keys are rotated.

    The decoding state is c and k' of every token, r + p numbers, and the index keys. Decoding does not compute keys or
    values: W_k is applied to the queries and W_v to the weighted mean of c.

    Args:
        kv_rank: r. The default is four head widths but at most a quarter of ``embed_dim``. This is the r of all
            released models: 512 with heads of 128, for 128 heads (DeepSeek-V2 and V3) and 16 (DeepSeek-V2-Lite).
        rotary_dim: p, even; half a head's width by default, as in the released models.
        query_rank: width of the query latents; None: queries are not compressed.
        top_k: chosen tokens per target; None: all (DeepSeek-V2 and V3).
        index_heads, index_dim, indexer_loss: as in ``dsa``.
    """

    requires_right_padding = True
    claims = Claims(absorbed=("k_proj", "v_proj"))
    unused_parameters = ("indexer.",)

    @classmethod
    def common_options(cls) -> dict[str, Any]:
        return {"output_gate": False}

    def __init__(
        self,
        *,
        kv_rank: Positive | None = None,
        rotary_dim: Even | None = None,
        query_rank: Positive | None = None,
        top_k: Positive | None = None,
        index_heads: Positive = 4,
        index_dim: Even = 32,
        indexer_loss: NonNegativeFloat = 1.0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        rank = max(1, min(4 * self.head_dim, self.embed_dim // 4)) if kv_rank is None else kv_rank
        rotary = max(self.head_dim // 4 * 2, 2) if rotary_dim is None else rotary_dim
        self.down = nn.Linear(self.embed_dim, rank, bias=False)
        self.norm = nn.RMSNorm(rank, eps=1e-6)
        self.k_proj, self.v_proj = (nn.Linear(rank, self.embed_dim, bias=False) for _ in range(2))
        query_dim = self.embed_dim if query_rank is None else query_rank
        self.q_rotary = nn.Linear(query_dim, self.num_heads * rotary, bias=False)
        self.k_rotary = nn.Linear(self.embed_dim, rotary, bias=False)
        drawn = [self.down, self.k_proj, self.v_proj, self.q_rotary, self.k_rotary]
        self.q_down: nn.Linear | None = None
        if query_rank is not None:
            self.q_down = nn.Linear(self.embed_dim, query_rank, bias=False)
            self.q_norm = nn.RMSNorm(query_rank, eps=1e-6)
            self.q_proj = nn.Linear(query_rank, self.embed_dim, bias=False)
            drawn += [self.q_down, self.q_proj]
        for linear in drawn:
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
        for linear in (self.q_proj, self.out_proj):
            linear.register_parameter("bias", None)
        self.logit_factor = (self.head_dim + rotary) ** -0.5
        self.indexer_loss = indexer_loss
        self.indexer: LightningIndexer | None = None
        if top_k is not None:
            self.selects_tokens = True
            self.claims = replace(self.claims, has_exact_gradient=False)  # the choice is discontinuous
            self.indexer = LightningIndexer(
                embed_dim=self.embed_dim,
                query_dim=query_dim,
                heads=index_heads,
                width=index_dim,
                rotary_dim=min(rotary, index_dim),
                block_size=1,
                top_k=top_k,
                local_blocks=0,
            )

    def latent(self, x: Tensor) -> Tensor:
        """Compute the latents c of tokens, [B, N, r]."""
        return self.norm(upcast(self.down(x))).to(self.norm.weight.dtype)

    def query_latent(self, x: Tensor) -> Tensor:
        """Compute what queries are maps of: x, or latents [B, N, query_rank]."""
        return x if self.q_down is None else self.q_norm(upcast(self.q_down(x))).to(self.q_norm.weight.dtype)

    def queries(self, x: Tensor, position: Tensor) -> Tensor:
        """Compute [q, q'] of targets at ``position`` [B or 1, N]: [B, H, N, E + p]."""
        x = self.query_latent(x)
        rotary = self.q_rotary(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return torch.cat([self.split_heads(self.q_proj(x)), rotate(rotary, position)], dim=-1)

    def index_queries(self, x: Tensor, position: Tensor) -> Tensor:
        """Compute index queries [B, I, N, F + 1], in the dtype of the weights also under autocast."""
        assert self.indexer is not None
        with torch.autocast(x.device.type, enabled=False):
            latent = self.query_latent(x.detach().to(self.indexer.weight.weight.dtype))
        return self.indexer.queries(self.indexer.query_side_inputs(x, latent)["index_query"], position)

    def index_keys(self, x: Tensor, position: Tensor) -> Tensor:
        """Compute index keys [B, 1, M, F]."""
        assert self.indexer is not None
        return self.indexer.keys(self.indexer.key_side_inputs(x)["index_key"], position)

    def most_keys(self, count: int) -> int:
        """Return the largest number of keys that a target with ``count`` visible ones attends to."""
        return count if self.indexer is None else self.indexer.most_keys(count)

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
        if self.indexer is not None:
            with torch.autocast(query.device.type, enabled=False):
                heads, loss = self.indexer.attend(
                    (upcast(q), upcast(k), upcast(v)),
                    (self.index_queries(query, positions[0]), self.indexer.pooled(self.index_keys(key, positions[1]))),
                    None if self.pattern is Pattern.CS else lengths(key, padding.key),
                    learns=self.training and self.indexer_loss > 0,
                    scale=self.logit_factor,
                    dropout=self.weight_dropout,
                )
            if loss is not None:
                self.add_loss(self.indexer_loss * loss, padding)
            return self.out_proj(self.merge_heads(self.gated(heads.to(q.dtype), query)))
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
        return self.out_proj(self.merge_heads(self.gated(heads, query)))

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, _draws: object) -> Tensor:
        """Compute the outputs of one row from the full matrix of scores, [n, D] to [n, D]."""
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        targets, sources = (torch.arange(x.shape[1], device=x.device).unsqueeze(0) for x in (query, key))
        latent = self.query_latent(query)
        rotary_query = self.q_rotary(latent).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        logits = self.split_heads(self.q_proj(latent)) @ self.split_heads(self.k_proj(self.latent(key))).mT
        logits = logits + rotate(rotary_query, targets) @ rotate(self.k_rotary(key).unsqueeze(1), sources).mT
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        if self.indexer is not None:
            n, m = logits.shape[2:]
            counts = range(1, n + 1) if self.pattern is Pattern.CS else [m] * n
            index = self.index_queries(query, targets), self.index_keys(key, sources)
            logits = logits.masked_fill(~self.indexer.reference(index[0][0], index[1][0], counts), -torch.inf)
        heads = (logits * self.logit_factor).softmax(dim=-1) @ self.split_heads(self.v_proj(self.latent(value)))
        return self.out_proj(self.merge_heads(self.gated(heads, query)))[0]

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        shapes = {"latent": (1, self.down.out_features), "rotary": (1, self.k_rotary.out_features)}
        if self.indexer is not None:
            shapes["index"] = (1, self.indexer.width)
        state = empty_cache(batch_size, like, **shapes)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def encode_source_inputs(self, key: Tensor, value: Tensor, mask: Tensor | None) -> DecodeState:
        """Compute c and k' of the source, and a second c for values that are not the keys."""
        position = torch.arange(key.shape[1], device=key.device).unsqueeze(0)
        hidden = torch.zeros(key.shape[:2], dtype=torch.bool, device=key.device) if mask is None else mask
        state = {"latent": self.latent(key).unsqueeze(1), "rotary": self.shared_key(key, position), "hidden": hidden}
        if self.indexer is not None:
            state["index"] = self.index_keys(key, position)
        state["length"] = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        return state if key is value else {**state, "value_latent": self.latent(value).unsqueeze(1)}

    encode_source = encode_source_inputs

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        position = state["length"].unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        query = self.queries(tokens, position)
        new = {**state, "length": state["length"] + lengths(tokens, mask)}
        if self.pattern is Pattern.CS:
            added = {"latent": self.latent(tokens).unsqueeze(1), "rotary": self.shared_key(tokens, position)}
            if self.indexer is not None:
                added["index"] = self.index_keys(tokens, position)
            new = append_tokens(new, mask, **added)
            masked = masked_tokens(new, tokens.shape[1])
            if self.indexer is not None:
                new, count = padding_last(new, *added), (position + 1)[:, None, :, None]
        else:
            masked = state["hidden"][:, None, None]
            count = (~masked).sum(dim=-1, keepdim=True)
        with torch.autocast(tokens.device.type, enabled=False):
            if self.indexer is not None:
                index = self.index_queries(tokens, position), self.indexer.pooled(new["index"])
                masked = ~self.indexer.choose(index, count, masked.shape[-1])[0]
            q, latent, rotary = upcast(query), upcast(new["latent"]), upcast(new["rotary"])
            k_up, v_up = (upcast(x.weight).unflatten(0, (self.num_heads, -1)) for x in (self.k_proj, self.v_proj))
            logits = q[..., : self.head_dim] @ k_up @ latent.mT + q[..., self.head_dim :] @ rotary.mT
            weights = masked_softmax(logits * self.logit_factor, masked)
            mean = F.dropout(weights, self.weight_dropout) @ upcast(new.get("value_latent", new["latent"]))
            heads = (mean @ v_up.mT).to(query.dtype)
        return self.out_proj(self.merge_heads(self.gated(heads, tokens))), new
