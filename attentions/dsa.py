"""Softmax attention to the tokens or blocks that an indexer chooses (DeepSeek-V3.2, MiniMax-M3, Qwen4-exp, MoBA).

Shapes: B batch, H heads, G groups of heads that choose together, N targets, M keys, E width of a head, F of the
indexer.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from attentions.bases.indexer import (
    BlockMeanIndexer,
    GroupIndexer,
    Indexer,
    KeyMeans,
    LearnedIndexer,
    LightningIndexer,
    per_head,
)
from attentions.kernels.numerics import upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, padding_last
from attentions.softmax import VanillaAttention
from cab import DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Natural, NonNegativeFloat, Positive

SCORERS = {"dsa": LightningIndexer, "msa": GroupIndexer, "qsa": BlockMeanIndexer}


@register_attention("dsa", patterns="NS CS CC", complexity="n^2", paper="DeepSeek-AI 2025")
class SelectedAttention(VanillaAttention):
    """Compute softmax(q_t K^T / sqrt(E)) V over the ``top_k`` tokens or blocks with the largest scores I of an indexer.

    Index queries q^I and keys k^I are maps of the layer's input; I_t of a block is the largest of its tokens up to t.

    * ``dsa``: I_ts = sum_j w_tj relu(q^I_tj k^I_s) / sqrt(I F), k^I = LayerNorm(W x) (DeepSeek-V3.2, arXiv:2512.02556).
    * ``msa``: I_ts = q^I_tg k^I_s for each group g of heads with common keys, both RMS-normalized (MiniMax-M3,
      arXiv:2606.13392).
    * ``qsa``: I_tb = sum_j relu(q^I_tj RMSNorm(mean of W x in block b)) / sqrt(F); whole blocks only, and the open one
      is visible in addition (Qwen4-exp).
    * ``keys``: I_tb = q_t (mean key of block b) per head, whole blocks only, without an indexer (``moba``).

    Of equal scores the first is chosen: relu makes zeros. The choice has no gradient. In training, ``indexer_loss``
    times KL(p || softmax(I)) over the chosen set trains the indexer, whose inputs are detached; p is the attention
    weight, averaged over the heads that choose together, of a token or block. For ``msa`` and ``qsa``, no loss is
    published, and this form is an extension. The dense warm-up of DeepSeek-V3.2 is training with a ``top_k`` of the
    length.

    DeepSeek-V3.2 has the indexer in ``mla`` (its option ``top_k``) and chooses 2,048 tokens, for which no sequence of
    CAB is long enough. The default keeps 64 tokens. In NC, a choice would save nothing and the sources are
    short. All pairs are formed, some targets at a time: this is the function and the memory, not the time that a kernel
    saves. Decoding stores keys, values and index keys of all tokens.

    Args:
        scorer: see above.
        block_size: tokens of a block; 1 selects tokens. Above 1 in CS only.
        top_k: chosen tokens or blocks, ``local_blocks`` among them.
        local_blocks: in CS, latest blocks that are always chosen.
        index_heads: I; ``msa`` has one per head of keys and values.
        index_dim: F.
        indexer_loss: weight of the loss of the indexer.
        num_kv_heads: as in ``vanilla``.
        positions: as in ``vanilla``; the indexer is rotated, too.
        qk_norm: as in ``vanilla``.
    """

    claims = Claims(
        has_exact_gradient=False,  # the choice is discontinuous
        softmax_limit=softmax_if(
            top_k=NUM_TOKENS, block_size=1, local_blocks=0, num_kv_heads=None, positions="none", qk_norm=False
        ),
    )
    unused_parameters: ClassVar[tuple[str, ...]] = ("indexer.",)

    def __init__(
        self,
        *,
        scorer: Literal["dsa", "msa", "qsa", "keys"] = "dsa",
        block_size: Positive = 1,
        top_k: Positive = 64,
        local_blocks: Natural = 0,
        index_heads: Positive = 4,
        index_dim: Positive = 32,
        indexer_loss: NonNegativeFloat = 1.0,
        num_kv_heads: int | None = None,
        positions: Literal["none", "rope"] = "none",
        qk_norm: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(num_kv_heads=num_kv_heads, positions=positions, qk_norm=qk_norm, **common)
        if (block_size > 1 or local_blocks) and self.pattern is not Pattern.CS:
            wrong = f"block_size={block_size} and local_blocks={local_blocks}"
            raise UserError(f"{wrong} require pattern CS, got pattern {self.pattern}")
        if local_blocks > top_k:
            raise UserError(f"local_blocks must be at most top_k={top_k}, got {local_blocks}")
        if positions == "rope" and index_dim % 2:
            raise UserError(f"positions=rope requires an even index_dim, got {index_dim}")
        self.selects_tokens = self.requires_right_padding = True
        self.indexer_loss = indexer_loss
        sizes = {"block_size": block_size, "top_k": top_k, "local_blocks": local_blocks}
        if scorer == "keys":
            self.indexer: Indexer = KeyMeans(**sizes)
        else:
            heads = self.num_kv_heads if scorer == "msa" else index_heads
            rotary_dim = index_dim if positions == "rope" else 0
            self.indexer = SCORERS[scorer](
                embed_dim=self.embed_dim, heads=heads, width=index_dim, rotary_dim=rotary_dim, **sizes
            )

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        return self.indexer.query_side_inputs(query)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return self.indexer.key_side_inputs(key)

    def index(
        self, query: Tensor, key: Tensor, targets: Tensor, sources: Tensor, inputs: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return index queries [B, I, N, F] and keys of tokens at positions [B or 1, N or M], or those of the heads."""
        if not isinstance(self.indexer, LearnedIndexer):
            return query, per_head(key, self.num_heads)
        queries = self.indexer.queries(inputs["index_query"], targets)
        return queries, self.indexer.keys(inputs["index_key"], sources)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **inputs: Tensor) -> Tensor:
        targets, sources = (torch.arange(x.shape[2], device=x.device)[None] for x in (query, key))
        with torch.autocast(query.device.type, enabled=False):
            q = upcast(self.prepared(query, self.q_norm, targets))
            k = upcast(self.prepared(key, self.k_norm, sources))
            iq, ik = self.index(q, k, targets, sources, inputs)
            heads, loss = self.indexer.attend(
                (q, k, upcast(value)),
                (iq, self.indexer.pooled(ik)),
                None if self.pattern is Pattern.CS else lengths(k, padding.key),
                learns=self.training and bool(inputs) and self.indexer_loss > 0,
                scale=self.scale,
                dropout=self.weight_dropout,
            )
            if loss is not None:
                self.add_loss(self.indexer_loss * loss, padding)
            return heads.to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **inputs: Tensor) -> Tensor:
        targets, sources = (torch.arange(x.shape[1], device=x.device)[None] for x in (query, key))
        q, k = self.prepared(query[None], self.q_norm, targets), self.prepared(key[None], self.k_norm, sources)
        index = self.index(q, k, targets, sources, {name: x[None] for name, x in inputs.items()})
        n, m = query.shape[1], key.shape[1]
        counts = range(1, n + 1) if self.pattern is Pattern.CS else [m] * n
        seen = self.indexer.reference(index[0][0], index[1][0], counts)[None]
        k, v, seen = (per_head(x, self.num_heads) for x in (k, value[None], seen))
        return ((q @ k.mT * self.scale).masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v)[0]

    def most_keys(self, count: int) -> int:
        """Return the largest number of keys that a target with ``count`` visible ones attends to."""
        return self.indexer.most_keys(count)

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state: keys, values and index keys of all tokens."""
        shapes = {"key": (self.num_kv_heads, self.head_dim), "value": (self.num_kv_heads, self.head_dim)}
        if isinstance(self.indexer, LearnedIndexer):
            shapes["index"] = (1, self.indexer.width)
        state = empty_cache(batch_size, like, **shapes)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **inputs: Tensor
    ) -> Decoded:
        position = state["length"][:, None] + torch.arange(query.shape[2], device=query.device)
        with torch.autocast(query.device.type, enabled=False):
            new = {"key": self.prepared(key, self.k_norm, position), "value": value}
            if isinstance(self.indexer, LearnedIndexer):
                new["index"] = self.indexer.keys(inputs["index_key"], position)
            state = padding_last(append_tokens(state, padding.key, **new), *new)
            state["length"] = state["length"] + lengths(key, padding.key)
            return self.read_state(query, state, position, (position + 1)[:, None, :, None], **inputs), state

    def read_state(
        self,
        query: Tensor,
        state: DecodeState,
        position: Tensor,
        count: Tensor,
        index_query: Tensor | None = None,
        **_: Tensor,
    ) -> Tensor:
        """Compute the outputs [B, H, T, E] of targets at ``position`` [B or 1, T] that see ``count`` cached keys."""
        q, key = upcast(self.prepared(query, self.q_norm, position)), upcast(state["key"])
        index = q, per_head(key, self.num_heads)
        if isinstance(self.indexer, LearnedIndexer):
            assert index_query is not None
            index = self.indexer.queries(index_query, position), state["index"]
        index = index[0], self.indexer.pooled(index[1])
        heads, how = (q, key, upcast(state["value"])), {"scale": self.scale, "dropout": self.weight_dropout}
        return self.indexer.read(heads, index, count, **how)[0].to(query.dtype)

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks, **inputs: Tensor) -> DecodeState:
        sources = torch.arange(key.shape[2], device=key.device)[None]
        state = {"key": self.prepared(key, self.k_norm, sources), "value": value, "length": lengths(key, padding.key)}
        if isinstance(self.indexer, LearnedIndexer):
            state["index"] = self.indexer.keys(inputs["index_key"], sources)
        return state

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks, **inputs: Tensor) -> Decoded:
        count, position = state["length"][:, None, None, None], state["length"].new_zeros(1, 1)
        with torch.autocast(query.device.type, enabled=False):
            return self.read_state(query, state, position, count, **inputs), state
