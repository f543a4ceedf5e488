"""MoBA (Lu et al. 2025): softmax attention to a few blocks of keys, which each target chooses by their means.

Shapes: B batch, H heads, N tokens, E width of a head, J blocks.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.options import check_at_least
from attentions.kernels.chunks import sums_by_targets
from attentions.kernels.key_summaries import block_means, expand_blocks, largest, later, pad_blocks, to_blocks
from attentions.kernels.numerics import masked_softmax, upcast
from attentions.kernels.token_cache import in_order, no_tokens, with_tokens
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit
from cab.padding import lengths


@register_attention("moba", patterns="CS", complexity="n^2", paper="Lu et al. 2025")
class BlockMixtureAttention(Attention):
    """Compute softmax(q_t K^T / sqrt(E)) V over the keys up to t of ``top_k`` blocks (Eq. 2 to 6).

    A target takes its own block and, of the complete ones before it, those whose mean key has the largest product
    with its query. The choice has no gradient. With as many blocks as there are it is softmax attention.

    Here all pairs are formed, some targets at a time, and those outside are left out: its function and its memory, not
    the time that a kernel for it saves. Decoding keeps every key and value.

    Args:
        block_size: keys of a block.
        top_k: blocks that a target takes, its own among them.
    """

    requires_right_padding = True
    selects_tokens = True

    def __init__(self, *, block_size: int = 512, top_k: int = 3, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        check_at_least(1, block_size=block_size, top_k=top_k)
        self.block_size, self.top_k = block_size, top_k

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        return SoftmaxLimit(({"block_size": 4, "top_k": num_tokens},))

    def weigh(self, query: Tensor, key: Tensor, means: Tensor, position: Tensor) -> Tensor:
        """Weights [B, H, n, m] of the first m keys for targets at ``position`` [B or 1, n]; means of whole blocks."""
        num_keys = key.shape[2]
        num_blocks = to_blocks(num_keys, self.block_size)
        with torch.no_grad():
            scores = query @ means[:, :, :num_blocks].mT
            own = (position // self.block_size)[:, None, :, None]
            block = torch.arange(num_blocks, device=query.device)
            scores = pad_blocks(scores, num_blocks, -torch.inf)
            scores = scores.masked_fill(block > own, -torch.inf).masked_fill(block == own, torch.inf)
            masked = ~expand_blocks(largest(scores, self.top_k), self.block_size, num_keys) | later(position, num_keys)
        return masked_softmax(query @ key.mT * self.scale, masked)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks) -> Tensor:
        # With the padding on the right, no real target sees it, nor the mean of a block that holds some.
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = upcast(query), upcast(key), upcast(value)
            means, position = block_means(k, self.block_size), torch.arange(q.shape[2], device=q.device).unsqueeze(0)

            def some(targets: slice, num_keys: int) -> Tensor:
                return self.weigh(q[:, :, targets], k[:, :, :num_keys], means, position[:, targets])

            return sums_by_targets(some, q, v, is_causal=True, dropout=self.weight_dropout).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        size, outputs = self.block_size, []
        for t in range(query.shape[1]):
            own = t // size
            seen = torch.zeros(self.num_heads, t + 1, dtype=torch.bool, device=query.device)
            seen[:, own * size :] = True
            if own and self.top_k > 1:
                means = torch.stack([key[:, j * size : (j + 1) * size].mean(dim=1) for j in range(own)], dim=1)
                chosen = (means @ query[:, t, :, None]).squeeze(-1).topk(min(self.top_k - 1, own), dim=-1).indices
                for head, blocks in enumerate(chosen.tolist()):
                    for j in blocks:
                        seen[head, j * size : (j + 1) * size] = True
            logits = (query[:, t : t + 1] @ key[:, : t + 1].mT * self.scale).masked_fill(~seen.unsqueeze(1), -torch.inf)
            outputs.append(logits.softmax(dim=-1) @ value[:, : t + 1])
        return torch.cat(outputs, dim=1)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        shape = (self.num_heads, self.head_dim)
        state = no_tokens(batch_size, like, key=shape, value=shape)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks
    ) -> tuple[Tensor, DecodeState]:
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        new = in_order(with_tokens(state, padding.key, key=key, value=value), "key", "value")
        new["length"] = state["length"] + lengths(key, padding.key)
        with torch.autocast(query.device.type, enabled=False):
            k = upcast(new["key"])
            weights = self.weigh(upcast(query), k, block_means(k, self.block_size), position)
            output = F.dropout(weights, self.weight_dropout) @ upcast(new["value"])
        return output.to(query.dtype), new
