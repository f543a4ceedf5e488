"""Scatterbrain (Chen et al. 2021a): softmax attention on a sparse support, Performer's features on all the rest.

Shapes: B batch, H heads, N tokens, M keys, E width of a head, r features, w window.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import dropout_factor, dropout_seed
from attentions.kernels.numerics import mask_value, recompute, upcast
from attentions.kernels.token_cache import gather_tokens
from attentions.random_features import feature_means, orthogonal_gaussians
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Even

CPU_BLOCK, DEVICE_BLOCK = 64, 512
"""Queries of one block on a CPU; elsewhere a launch costs more than keys that are computed in vain."""

Far = tuple[Tensor, Tensor]
"""Summary of keys far from a block by features: mean values [B, H, r, E] and logarithms of the sums [B, H, r]."""


@register_attention("scatterbrain", patterns="NS CS", complexity="n", paper="Chen et al. 2021a")
class ScatterbrainAttention(Attention):
    """Compute A v / A 1 with A = phi(q) phi(k) + S, the sum of a low-rank and a sparse matrix (their section 4).

    S_ij = exp(q_i k_j / sqrt(E)) - phi(q_i) phi(k_j) on the support and zero elsewhere.

    The support is a window, as in the released code's local form: w keys on either side of a token, in CS w before it.
    phi(x) = exp(W x - |x|^2 / 2) / sqrt(r) of x / E^(1/4) are Performer's features, with a row -w in W for each row w
    (released), drawn once and kept in the state_dict. In NC and CC a window has no meaning; buckets of a hash, the
    paper's other support, would have one.

    Nothing is subtracted: a token's weights are exp(q k) in the window and phi(q) phi(k) outside of it, one softmax
    over the keys of a block and, for the others before and after, over features (``kernels.exponential_features``).
    Weights are in float32 at least. ``dropout`` drops weights of the window alone (released).

    The state of CS is of constant size: keys and values of the window, and by features those before.

    Args:
        window: w. Released runs have 16 to 64.
        num_features: r, with both signs counted; even. Released runs have 16 to 64.
    """

    claims = Claims(softmax_limit=softmax_if(window=NUM_TOKENS))
    requires_right_padding = True
    has_constant_size_state = True
    weights: Tensor

    def __init__(self, *, window: int = 16, num_features: Even = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.window, self.num_features = window, num_features
        self.window_after = 0 if self.pattern is Pattern.CS else window
        half = orthogonal_gaussians(self.num_heads, num_features // 2, self.head_dim)
        self.register_buffer("weights", torch.cat([half, -half], dim=1))

    def logarithms(self, x: Tensor) -> Tensor:
        """Return log phi of x that is divided by E^(1/4) already, [..., H, N, E] to [..., H, N, r]."""
        norms = x.square().sum(dim=-1, keepdim=True) + math.log(self.num_features)
        return x @ self.weights.to(x.dtype).mT - norms / 2

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return self.read(query, key, value, padding.key, self.empty_far(len(query), upcast(query)), 0)

    def read(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, past: Far, lead: int) -> Tensor:
        """Attend block by block; the first query is key number ``lead``, and ``past`` summarizes earlier keys."""
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = upcast(query) * self.head_dim**-0.25, upcast(key) * self.head_dim**-0.25, upcast(value)
            count, num_keys = q.shape[2], k.shape[2]
            size = CPU_BLOCK if q.device.type == "cpu" else DEVICE_BLOCK
            blocks = [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
            lows = [max(0, lead + block.start - self.window) for block in blocks]
            highs = [min(num_keys, lead + block.stop + self.window_after) for block in blocks]
            far = [self.accumulated(past, k, v, hidden, [slice(*pair) for pair in pairwise([0, *lows])])]
            if self.pattern is Pattern.NS:
                rests = [slice(*pair) for pair in pairwise([*highs, num_keys])]
                far.append(self.accumulated(self.empty_far(len(q), q), k, v, hidden, rests[::-1])[::-1])
            seed, outputs = dropout_seed(self.weight_dropout), []
            for block, low, high, *summaries in zip(blocks, lows, highs, *far, strict=True):
                mask = None if hidden is None else hidden[:, low:high]
                inputs = q[:, :, block], k[:, :, low:high], v[:, :, low:high], mask, lead + block.start, low, seed
                outputs.append(recompute(self.block, *inputs, *summaries))
            return torch.cat(outputs, dim=2).to(query.dtype)

    def block(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        begin: int,
        low: int,
        seed: Tensor | None,
        *far: Far,
    ) -> Tensor:
        """Compute one softmax over keys from number ``low`` and features of far keys, for queries from ``begin``."""
        distance = torch.arange(begin, begin + q.shape[2], device=q.device)[:, None]
        distance = distance - torch.arange(low, low + k.shape[2], device=q.device)
        support = self.supports(distance)
        of_query, of_key = self.logarithms(q), self.logarithms(k)
        logits = torch.where(support, q @ k.mT, _log_products(of_query, of_key))
        masked = distance < 0 if self.pattern is Pattern.CS else torch.zeros_like(support)
        if hidden is not None:
            masked = masked | hidden[:, None, None]
        by_features = [of_query + log_mass.unsqueeze(2) for _, log_mass in far]
        weights = torch.cat([logits.masked_fill(masked, mask_value(q.dtype)), *by_features], dim=3).softmax(dim=3)
        factor = dropout_factor(logits, self.dropout, seed, begin)
        if factor is not None:
            weights = weights * F.pad(factor.masked_fill(~support, 1.0), (0, weights.shape[3] - k.shape[2]), value=1.0)
        return weights @ torch.cat([v, *(means for means, _ in far)], dim=2)

    def supports(self, distance: Tensor) -> Tensor:
        """Return whether a key at that distance before the query is in its window."""
        return (distance <= self.window) & (distance >= -self.window_after)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys = (self.logarithms(x * self.head_dim**-0.25) for x in (query, key))
        logs = (queries.unsqueeze(2) + keys.unsqueeze(1)).logsumexp(dim=-1)  # of phi(q) phi(k)
        position = torch.arange(query.shape[1], device=query.device)
        distance = position[:, None] - position
        logs = torch.where(self.supports(distance), query @ key.mT * self.scale, logs)
        if self.pattern is Pattern.CS:
            logs = logs.masked_fill(distance < 0, -torch.inf)
        return logs.softmax(dim=-1) @ value

    def empty_far(self, batch_size: int, like: Tensor) -> Far:
        """Return the summary of no keys."""
        means = like.new_zeros(batch_size, self.num_heads, self.num_features, self.head_dim)
        return means, torch.full_like(means[..., 0], mask_value(like.dtype))

    def accumulated(self, far: Far, k: Tensor, v: Tensor, hidden: Tensor | None, parts: list[slice]) -> list[Far]:
        """Return, for each part, the summary of ``far`` and of the keys of all parts up to it."""
        summaries = []
        for keys in parts:
            if keys.start < keys.stop:
                mask = None if hidden is None else hidden[:, keys]
                far = _joined(far, self.summary(k[:, :, keys], v[:, :, keys], mask))
            summaries.append(far)
        return summaries

    def summary(self, k: Tensor, v: Tensor, hidden: Tensor | None) -> Far:
        """Return the mean value of each feature and the logarithm of its sum over keys [B, H, m, E]."""
        means, log_mass = feature_means(k, v, self.weights, hidden)
        return means, log_mass - math.log(self.num_features) / 2

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        means, log_mass = self.empty_far(batch_size, upcast(like))
        window = means.new_zeros(batch_size, self.num_heads, self.window, self.head_dim)
        hidden = torch.ones(batch_size, self.window, dtype=torch.bool, device=like.device)
        return {"means": means, "log_mass": log_mass, "key": window, "value": window, "hidden": hidden}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        far = state["means"], state["log_mass"]
        new = torch.zeros(len(query), query.shape[2], dtype=torch.bool, device=query.device)
        hidden = torch.cat([state["hidden"], new if padding.key is None else padding.key], dim=1)
        keys, values = (torch.cat([state[name], upcast(x)], dim=2) for name, x in (("key", key), ("value", value)))
        output = self.read(query, keys, values, hidden, far, self.window)
        # As many as came leave the window.
        count = lengths(query, padding.key).unsqueeze(1)
        stays = torch.arange(hidden.shape[1], device=query.device) >= count
        index = count + torch.arange(self.window, device=query.device)
        with torch.autocast(query.device.type, enabled=False):
            means, log_mass = _joined(far, self.summary(keys * self.head_dim**-0.25, values, hidden | stays))
        window = {"key": gather_tokens(keys, index), "value": gather_tokens(values, index)}
        return output, {"means": means, "log_mass": log_mass, **window, "hidden": hidden.gather(1, index)}


def _joined(a: Far, b: Far) -> Far:
    """Return the summary of the keys of both."""
    log_mass = torch.logaddexp(a[1], b[1])
    mean_a, mean_b = ((mass - log_mass).exp().unsqueeze(-1) * means for means, mass in (a, b))
    return mean_a + mean_b, log_mass


def _log_products(log_q: Tensor, log_k: Tensor) -> Tensor:
    """Return log sum_r exp(left_ir + right_jr), [..., N, r] and [..., M, r] to [..., N, M]; -inf on underflow."""
    max_q, max_k = log_q.amax(dim=-1, keepdim=True), log_k.amax(dim=-1, keepdim=True)
    products = (log_q - max_q).exp() @ (log_k - max_k).exp().mT
    smallest = torch.finfo(products.dtype).tiny
    logs = products.clamp(min=smallest).log() + max_q + max_k.mT
    return logs.masked_fill(products < smallest, mask_value(products.dtype))
