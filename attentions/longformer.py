"""Longformer (Beltagy et al. 2020): a sliding window, and a few tokens that see and are seen by all.

Shapes: B batch, H heads, N tokens, D width, E width of a head, g global tokens, d dilation.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.sparse import SparseAttention
from attentions.kernels.chunks import by_length
from attentions.kernels.window_attention import Slots, Window, window_attention
from cab import PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.registry.options import Positive


@register_attention("longformer", patterns="NS CS", complexity="n", paper="Beltagy et al. 2020")
class LongformerAttention(SparseAttention):
    """Compute softmax attention over ``window`` tokens per side and the first g tokens, which are global (section 3.1).

    A global token attends to all, in NS by projections of its own, which begin as copies of the others. In CS a token
    sees the window before it, and of the global ones those that are not later; the global tokens' own rows are causal
    too. (The released code stores an ``autoregressive`` option and does not use it.)

    Decoding keeps the window and the global tokens: a state of constant size.

    Args:
        window: tokens on each side (the released configurations count both: 512 there is 256 here).
        dilation: distance d between the tokens of a window.
        num_globals: g.
        share_global: no projections of their own for the global tokens, which are 3 D^2 parameters.
    """

    # Three more projections, as published: 17% of GPT-2.
    claims = Claims(softmax_limit=softmax_if(window=NUM_TOKENS, share_global=True), parameter_budget=0.2)
    has_constant_size_state = True

    def __init__(
        self,
        *,
        window: int = 256,
        dilation: Positive = 1,
        num_globals: int = 1,
        share_global: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.window, self.dilation, self.num_globals = window, dilation, num_globals
        self.max_kept = window * dilation + num_globals
        self.has_own = self.pattern is Pattern.NS and num_globals > 0 and not share_global
        if self.has_own:
            for name in ("q", "k", "v"):
                linear = nn.Linear(self.embed_dim, self.embed_dim)
                linear.load_state_dict(getattr(self, f"{name}_proj").state_dict())
                self.add_module(f"global_{name}_proj", linear)

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Compute queries of the global tokens, and the keys and values that they attend to, [B, N, D]."""
        if not self.has_own:
            return {}
        projected = {f"global_{name}": self.get_submodule(f"global_{name}_proj")(x) for name in ("k", "v")}
        return projected | {"global_q": self.get_submodule("global_q_proj")(x[:, : self.num_globals])}

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        distance = query - key
        seen = (distance.abs() <= self.window * self.dilation) & (distance % self.dilation == 0)
        seen = seen | (key < self.num_globals)
        return seen & (distance >= 0) if self.pattern is Pattern.CS else seen | (query < self.num_globals)

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return (key >= length - self.window * self.dilation) | (key < self.num_globals)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **projected: Tensor) -> Tensor:
        heads = [query, key, value, *(self.split_heads(projected[name]) for name in sorted(projected))]
        mask = None if self.pattern is Pattern.CS else padding.key
        return by_length(self.attend_visible, heads, mask, masks=True)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **projected: Tensor) -> Tensor:
        output = super().reference(query, key, value)
        if not projected:
            return output
        k, q, v = (self.split_heads(projected[name][None])[0] for name in sorted(projected))
        return torch.cat([(q @ k.mT * self.scale).softmax(dim=-1) @ v, output[:, len(projected["global_q"]) :]], dim=1)

    def attend_visible(
        self, query: Tensor, key: Tensor, value: Tensor, *projected: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        """Attend to windows and global tokens; ``projected`` are heads of the global tokens."""
        count, is_causal = min(self.num_globals, query.shape[2]), self.pattern is Pattern.CS
        output = self.in_windows(query, key, value, hidden)
        if not count:
            return output
        if is_causal:
            queries, keys, values = (x[:, :, :count] for x in (query, key, value))
        else:
            keys, queries, values = projected or (key, query[:, :, :count], value)
        seen = None
        if hidden is not None:  # a row of padding alone sees all, so that no weight is NaN
            seen = (~hidden | hidden.all(dim=1, keepdim=True))[:, None, None]
        globals_ = F.scaled_dot_product_attention(queries, keys, values, seen, self.weight_dropout, is_causal)
        return torch.cat([globals_, output[:, :, count:]], dim=2)

    def in_windows(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Attend to the window and the global tokens; a dilation d splits the sequence into d interleaved ones."""
        batch, length, steps = len(query), query.shape[2], self.dilation
        slots = [x[:, :, : self.num_globals].repeat(steps, 1, 1, 1) for x in (key, value)]
        position = torch.arange(-(-length // steps) * steps, device=query.device).view(-1, steps).T
        hidden = ((position < self.num_globals) | (position >= length)).repeat_interleave(batch, dim=0)
        if padding is not None:
            filled_padding = F.pad(padding, (0, position.numel() - length))
            hidden = hidden | filled_padding.unflatten(1, (-1, steps)).permute(2, 0, 1).flatten(0, 1)
        # Where a global token is padding, so are all that have a window.
        filled = (F.pad(x, (0, 0, 0, position.numel() - length)) for x in (query, key, value))
        q, k, v = (x.unflatten(2, (-1, steps)).permute(3, 0, 1, 2, 4).flatten(0, 1) for x in filled)
        output = window_attention(
            q,
            k,
            v,
            Window(self.window, 0 if self.pattern is Pattern.CS else self.window),
            slots=Slots(slots[0], slots[1]) if self.num_globals else None,
            key_padding_mask=hidden,
            dropout=self.weight_dropout,
        )
        return output.unflatten(0, (steps, batch)).permute(1, 2, 3, 0, 4).flatten(2, 3)[:, :, :length]
