"""Native sparse attention (Yuan et al. 2025): compressed blocks, a few blocks in full, and a window.

Shapes: B batch, H heads, G heads of keys and values, N tokens, E head dimension, l and d size and stride of compression
blocks, J compressed keys.
"""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import sums_by_targets
from attentions.kernels.key_summaries import expand_blocks, largest, largest_indices
from attentions.kernels.numerics import masked_softmax, upcast
from attentions.kernels.token_cache import packed, take_tokens
from attentions.kernels.window_attention import Window, window_attention
from cab import Attention, DecodeState, PaddingMasks, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive

BRANCHES = 3
"""Compression, selection, window."""

PUBLISHED_GROUP = 16
"""Query heads that share keys and values in the paper's model, 64 heads in 4 groups."""


@register_attention("nsa", patterns="CS", complexity="n^2", paper="Yuan et al. 2025")
class NativeSparseAttention(Attention):
    """Compute g_1 Att(q, K_1, V_1) + g_2 Att(q, K_2, V_2) + g_3 Att(q, K_3, V_3) with gates g = sigmoid(W x) (Eq. 5).

    Each branch has its own keys and values, shared by groups of query heads.

    * Compression (Eq. 7): every block of l tokens, with stride d, becomes one key and one value by an MLP of the
      concatenated tokens with added positions inside the block. A target attends to blocks that ended before or
      with it.
    * Selection (Eq. 8 to 12): the tokens up to the target in ``num_blocks`` blocks: its own, the one before, the first,
      and those with the largest score. The score of a block is the compression weight, summed over the heads of a
      group, of each stride of a compression block inside it. The choice has no gradient.
    * Window: the last ``window_size`` tokens.

    The paper does not print the sizes of the MLPs: the compression has one hidden layer of the head dimension with
    ReLU, and the gates are a linear map. Rotary positions belong to the backbone. The selection branch forms all pairs,
    some targets at a time, and masks those that are not selected, so it has the function and the memory of the method,
    without the time that a dedicated kernel saves.

    With the defaults, the selection takes every token below 1,024 tokens, and the window below 512.

    Decoding keeps keys and values of all tokens for the selection, the compressed keys and values, and those of a
    window and of an incomplete block.

    Args:
        block_size: tokens per selection block.
        num_blocks: selected blocks per target.
        window_size: tokens of the window.
        compress_size: tokens l per compression block.
        compress_stride: stride d of compression blocks; divides ``compress_size`` and ``block_size``.
        compression: ``mlp``, or ``mean`` for the mean of the tokens.
        separate_kv: whether each branch has its own keys and values.
        num_kv_heads: heads of keys and values of a branch. None: one per 16 query heads, as published, at least 1.
    """

    requires_right_padding = True
    unused_parameters = ("compress_k.", "compress_v.")
    claims = Claims(has_exact_gradient=False)  # the choice of blocks is discontinuous

    def __init__(
        self,
        *,
        block_size: Positive = 64,
        num_blocks: Annotated[int, Ge(3)] = 16,
        window_size: Positive = 512,
        compress_size: int = 32,
        compress_stride: Positive = 16,
        compression: Literal["mlp", "mean"] = "mlp",
        separate_kv: bool = True,
        num_kv_heads: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if compress_size % compress_stride or block_size % compress_stride or not 1 <= compress_size <= block_size:
            sizes = f"{compress_size}, {block_size} and {compress_stride}"
            raise UserError(f"compress_size <= block_size must be multiples of compress_stride, got {sizes}")
        self.num_kv_heads = _published_groups(self.num_heads) if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UserError(f"num_kv_heads must divide num_heads ({self.num_heads}), got {num_kv_heads}")
        self.block_size, self.num_blocks, self.window_size = block_size, num_blocks, window_size
        self.compress_size, self.compress_stride = compress_size, compress_stride
        self.separate_kv = separate_kv
        self.k_proj, self.v_proj = self.new_projection(), self.new_projection()
        self.make_convolutions()
        self.gate = nn.Linear(self.embed_dim, BRANCHES * self.num_heads)
        self.compress_k = self.compress_v = None
        if compression == "mlp":
            self.compress_k, self.compress_v = (
                BlockCompression(self.num_kv_heads, compress_size, self.head_dim) for _ in range(2)
            )

    def new_projection(self) -> nn.Linear:
        """Return the map to keys or values of all branches, each initialized on its own."""
        branches, width = BRANCHES if self.separate_kv else 1, self.num_kv_heads * self.head_dim
        linear = nn.Linear(self.embed_dim, branches * width)
        for weight in linear.weight.data.split(width):
            nn.init.xavier_uniform_(weight, gain=2**-0.5)
        nn.init.zeros_(linear.bias)
        return linear

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def branches(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys or values of the three branches."""
        compressed, selected, window = x.chunk(BRANCHES, dim=-3) if self.separate_kv else (x,) * BRANCHES
        return compressed, selected, window

    def query_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Return the gates of each target and head, [B, H, N, 3]."""
        return {"gates": upcast(self.gate(x)).sigmoid().unflatten(-1, (-1, BRANCHES)).transpose(1, 2)}

    def shared(self, x: Tensor) -> Tensor:
        """Repeat keys or values for every query head, in float32 at least."""
        return upcast(x).repeat_interleave(self.num_heads // self.num_kv_heads, dim=-3)

    def compress(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return compressed keys and values of all whole blocks, [B, H, J, E]."""
        if key.shape[2] < self.compress_size:
            return key[:, :, :0], value[:, :, :0]
        blocks = (x.unfold(2, self.compress_size, self.compress_stride).mT for x in (key, value))
        if self.compress_k is None or self.compress_v is None:
            key, value = (x.mean(dim=3) for x in blocks)
            return key, value
        return self.compress_k(next(blocks)), self.compress_v(next(blocks))

    def count_compressed(self, length: Tensor) -> Tensor:
        """Return the number of whole compression blocks of that many tokens."""
        return ((length - self.compress_size) // self.compress_stride + 1).clamp(min=0)

    def compression_weights(self, query: Tensor, key: Tensor, position: Tensor) -> Tensor:
        """Return weights [B, H, n, J] of compressed keys for targets at ``position`` [B or 1, n]."""
        block = torch.arange(key.shape[2], device=query.device)
        masked = block >= self.count_compressed(position + 1)[:, None, :, None]
        return masked_softmax(query @ key.mT * self.scale, masked)

    def scores(self, weights: Tensor, num_keys: int) -> Tensor:
        """Return the weights of selection blocks (Eq. 9), summed over groups of heads (Eq. 10), [B, G, n, blocks]."""
        block = torch.arange(-(-num_keys // self.block_size), device=weights.device)
        start = torch.arange(weights.shape[-1], device=weights.device) * self.compress_stride
        offsets = torch.arange(0, self.compress_size, self.compress_stride, device=weights.device)
        overlap = ((start[:, None, None] + offsets[:, None]) // self.block_size == block).sum(dim=1)  # strides inside
        return weights.unflatten(1, (self.num_kv_heads, -1)).sum(dim=2) @ overlap.to(weights.dtype)

    @torch.no_grad()
    def selected(self, weights: Tensor, position: Tensor, num_keys: int) -> Tensor:
        """Return the keys that targets attend to in the selection branch, bool [B, H, n, num_keys]."""
        scores = self.scores(weights, num_keys)
        block = torch.arange(scores.shape[-1], device=weights.device)
        current = position[:, None, :, None] // self.block_size
        scores = scores.masked_fill((block == current) | (block == current - 1) | (block == 0), torch.inf)
        taken = largest(scores.masked_fill(block > current, -torch.inf), self.num_blocks)
        taken = taken.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        key = torch.arange(num_keys, device=position.device)
        return expand_blocks(taken, self.block_size, num_keys) & (key <= position[:, None, :, None])

    def most_keys(self, count: int) -> int:
        """Return the largest number of keys that a target with ``count`` visible ones selects or has in its window."""
        return min(count, self.num_blocks * self.block_size + self.window_size)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks, gates: Tensor) -> Tensor:
        # With the padding on the right, no real target attends to it, nor to a block that contains some.
        with torch.autocast(query.device.type, enabled=False):
            q, keys, values = upcast(query), self.branches(upcast(key)), self.branches(upcast(value))
            slot_key, slot_value = (self.shared(x) for x in self.compress(keys[0], values[0]))
            key, value, near_key, near_value = (self.shared(x) for x in (keys[1], values[1], keys[2], values[2]))
            position = torch.arange(q.shape[2], device=q.device).unsqueeze(0)

            def compression(targets: slice, _num_keys: int) -> Tensor:
                return self.compression_weights(q[:, :, targets], slot_key, position[:, targets])

            def selection(targets: slice, num_keys: int) -> Tensor:
                with torch.no_grad():
                    weights = compression(targets, 0)
                seen = self.selected(weights, position[:, targets], num_keys)
                return masked_softmax(q[:, :, targets] @ key[:, :, :num_keys].mT * self.scale, ~seen)

            dropout = self.weight_dropout
            outputs = (
                sums_by_targets(compression, q, slot_value, is_causal=False, dropout=dropout),
                sums_by_targets(selection, q, value, is_causal=True, dropout=dropout),
                window_attention(q, near_key, near_value, Window(self.window_size - 1, 0), dropout=dropout),
            )
            return sum(g * x for g, x in zip(gates.split(1, dim=-1), outputs, strict=True)).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, gates: Tensor) -> Tensor:
        group, size, stride = self.num_heads // self.num_kv_heads, self.compress_size, self.compress_stride
        keys, values = self.branches(key), self.branches(value)
        outputs = []
        for t in range(query.shape[1]):
            q, current = query[:, t : t + 1], t // self.block_size
            scores = torch.zeros(self.num_kv_heads, current + 1, dtype=query.dtype, device=query.device)
            output = torch.zeros_like(q)
            begins = range(0, t + 2 - size, stride)
            if begins:
                blocks = [torch.stack([x[0][:, b : b + size] for b in begins], dim=1) for x in (keys, values)]
                if self.compress_k is None or self.compress_v is None:
                    slots = [x.mean(dim=2) for x in blocks]
                else:
                    slots = [self.compress_k(blocks[0]), self.compress_v(blocks[1])]
                slot_key, slot_value = (x.repeat_interleave(group, dim=0) for x in slots)
                weights = (q @ slot_key.mT * self.scale).softmax(dim=-1)
                output = gates[:, t : t + 1, :1] * (weights @ slot_value)
                for number, begin in enumerate(begins):
                    for token in range(begin, begin + size, stride):
                        scores[:, token // self.block_size] += (
                            weights.detach()[:, 0, number].unflatten(0, (-1, group)).sum(1)
                        )
            scores[:, [0, max(current - 1, 0), current]] = torch.inf
            chosen = largest_indices(scores, min(self.num_blocks, current + 1)).repeat_interleave(group, dim=0)
            seen = (torch.arange(t + 1, device=q.device) // self.block_size == chosen.unsqueeze(-1)).any(dim=1)
            recent = torch.arange(t + 1, device=q.device) > t - self.window_size
            for branch, mask in ((1, seen), (2, recent.expand_as(seen))):
                k, v = (x[branch][:, : t + 1].repeat_interleave(group, dim=0) for x in (keys, values))
                logits = (q @ k.mT * self.scale).masked_fill(~mask.unsqueeze(1), -torch.inf)
                output = output + gates[:, t : t + 1, branch : branch + 1] * (logits.softmax(dim=-1) @ v)
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return caches of [key, value]: of whole compression blocks and the open ones, all tokens, the window."""
        sizes = {"compressed": 0, "open": self.compress_size - 1, "selected": 0, "window": self.window_size - 1}
        shape = (batch_size, self.num_kv_heads)
        state = {name: like.new_zeros(*shape, size, 2 * self.head_dim) for name, size in sizes.items()}
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, gates: Tensor
    ) -> Decoded:
        length, count = state["length"], lengths(key, padding.key)
        total, position = length + count, length[:, None] + torch.arange(query.shape[2], device=query.device)
        compressed, compressed_after = self.count_compressed(length), self.count_compressed(total)
        near = length.clamp(max=self.window_size - 1)
        with torch.autocast(query.device.type, enabled=False):
            q = upcast(query)
            pairs = [torch.cat(pair, dim=-1) for pair in zip(self.branches(key), self.branches(value), strict=True)]
            opened = packed(state["open"], length - compressed * self.compress_stride, pairs[0])
            slots = torch.cat(self.compress(*upcast(opened).chunk(2, dim=-1)), dim=-1).to(key.dtype)
            slots = packed(state["compressed"], compressed, slots)[:, :, : int(compressed_after.max())]
            tokens = packed(state["selected"], length, pairs[1])[:, :, : int(total.max())]
            recent = packed(state["window"], near, pairs[2])
            start = (compressed_after - compressed) * self.compress_stride
            new = {"length": total, "compressed": slots, "selected": tokens}
            new["open"] = take_tokens(opened, start, self.compress_size - 1)
            start = (near + count - self.window_size + 1).clamp(min=0)
            new["window"] = take_tokens(recent, start, self.window_size - 1)

            keys, values = zip(*(map(self.shared, x.chunk(2, dim=-1)) for x in (slots, tokens, recent)), strict=True)
            compression = self.compression_weights(q, keys[0], position)
            seen = self.selected(compression, position, tokens.shape[2])
            at = (length - near)[:, None] + torch.arange(recent.shape[2], device=q.device)
            distance = (position[:, :, None] - at[:, None]).unsqueeze(1)
            weights = (
                compression,
                masked_softmax(q @ keys[1].mT * self.scale, ~seen),
                masked_softmax(q @ keys[2].mT * self.scale, (distance < 0) | (distance >= self.window_size)),
            )
            outputs = (F.dropout(w, self.weight_dropout) @ x for w, x in zip(weights, values, strict=True))
            return sum(g * x for g, x in zip(gates.split(1, dim=-1), outputs, strict=True)).to(query.dtype), new


class BlockCompression(nn.Module):
    """Map a block of l tokens with added positions to one token by an MLP that all heads share.

    Args:
        size: tokens l of a block.
        width: head dimension E, also the width of the hidden layer.
    """

    def __init__(self, num_heads: int, size: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(num_heads, 1, size, width))
        self.hidden, self.output = nn.Linear(size * width, width), nn.Linear(width, width)

    def forward(self, blocks: Tensor) -> Tensor:
        """Compress blocks [..., H, J, l, E] to [..., H, J, E]."""
        return self.output(self.hidden((blocks.to(self.positions.dtype) + self.positions).flatten(-2)).relu())


def _published_groups(num_heads: int) -> int:
    """Return the number of heads of keys and values for groups of at least 16 query heads, or one group."""
    return next(count for count in range(max(1, num_heads // PUBLISHED_GROUP), 0, -1) if num_heads % count == 0)
