"""MoBA (Lu et al. 2025): softmax attention to a few blocks of keys, which each target chooses by their means.

Shapes: B batch, H heads, N tokens, E width of a head, J blocks.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.pairwise import PairwiseAttention
from attentions.kernels.key_summaries import block_means, expand_blocks, largest
from attentions.kernels.numerics import masked_softmax
from attentions.kernels.token_cache import append_tokens, padding_last
from cab import DecodeState, PaddingMasks, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive


@register_attention("moba", patterns="CS", complexity="n^2", paper="Lu et al. 2025")
class BlockMixtureAttention(PairwiseAttention):
    """Compute softmax(q_t K^T / sqrt(E)) V over the keys up to t of ``top_k`` blocks (Eq. 2 to 6).

    A target takes its own block and, of the complete ones before it, those whose mean key has the largest product
    with its query. The choice has no gradient. With as many blocks as there are it is softmax attention.

    Here all pairs are formed, some targets at a time, and those outside are left out: its function and its memory, not
    the time that a kernel for it saves. Decoding keeps every key and value.

    Args:
        block_size: keys of a block.
        top_k: blocks that a target takes, its own among them.
    """

    claims = Claims(softmax_limit=softmax_if(block_size=4, top_k=NUM_TOKENS))
    selects_tokens = True

    def __init__(self, *, block_size: Positive = 512, top_k: Positive = 3, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.block_size, self.top_k = block_size, top_k

    def weigh(self, query: Tensor, key: Tensor, _masked: Tensor | None, count: Tensor) -> Tensor:
        """Return weights [B, H, n, m] of the keys, the last of which target i sees is number ``count`` - 1."""
        num_keys = key.shape[2]
        num_blocks = -(-num_keys // self.block_size)
        with torch.no_grad():
            scores = query @ block_means(key, self.block_size).mT
            scores = F.pad(scores, (0, num_blocks - scores.shape[-1]), value=-torch.inf)
            current, block = (count - 1) // self.block_size, torch.arange(num_blocks, device=query.device)
            scores = scores.masked_fill(block > current, -torch.inf).masked_fill(block == current, torch.inf)
            later = torch.arange(num_keys, device=query.device) >= count
            hidden = ~expand_blocks(largest(scores, self.top_k), self.block_size, num_keys) | later
        return masked_softmax(query @ key.mT * self.scale, hidden)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        size, outputs = self.block_size, []
        for t in range(query.shape[1]):
            current = t // size
            seen = torch.zeros(self.num_heads, t + 1, dtype=torch.bool, device=query.device)
            seen[:, current * size :] = True
            if current and self.top_k > 1:
                means = torch.stack([key[:, j * size : (j + 1) * size].mean(dim=1) for j in range(current)], dim=1)
                chosen = (means @ query[:, t, :, None]).squeeze(-1).topk(min(self.top_k - 1, current), dim=-1).indices
                for head, blocks in enumerate(chosen.tolist()):
                    for j in blocks:
                        seen[head, j * size : (j + 1) * size] = True
            logits = (query[:, t : t + 1] @ key[:, : t + 1].mT * self.scale).masked_fill(~seen.unsqueeze(1), -torch.inf)
            outputs.append(logits.softmax(dim=-1) @ value[:, : t + 1])
        return torch.cat(outputs, dim=1)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = torch.arange(1, query.shape[2] + 1, device=query.device)
        count = (state["length"].unsqueeze(1) + position)[:, None, :, None]
        new = padding_last(append_tokens(state, padding.key, key=key, value=value), "key", "value")
        new["length"] = state["length"] + lengths(key, padding.key)
        return self.read(query, new, None, count), new
