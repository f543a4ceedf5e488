"""ABC: attention with bounded-memory control (Peng et al. 2022), the fast linear form that CAB uses.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r memory slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cab import Attention, Pattern, register_attention
from cab.attention import State, without_padding
from cab.errors import UserError

BLOCK = 8
"""Tokens whose memories are formed from pairwise weights, [block, block + 1, r] of them."""

SPAN = 256
"""Tokens of the causal form that are in memory at once; the backward pass computes a span anew."""

EMPTY = -1e30
"""Logarithm of the weight of nothing: finite, so that differences of two of them are numbers."""


@register_attention("abc", patterns="NS CS NC CC", complexity="n", paper="Peng et al. 2022")
class ABCAttention(Attention):
    """softmax(q K~^T / sqrt(E)) V~ over r memory slots  (CAB, Eq. 20).

    A slot holds a weighted mean of the keys, K~ = softmax over positions of (k C_k), transposed, times k,
    and one of the values, V~, likewise with C_v. In pattern CS the memory of target t is made of positions
    up to t: the mean runs along. (The code released with CAB keeps only the last term of that running sum.)

    The state of CS is of constant size: for keys and for values, r means and the logarithms of their total
    weights. That of CC is the memory of the source, formed once. There are no attention weights over tokens
    to drop, so ``dropout`` is not used (as released).

    Args:
        num_landmarks: memory slots r of each head.

    Raises:
        ValueError: for ``num_landmarks`` below 1.
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_landmarks: int = 16,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_landmarks < 1:
            raise UserError(f"num_landmarks must be at least 1, got {num_landmarks}")
        self.num_landmarks = num_landmarks
        self.compress_k = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        self.compress_v = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        for weight in (self.compress_k, self.compress_v):
            nn.init.xavier_uniform_(weight, gain=2**-0.5)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.attend_causally(query, key, value, key_padding_mask, None)[0]
        return self.read(query, *self.memory(key, value, key_padding_mask))

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Every target's memory from its own prefix (CS) or from all keys, in the words of Eq. 20."""
        n, m = query.shape[2], key.shape[2]
        padding = key.new_zeros(key.shape[0], m, dtype=torch.bool) if key_padding_mask is None else key_padding_mask

        def mean(x: Tensor, weight: Tensor, padding: Tensor) -> Tensor:
            logits = (x @ weight).masked_fill(padding[:, None, :, None], EMPTY)
            return logits.softmax(dim=2).transpose(-2, -1) @ x.masked_fill(padding[:, None, :, None], 0.0)

        outputs = []
        for t in range(n):
            past = t + 1 if self.pattern is Pattern.CS else m
            keys = mean(key[:, :, :past], self.compress_k, padding[:, :past])
            values = mean(value[:, :, :past], self.compress_v, padding[:, :past])
            logits = query[:, :, t : t + 1] @ keys.transpose(-2, -1) * self.scale
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=2)

    # --- a memory of all keys: NS, NC, CC ----------------------------------------------------------------

    def memory(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """K~ and V~ [B, H, r, E]; zero in a row whose keys are all padding."""
        keys = _mean(key, self.compress_k, key_padding_mask)
        values = _mean(value, self.compress_v, key_padding_mask)
        return keys, values

    def read(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q K~^T / sqrt(E)) V~."""
        return F.scaled_dot_product_attention(query, keys, values)

    # --- a memory that grows with the target: CS ---------------------------------------------------------

    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, memory: State | None
    ) -> tuple[Tensor, State]:
        """Span by span, each from the memory that the spans before it left: output and the new memory."""
        if memory is None:
            memory = self.empty_memory(query.shape[0], query.device)
        if padding is not None:
            key, value = (x.masked_fill(padding[:, None, :, None], 0.0) for x in (key, value))
        pieces = [x.split(SPAN, dim=2) for x in (query, key, value)]
        masks = [None] * len(pieces[0]) if padding is None else padding.split(SPAN, dim=1)
        carry = [memory[name] for name in MEMORY]
        outputs = []
        for q, k, v, mask in zip(*pieces, masks, strict=True):
            if torch.is_grad_enabled() and len(masks) > 1:
                output, *carry = checkpoint(
                    self.span, q, k, v, mask, *carry, use_reentrant=False, preserve_rng_state=False
                )
            else:
                output, *carry = self.span(q, k, v, mask, *carry)
            outputs.append(output)
        return torch.cat(outputs, dim=2), dict(zip(MEMORY, carry, strict=True))

    def span(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        key_mass: Tensor,
        key_mean: Tensor,
        value_mass: Tensor,
        value_mean: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Output [B, H, T, E] of one span, and the masses [B, H, r] and means [B, H, r, E] after it."""
        dtype, length = query.dtype, query.shape[2]
        block = min(BLOCK, length)
        with torch.autocast(query.device.type, enabled=False):
            accurate = torch.promote_types(dtype, torch.float32)
            q, k, v = (_blocks(x.to(accurate), block) for x in (query, key, value))
            k_logits, v_logits = k @ self.compress_k.to(accurate), v @ self.compress_v.to(accurate)
            empty = _blocks(torch.ones_like(query[:, :1, :, :1], dtype=torch.bool), block, fill=False).logical_not()
            if padding is not None:
                empty = empty | _blocks(padding[:, None, :, None], block)
            k_logits, v_logits = (x.masked_fill(empty, EMPTY) for x in (k_logits, v_logits))

            k_weight, k_past, key_mass, key_mean = _running_means(k_logits, k, key_mass, key_mean)
            v_weight, v_past, value_mass, value_mean = _running_means(v_logits, v, value_mass, value_mean)
            # q_t K~_t^T: what was before the block, and its own tokens through their products with the query.
            scores = (q @ k.transpose(-2, -1)).unsqueeze(-1)
            logits = k_weight[..., 0, :] * (q @ k_past.transpose(-2, -1)) + (k_weight[..., 1:, :] * scores).sum(-2)
            slots = (logits * self.scale).softmax(dim=-1)
            tokens = (v_weight[..., 1:, :] * slots.unsqueeze(-2)).sum(-1)
            output = (slots * v_weight[..., 0, :]) @ v_past + tokens @ v
        return output.flatten(2, 3)[:, :, :length].to(dtype), key_mass, key_mean, value_mass, value_mean

    # --- decoding ----------------------------------------------------------------------------------------

    def empty_memory(self, batch_size: int, device: torch.device | str | None) -> State:
        """No token seen: weights of zero, in float32 whatever the precision of the tokens."""
        mass = torch.full((batch_size, self.num_heads, self.num_landmarks), EMPTY, device=device)
        mean = mass.new_zeros(*mass.shape, self.head_dim)
        return {"key_mass": mass, "key_mean": mean, "value_mass": mass, "value_mean": mean}

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> State:
        self._check_decoding(batch_size, key, value, key_padding_mask)
        if key is None or value is None:
            return self.empty_memory(batch_size, device or self.compress_k.device)
        key = self.split_heads(self.k_proj(without_padding(key, key_padding_mask)))
        value = self.split_heads(self.v_proj(without_padding(value, key_padding_mask)))
        keys, values = self.memory(key, value, key_padding_mask)
        return {"keys": keys, "values": values}

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        self._check_tokens(query, query_padding_mask)
        query = without_padding(query, query_padding_mask)
        q = self.split_heads(self.q_proj(query))
        if self.pattern is Pattern.CS:
            k, v = self.split_heads(self.k_proj(query)), self.split_heads(self.v_proj(query))
            heads, state = self.attend_causally(q, k, v, query_padding_mask, state)
        else:
            heads = self.read(q, state["keys"], state["values"])
        return without_padding(self.out_proj(self.merge_heads(heads)), query_padding_mask), state


MEMORY = ("key_mass", "key_mean", "value_mass", "value_mean")


def _mean(x: Tensor, weight: Tensor, padding: Tensor | None) -> Tensor:
    """softmax over positions of (x weight), transposed, times x: [B, H, M, E] to [B, H, r, E].

    It is attention with the columns of ``weight`` for queries and x for keys and values.
    """
    slots = weight.T.expand(*x.shape[:2], -1, -1)
    if padding is None:
        return F.scaled_dot_product_attention(slots, x, x, scale=1.0)
    nothing = padding.all(dim=1, keepdim=True)
    visible = (~padding | nothing)[:, None, None, :]
    mean = F.scaled_dot_product_attention(slots, x, x, attn_mask=visible, scale=1.0)
    return mean.masked_fill(nothing[:, :, None, None], 0.0)


def _blocks(x: Tensor, block: int, fill: float | bool = 0) -> Tensor:
    """[B, H, T, X] to [B, H, blocks, block, X], filled up at the right end."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % block), value=fill)
    return x.unflatten(2, (-1, block))


def _running_weights(logits: Tensor) -> Tensor:
    """Weights of the mean up to each position: [..., L, r] to [..., L targets, L, r], summing to one over L."""
    length = logits.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu(1)
    return logits.unsqueeze(-3).masked_fill(future.unsqueeze(-1), float("-inf"))


def _running_means(logits: Tensor, x: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Running weighted means of x, kept as weights within a block and one mean at the start of each block.

    Args:
        logits: logarithms of the weights, [B, H, blocks, block, r].
        x: [B, H, blocks, block, E].
        mass, mean: total weight (its logarithm) and mean of all that came before, [B, H, r] and [B, H, r, E].

    Returns:
        weights [B, H, blocks, block, 1 + block, r] of what came before the block and of its tokens; the means
        before each block [B, H, blocks, r, E]; mass and mean after the last.
    """
    block_mean = logits.softmax(dim=-2).transpose(-2, -1) @ x
    masses = torch.cat([mass.unsqueeze(2), logits.logsumexp(dim=-2)], dim=2)
    means = torch.cat([mean.unsqueeze(2), block_mean], dim=2)
    pairs = _running_weights(masses)
    prefix = torch.einsum("bhtir,bhire->bhtre", pairs.softmax(dim=-2), means)
    prefix_mass = pairs.logsumexp(dim=-2)
    within = _running_weights(torch.cat([prefix_mass[:, :, :-1].unsqueeze(-2), logits], dim=-2))
    weights = within[..., 1:, :, :].softmax(dim=-2)
    return weights, prefix[:, :, :-1], prefix_mass[:, :, -1], prefix[:, :, -1]
