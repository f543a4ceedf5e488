"""Native sparse attention (Yuan et al. 2025): means of blocks, a few blocks in full, and a window.

Shapes: B batch, H heads, N tokens, E width of a head, J blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.key_blocks import block_means, expand_blocks, in_order, largest, later, pad_blocks, to_blocks
from attentions.kernels.precision import wide
from attentions.kernels.softmax import softmax_of_seen
from attentions.kernels.target_blocks import sums_by_targets
from attentions.kernels.token_cache import no_tokens, with_tokens
from cab import Attention, Pattern, register_attention
from cab.attention import DecodeState, PaddingMasks
from cab.errors import UserError
from cab.padding import lengths


@register_attention("nsa", patterns="CS", complexity="n^2", paper="Yuan et al. 2025")
class NativeSparseAttention(Attention):
    """g_1 Att(q, K_1, V_1) + g_2 Att(q, K_2, V_2) + g_3 Att(q, K_3, V_3)  (their Eq. 5), gates g = sigmoid(W x).

    * 1: the mean key and value of every block that ended before or with the target, as in public code (the paper has
      an MLP of the block for its mean).
    * 2: the tokens up to the target of its own block, the one before it, the first, and of those whose weight among
      the means, averaged over the heads that share keys, is largest: ``num_blocks`` in all. The choice has no gradient.
    * 3: the last ``window_size`` tokens.

    Here all pairs are formed, some targets at a time, and those outside are left out: its function and its memory, not
    the time that a kernel for it saves. The three share their maps of keys and values. Decoding keeps every key and
    value.

    Args:
        block_size: tokens of a block.
        num_blocks: blocks that a target sees in full.
        window_size: tokens of the window.
        num_kv_heads: heads of keys and values, each shared by as many heads of queries; as many as heads when not
            given.

    Raises:
        ValueError: for sizes below 1, fewer than 3 blocks, or ``num_kv_heads`` that do not divide the heads.
    """

    requires_right_padding = True

    has_exact_gradient = False  # the choice of blocks jumps, and of thousands of choices one is always near its border

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        block_size: int = 64,
        num_blocks: int = 16,
        window_size: int = 512,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        for name, size in (("block_size", block_size), ("window_size", window_size)):
            if size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        if num_blocks < 3:
            raise UserError(f"num_blocks must be at least 3, the first, the own and the one before, got {num_blocks}")
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise UserError(f"num_kv_heads must divide the {num_heads} heads, got {num_kv_heads}")
        self.block_size, self.num_blocks, self.window_size = block_size, num_blocks, window_size
        if self.num_kv_heads < num_heads:
            for name in ("k_proj", "v_proj"):
                linear = nn.Linear(embed_dim, self.num_kv_heads * self.head_dim)
                nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
                nn.init.zeros_(linear.bias)
                self.add_module(name, linear)
        self.gate = nn.Linear(embed_dim, 3 * num_heads)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, N, D], or fewer heads, to [B, H, N, E], a view."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def query_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Gates of each target and head, [B, H, N, 3]."""
        return {"gates": wide(self.gate(x)).sigmoid().unflatten(-1, (-1, 3)).transpose(1, 2)}

    def shared(self, x: Tensor) -> Tensor:
        """Keys or values of every head of queries, in float32 at least."""
        return wide(x).repeat_interleave(self.num_heads // self.num_kv_heads, dim=-3)

    def weigh(
        self, query: Tensor, key: Tensor, means: Tensor, position: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of means [B, H, n, J] and of tokens [B, H, n, m], for targets at ``position`` [B or 1, n]."""
        size, num_keys = self.block_size, key.shape[2]
        num_blocks = to_blocks(num_keys, size)
        place = position[:, None, :, None]
        block = torch.arange(num_blocks, device=query.device)
        compressed = softmax_of_seen(query @ means.mT * self.scale, (block[: means.shape[2]] + 1) * size - 1 > place)
        with torch.no_grad():
            scores = compressed.unflatten(1, (self.num_kv_heads, -1)).mean(dim=2)
            scores = pad_blocks(scores, num_blocks, 0.0)
            own = place // size
            scores = scores.masked_fill((block == own) | (block == own - 1) | (block == 0), torch.inf)
            taken = largest(scores.masked_fill(block > own, -torch.inf), self.num_blocks)
            taken = taken.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
            after = later(position, num_keys)
            far = torch.arange(num_keys, device=query.device) <= place - self.window_size
        logits = query @ key.mT * self.scale
        selected = softmax_of_seen(logits, ~expand_blocks(taken, size, num_keys) | after)
        window = softmax_of_seen(logits, far | after)
        return gates[..., :1] * compressed, gates[..., 1:2] * selected + gates[..., 2:] * window

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks, gates: Tensor) -> Tensor:
        # With the padding on the right, no real target sees it, nor the mean of a block that holds some.
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = wide(query), self.shared(key), self.shared(value)
            means, mean_values = block_means(k, self.block_size), block_means(v, self.block_size)
            position = torch.arange(q.shape[2], device=q.device).unsqueeze(0)

            def some(targets: slice, _num_values: int) -> Tensor:
                return torch.cat(self.weigh(q[:, :, targets], k, means, position[:, targets], gates[:, :, targets]), -1)

            values = torch.cat([mean_values, v], dim=2)  # all means, then all tokens
            return sums_by_targets(some, q, values, is_causal=False, dropout=self.weight_dropout).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, gates: Tensor) -> Tensor:
        size, group = self.block_size, self.num_heads // self.num_kv_heads
        key, value = key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)
        outputs = []
        for t in range(query.shape[1]):
            q, whole, own = query[:, t : t + 1], (t + 1) // size, t // size
            output = torch.zeros_like(q)
            scores = torch.zeros(self.num_heads, own + 1, dtype=query.dtype, device=query.device)
            if whole:
                means, mean_values = (
                    torch.stack([x[:, j * size : (j + 1) * size].mean(dim=1) for j in range(whole)], dim=1)
                    for x in (key, value)
                )
                weights = (q @ means.mT * self.scale).softmax(dim=-1)
                scores[:, :whole] = weights.detach()[:, 0]
                output = gates[:, t : t + 1, :1] * (weights @ mean_values)
            scores = scores.unflatten(0, (-1, group)).mean(dim=1)
            scores[:, [0, max(own - 1, 0), own]] = torch.inf
            chosen = scores.topk(min(self.num_blocks, own + 1), dim=-1).indices
            seen = torch.zeros(self.num_heads, t + 1, dtype=torch.bool, device=query.device)
            for head in range(self.num_heads):
                for j in chosen[head // group].tolist():
                    seen[head, j * size : (j + 1) * size] = True
            logits = q @ key[:, : t + 1].mT * self.scale
            selected = logits.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(dim=-1) @ value[:, : t + 1]
            first = max(t + 1 - self.window_size, 0)
            window = logits[:, :, first:].softmax(dim=-1) @ value[:, first : t + 1]
            outputs.append(output + gates[:, t : t + 1, 1:2] * selected + gates[:, t : t + 1, 2:] * window)
        return torch.cat(outputs, dim=1)

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """No tokens yet, and how many there are."""
        shape = (self.num_kv_heads, self.head_dim)
        state = no_tokens(batch_size, like, key=shape, value=shape)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, gates: Tensor
    ) -> tuple[Tensor, DecodeState]:
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        new = in_order(with_tokens(state, padding.key, key=key, value=value), "key", "value")
        new["length"] = state["length"] + lengths(key, padding.key)
        with torch.autocast(query.device.type, enabled=False):
            k, v = self.shared(new["key"]), self.shared(new["value"])
            means, mean_values = block_means(k, self.block_size), block_means(v, self.block_size)
            compressed, tokens = self.weigh(wide(query), k, means, position, gates)
            weights = F.dropout(torch.cat([compressed, tokens], dim=-1), self.weight_dropout)
            return (weights @ torch.cat([mean_values, v], dim=2)).to(query.dtype), new
