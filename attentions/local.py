"""Local attention (Luong et al. 2015): every token attends to the tokens around it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.windowed import Window, windowed_attention
from cab import Attention, Pattern, register_attention
from cab.attention import Padding, SoftmaxLimit, State
from cab.errors import UserError
from cab.input_checks import check_decoding, check_tokens
from cab.padding import compact_rows, take_rows, without_padding


@register_attention("local", patterns="NS CS", complexity="n", paper="Luong et al. 2015")
class LocalAttention(Attention):
    """softmax(q_i K_w^T / sqrt(E)) V_w over the window of token i  (CAB, Eq. 10).

    A key counts when it is in the window, inside the sequence and not padding. Decoding keeps the keys and
    values of one window: a state of constant size.

    Args:
        window_size: w.
        extent: what w counts. ``total``, as the paper has it: NS w keys in all, from w // 2 before the token
            on; CS the w // 2 (at least 1) keys that end with it. ``per_side``, as the published runs had it:
            NS w keys on each side and the token, 2 w + 1; CS the w keys that end with it.

    Raises:
        ValueError: for a window below 1 or an unknown extent.
    """

    compacts_padding = True

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        window_size: int = 16,
        extent: str = "total",
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if window_size < 1:
            raise UserError(f"window_size must be at least 1, got {window_size}")
        if extent not in ("total", "per_side"):
            raise UserError(f"extent must be 'total' or 'per_side', got '{extent}'")
        total = extent == "total"
        if self.pattern is Pattern.CS:
            self.window = Window(max(window_size // 2, 1) - 1 if total else window_size - 1, 0)
        else:
            left = window_size // 2 if total else window_size
            self.window = Window(left, window_size - 1 - left if total else window_size)

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        """A window over the whole sequence."""
        return SoftmaxLimit(({"window_size": num_tokens, "extent": "per_side"},))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        key_padding_mask = padding.key
        # Padding is on the right, where no real target of the causal pattern looks.
        mask = None if self.pattern is Pattern.CS else key_padding_mask
        return self._attend(query, key, value, self.window, mask)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, window: Window, hidden: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return windowed_attention(query, key, value, window, key_padding_mask=hidden, dropout=dropout)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """One target at a time: softmax over the real keys of its window, and the weighted mean of their values."""
        output = torch.zeros_like(query)
        for row in range(query.shape[0]):
            for i in range(query.shape[2]):
                seen = torch.zeros_like(key[row, 0, :, 0], dtype=torch.bool)
                seen[max(0, i - self.window.left) : i + self.window.right + 1] = True
                if key_padding_mask is not None:
                    seen &= ~key_padding_mask[row]
                if seen.any():
                    logits = torch.einsum("he,hme->hm", query[row, :, i], key[row, :, seen]) * self.scale
                    weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
                    output[row, :, i] = torch.einsum("hm,hme->he", weights, value[row, :, seen])
        return output

    # --- decoding ---------------------------------------------------------------------------------------

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """Keys and values of the tokens that the next one sees, empty so far."""
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        weight = self.k_proj.weight
        shape = (batch_size, self.num_heads, self.window.left, self.head_dim)
        past = torch.zeros(shape, device=device or weight.device, dtype=dtype or weight.dtype)
        return {"key": past, "value": past, "hidden": past.new_ones(batch_size, self.window.left, dtype=torch.bool)}

    def state_bytes(self, num_tokens: int) -> int:  # noqa: ARG002
        return sum(tensor.nbytes for tensor in self.init_state(1).values())

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        check_tokens(query, query_padding_mask, self.embed_dim)
        tokens, mask, order = compact_rows(without_padding(query, query_padding_mask), query_padding_mask)
        padding = tokens.new_zeros(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
        hidden = torch.cat([state["hidden"], padding], dim=1)
        key, value = (
            torch.cat([state[name], self.split_heads(project(tokens))], dim=2)
            for name, project in (("key", self.k_proj), ("value", self.v_proj))
        )
        past = self.window.left
        query = self.split_heads(self.q_proj(tokens))
        output = self._attend(query, key, value, self.window._replace(offset=past), hidden)
        output = without_padding(self.out_proj(self.merge_heads(output)), mask)
        # Each row keeps the window that ends with its last real token.
        kept = (~padding).sum(dim=1, keepdim=True) + torch.arange(past, device=tokens.device)
        index = kept[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
        state = {"key": key.gather(2, index), "value": value.gather(2, index), "hidden": hidden.gather(1, kept)}
        return (output if order is None else take_rows(output, order.argsort(dim=1))), state
