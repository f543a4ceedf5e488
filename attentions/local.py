"""Local attention (Luong et al. 2015): every token attends to the tokens around it."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from attentions.kernels.token_cache import gather_tokens
from attentions.kernels.window_attention import Window, window_attention
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive


@register_attention("local", patterns="NS CS", complexity="n", paper="Luong et al. 2015")
class LocalAttention(Attention):
    """Compute softmax(q_i K_w^T / sqrt(E)) V_w over the window of token i (CAB, Eq. 10).

    A key counts when it is in the window, inside the sequence and not padding. Decoding keeps the keys and
    values of one window: a state of constant size.

    Args:
        window_size: w.
        extent: what w counts. ``total``, as the paper has it: NS w keys in all, from w // 2 before the token
            on; CS the w // 2 (at least 1) keys that end with it. ``per_side``, as the published runs had it:
            NS w keys on each side and the token, 2 w + 1; CS the w keys that end with it.
    """

    claims = Claims(softmax_limit=softmax_if(window_size=NUM_TOKENS, extent="per_side"))
    requires_right_padding = True
    selects_tokens = True
    has_constant_size_state = True

    def __init__(
        self,
        *,
        window_size: Positive = 16,
        extent: Literal["total", "per_side"] = "total",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        total = extent == "total"
        if self.pattern is Pattern.CS:
            self.window = Window(max(window_size // 2, 1) - 1 if total else window_size - 1, 0)
        else:
            left = window_size // 2 if total else window_size
            self.window = Window(left, window_size - 1 - left if total else window_size)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        # In the causal pattern padding is on the right, where no real target looks.
        hidden = None if self.pattern is Pattern.CS else padding.key
        return self.attend_window(query, key, value, self.window, hidden)

    def attend_window(self, query: Tensor, key: Tensor, value: Tensor, window: Window, hidden: Tensor | None) -> Tensor:
        return window_attention(query, key, value, window, key_padding_mask=hidden, dropout=self.weight_dropout)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.mT * self.scale
        distance = torch.arange(key.shape[1]) - torch.arange(query.shape[1])[:, None]
        outside = (distance < -self.window.left) | (distance > self.window.right)
        return logits.masked_fill(outside, -torch.inf).softmax(dim=-1) @ value

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        past = like.new_zeros(batch_size, self.num_heads, self.window.left, self.head_dim)
        return {"key": past, "value": past, "hidden": past.new_ones(batch_size, self.window.left, dtype=torch.bool)}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        past, count = self.window.left, lengths(key, padding.key).unsqueeze(1)
        new = torch.arange(key.shape[2], device=key.device) >= count
        key, value = torch.cat([state["key"], key], dim=2), torch.cat([state["value"], value], dim=2)
        hidden = torch.cat([state["hidden"], new], dim=1)
        output = self.attend_window(query, key, value, self.window._replace(offset=past), hidden)
        # Each row keeps the window that ends with its last real token.
        index = count + torch.arange(past, device=key.device)
        cache = {"key": gather_tokens(key, index), "value": gather_tokens(value, index)}
        return output, {**cache, "hidden": hidden.gather(1, index)}
