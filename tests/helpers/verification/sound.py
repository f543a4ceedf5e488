"""Attentions without defects, unlike this project's own: none of them may be blamed for anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import NEVER, future


class PlainAverage(nn.Module):
    """A module of its own that knows nothing of the project: the mean of the tokens (so far, in CS)."""

    def __init__(self, pattern, embed_dim):
        super().__init__()
        self.is_causal = pattern == "CS"
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, *, query_padding_mask=None, key_padding_mask=None):
        padding = key_padding_mask if key_padding_mask is not None else query_padding_mask
        weights = query.new_ones(query.shape[:2])
        if padding is not None:
            query, weights = query.masked_fill(padding[..., None], 0.0), weights.masked_fill(padding, 0.0)
        values = self.value(query) * weights[..., None]
        if self.is_causal:
            return values.cumsum(1) / weights.cumsum(1).clamp_min(1.0)[..., None]
        return (values.sum(1, keepdim=True) / weights.sum(1).clamp_min(1.0)[:, None, None]).expand_as(values)


class Mapped(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(embed_dim, embed_dim) for _ in range(3))


class PlainCross(Mapped):
    """Cross attention in one head, with masks as PyTorch's own modules take them; any options in its constructor."""

    def __init__(self, **options):
        super().__init__(options["embed_dim"])

    def forward(self, query, key=None, value=None, *, query_padding_mask=None, key_padding_mask=None):
        if query_padding_mask is not None:
            query = query.masked_fill(query_padding_mask[..., None], 0.0)
        visible = None
        if key_padding_mask is not None:
            key, value = (x.masked_fill(key_padding_mask[..., None], 0.0) for x in (key, value))
            visible = ~key_padding_mask[:, None] | key_padding_mask.all(1)[:, None, None]
        q, k, v = (linear(x) for linear, x in zip(self.maps, (query, key, value), strict=True))
        return F.scaled_dot_product_attention(q, k, v, visible)


class FixedWidth(PlainAverage):
    """Of one width and one pattern."""

    embed_dim = 20

    def __init__(self):
        super().__init__("CS", self.embed_dim)


class InsideBfloat16(Mapped):
    """Causal softmax attention that computes in bfloat16 whatever it is given, as many GPU kernels do."""

    internal_dtype = torch.bfloat16

    def forward(self, query, *, key_padding_mask=None, **_same):
        if key_padding_mask is not None:
            query = query.masked_fill(key_padding_mask[..., None], 0.0)
        q, k, v = (linear(query).bfloat16() for linear in self.maps)
        hidden = future(query.shape[1])
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None]
        hidden = hidden & ~torch.eye(query.shape[1], dtype=torch.bool)
        logits = (q @ k.mT * query.shape[-1] ** -0.5).masked_fill(hidden, NEVER)
        return (logits.softmax(-1) @ v).to(query.dtype)


class CachedAverage(PlainAverage):
    """The same as a causal mean with its own decoding, two tensors of state."""

    def init_state(self, batch_size):
        weight = self.value.weight
        return {"sum": weight.new_zeros(batch_size, weight.shape[0]), "count": weight.new_zeros(batch_size, 1)}

    def step(self, query_t, state, *, query_padding_mask=None):
        token = query_t.reshape(query_t.shape[0], -1)
        real = torch.ones_like(state["count"])
        if query_padding_mask is not None:
            real = (~query_padding_mask).reshape(-1, 1).to(token.dtype)
            token = token.masked_fill(real == 0.0, 0.0)
        state = {"sum": state["sum"] + real * self.value(token), "count": state["count"] + real}
        return (state["sum"] / state["count"].clamp_min(1.0)).reshape(query_t.shape), state


class TokensFirst(nn.Module):
    """The causal mean of tokens [N, B, D]."""

    batch_first = False

    def __init__(self, embed_dim):
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        return self.value(x).cumsum(0) / torch.arange(1, 1 + len(x)).to(x)[:, None, None]


class TokensFirstMasked(Mapped):
    """Attention with the layout and masks of ``torch.nn.MultiheadAttention``, which give finite values everywhere."""

    batch_first = False

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        hidden = attn_mask[None]
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None]
        q, k, v = (linear(x).transpose(0, 1) for linear, x in zip(self.maps, (query, key, value), strict=True))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1)
        return (weights @ v).transpose(0, 1), weights


class Outputs(NamedTuple):
    output: torch.Tensor
    weights: torch.Tensor | None = None


@dataclass
class Structure:
    output: torch.Tensor
    weights: torch.Tensor | None = None


class Contained(TokensFirst):
    """The mean of tokens [B, N, D], in a container, of which the first value is the output."""

    batch_first = True
    container = Outputs

    def forward(self, x):
        return self.container(output=super().forward(x.transpose(0, 1)).transpose(0, 1), weights=None)
