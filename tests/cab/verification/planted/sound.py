"""Attentions without defects, unlike this project's own: none of them may be blamed for anything."""

import torch
from torch import nn
from torch.nn import functional as F


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
