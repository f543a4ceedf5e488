"""Forgetting attention (FoX, Lin et al. 2025): softmax attention whose logits fall with what was forgotten since.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import masked, sums_by_targets
from attentions.kernels.fla_kernels import WIDTHS
from attentions.kernels.numerics import as_factor, masked_softmax, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, masked_tokens
from cab import Attention, DecodeState, PaddingMasks, register_attention
from cab.attention import CommonArguments, Decoded
from cab.flash_linear_attention import call, declines_few, fla_backend
from cab.kernels import Operation


def _by_targets(
    query: Tensor, key: Tensor, value: Tensor, kept: Tensor, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """Compute causal attention of heads [B, H, N, E] whose logits fall by the sums of ``kept`` [B, H, N]."""
    q, k, v, total = upcast(query), upcast(key), as_factor(value), kept.double().cumsum(dim=-1)

    def weigh(targets: slice, num_keys: int) -> Tensor:
        # F_t is the same for all keys: softmax does not see it.
        since = total[:, :, targets.start, None] - total[:, :, :num_keys]
        logits = q[:, :, targets] @ k[:, :, :num_keys].mT * scale + since.to(q.dtype).unsqueeze(2)
        return masked_softmax(logits, masked(targets, num_keys, None, is_causal=True, like=q))

    return sums_by_targets(weigh, q, v, is_causal=True, dropout=dropout).to(query.dtype)


def _by_fla(query: Tensor, key: Tensor, value: Tensor, kept: Tensor, *, scale: float, **_: float) -> Tensor:
    inputs = {"q": query, "k": key, "v": value, "g": kept}
    inputs = {name: x.transpose(1, 2) for name, x in inputs.items()}
    result: Tensor = call("ops.forgetting_attn.parallel_forgetting_attn", **inputs, scale=scale).transpose(1, 2)
    return result


def _refuses(query: Tensor, *_: Tensor, dropout: float, **__: float) -> str | None:
    if dropout:
        return "dropout"
    return None if query.shape[-1] in WIDTHS else f"heads of {query.shape[-1]} features"


LONGEST = 2**15
"""Tokens whose gates flash-linear-attention adds in float32: with gates of 1/2, logits of neighbors are off by 0.01."""


def _declines(query: Tensor, *_: Tensor, **__: float) -> str | None:
    return f"more than {LONGEST} tokens" if query.shape[2] > LONGEST else declines_few(query)


forgetting_attention = Operation("forgetting_attention", _by_targets, fla_backend(_by_fla, _refuses, _declines))


@register_attention("forgetting", patterns="CS", complexity="n^2", paper="Lin et al. 2025")
class ForgettingAttention(Attention):
    """Compute softmax_j(q_t k_j / sqrt(E) + F_t - F_j) v_j over j <= t (Eq. 9), with cumulative sums F of log f.

    The gate f_t = sigmoid(w x_t + b), one a head, is how much a head keeps of the past at token t; with f = 1 it is
    softmax attention. F is summed in float64 and taken from its value at the first target of a block, so that no
    difference of large numbers is rounded; flash-linear-attention, up to LONGEST tokens, adds in float32. Decoding
    keeps keys, values and F of every token.
    """

    requires_right_padding = True

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.forget = nn.Linear(self.embed_dim, self.num_heads)

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Return the logarithms of the gate, [B, H, N]."""
        return {"kept": F.logsigmoid(upcast(self.forget(x))).transpose(1, 2)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks, kept: Tensor) -> Tensor:
        # With the padding on the right, the causal order alone hides it from every real target.
        with torch.autocast(query.device.type, enabled=False):
            form = forgetting_attention.rounding_to(query.dtype)
            return form(query, key, value, kept, scale=self.scale, dropout=self.weight_dropout)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, kept: Tensor) -> Tensor:
        total = kept.cumsum(dim=-1)
        logits = query @ key.mT * self.scale + total.unsqueeze(2) - total.unsqueeze(1)
        later = torch.ones(logits.shape[1:], dtype=torch.bool, device=logits.device).triu(1)
        return logits.masked_fill(later, -torch.inf).softmax(dim=-1) @ value

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state: ``total`` is F of each token, ``last`` that of the last."""
        shape = (self.num_heads, self.head_dim)
        state = empty_cache(batch_size, like, key=shape, value=shape)
        total = like.new_empty(batch_size, self.num_heads, 0, dtype=torch.float64)
        return {**state, "total": total, "last": total.new_zeros(batch_size, self.num_heads)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, kept: Tensor
    ) -> Decoded:
        if padding.key is not None:
            kept = kept.masked_fill(padding.key.unsqueeze(1), 0.0)
        total = state["last"].unsqueeze(-1) + kept.double().cumsum(dim=-1)
        new = append_tokens(state, padding.key, key=key, value=value, total=total)
        new["last"] = total[:, :, -1]
        with torch.autocast(query.device.type, enabled=False):
            q = upcast(query)
            since = (new["last"].unsqueeze(-1) - new["total"]).to(q.dtype).unsqueeze(2)
            logits = q @ upcast(new["key"]).mT * self.scale + since
            weights = F.dropout(masked_softmax(logits, masked_tokens(new, query.shape[2])), self.weight_dropout)
            return (weights @ upcast(new["value"])).to(query.dtype), new
