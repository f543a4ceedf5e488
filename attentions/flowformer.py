"""Flowformer (Wu et al. 2022): attention as a flow from sources to sinks that is conserved.

Shapes: B batch, H heads, N targets (sinks), M keys (sources), E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.linearized import mask_fill
from attentions.kernels.numerics import mask_value, upcast
from attentions.kernels.recurrence import recurrence
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.padding import lengths

EPSILON = 1e-6
"""Added to both factors of a flow, as released."""

CLAMP = 1.0
"""Largest absolute O', as released."""


@register_attention("flowformer", patterns="NS CS NC", complexity="n", paper="Wu et al. 2022")
class FlowAttention(Attention):
    """Compute sigmoid(I'_i N/M) (q_i / I_i) sum_j k_j (M softmax_j(O'_j) v_j), q and k sigmoids (Eq. 4 to 7).

    A sink takes in I_i = q_i sum_j k_j, a source gives out O_j = k_j sum_i q_i. With the other side's flow made one,
    these are I'_i = q_i sum_j k_j / O_j and O'_j = k_j sum_i q_i / I_i: how much a sink is allotted, and how sources
    compete. In CS all sums run along and are means over the tokens so far; a source's weight is fixed where it stands,
    so that this is another function than NS of the prefix. Its state is of constant size.

    In NC the sums are over all targets, which have to be given together. That is why there is no CC: the published one
    is this function, in which every target changes every other (and no exact one is linear). ``dropout`` is not used.
    O' is clamped to [-1, 1], as released. It is 1 in the mean where N = M, so that much of the competition is flat.
    """

    has_constant_size_state = True

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if self.pattern is Pattern.CS:
            return super().attend(query, key, value, padding)
        with torch.autocast(query.device.type, enabled=False):
            q, k = mask_fill(upcast(query).sigmoid(), padding.query), mask_fill(upcast(key).sigmoid(), padding.key)
            sinks, sources = (
                lengths(x, mask).clamp(min=1).to(q.dtype)[:, None, None, None]
                for x, mask in ((q, padding.query), (k, padding.key))
            )
            incoming, outgoing = _flow(q, k.sum(dim=2, keepdim=True)), _flow(k, q.sum(dim=2, keepdim=True))
            conserved = _flow(q, (k / outgoing).sum(dim=2, keepdim=True))
            logits = _flow(k, (q / incoming).sum(dim=2, keepdim=True)).clamp(-CLAMP, CLAMP)
            share = mask_fill(logits, padding.key, mask_value(q.dtype)).softmax(dim=2) * sources
            sums = k.mT @ (share * upcast(value))
            return ((q / incoming) @ sums * (conserved * sinks / sources).sigmoid()).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = query.sigmoid(), key.sigmoid()
        if self.pattern is Pattern.CS:
            return self.causal_reference(q, k, value)
        e = EPSILON
        incoming = ((q + e) * (k.sum(dim=1, keepdim=True) + e)).sum(dim=-1, keepdim=True)
        outgoing = ((k + e) * (q.sum(dim=1, keepdim=True) + e)).sum(dim=-1, keepdim=True)
        conserved = ((q + e) * ((k / outgoing).sum(dim=1, keepdim=True) + e)).sum(dim=-1, keepdim=True)
        competing = ((k + e) * ((q / incoming).sum(dim=1, keepdim=True) + e)).sum(dim=-1, keepdim=True)
        share = competing.clamp(-CLAMP, CLAMP).softmax(dim=1) * k.shape[1]
        weights = (q / incoming) @ k.mT * share.mT
        return (conserved * q.shape[1] / k.shape[1]).sigmoid() * (weights @ value)

    def causal_reference(self, q: Tensor, k: Tensor, value: Tensor) -> Tensor:
        """Compute each target from the sums up to it."""
        e, outputs, sinks, sources, logits = EPSILON, [], [], [], []
        for t in range(q.shape[1]):
            n, seen = t + 1, slice(0, t + 1)
            incoming = ((q[:, t] + e) * (k[:, seen].sum(dim=1) + e)).sum(dim=-1, keepdim=True) / n
            outgoing = ((k[:, t] + e) * (q[:, seen].sum(dim=1) + e)).sum(dim=-1, keepdim=True) / n
            sinks.append(q[:, t] / incoming)
            sources.append(k[:, t] / outgoing)
            conserved = ((q[:, t] + e) * (sum(sources) + e)).sum(dim=-1, keepdim=True) / n
            competing = ((k[:, t] + e) * (sum(sinks) + e)).sum(dim=-1, keepdim=True) / n
            logits.append(competing.clamp(-CLAMP, CLAMP))
            written = torch.stack(logits, dim=1)
            shares = [written[:, : j + 1].softmax(dim=1)[:, j] * (j + 1) for j in range(n)]
            weights = (sinks[t].unsqueeze(1) @ k[:, seen].mT / n) * torch.stack(shares, dim=2)
            outputs.append(conserved.sigmoid().unsqueeze(1) * (weights @ value[:, seen]))
        return torch.cat(outputs, dim=1)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return zero sums of sinks, sources and their flows [B, H, 1, E], of competition weights and of values."""
        zeros = upcast(like.new_zeros(batch_size, self.num_heads, 1, self.head_dim))
        state = dict.fromkeys(("sinks", "sources", "sink_flow", "source_flow"), zeros)
        sums = zeros.new_zeros(batch_size, self.num_heads, self.head_dim, self.head_dim)
        length = zeros.new_zeros(batch_size, dtype=torch.long)
        return {**state, "mass": zeros[..., :1], "values": sums, "length": length}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            q, k = (mask_fill(upcast(x).sigmoid(), padding.key) for x in (query, key))
            position = torch.arange(1, q.shape[2] + 1, device=q.device)
            count = (state["length"].unsqueeze(1) + position)[:, None, :, None].to(q.dtype)

            def running(name: str, x: Tensor) -> Tensor:
                return state[name].to(x.dtype) + x.cumsum(dim=2)

            sums = {"sinks": running("sinks", q), "sources": running("sources", k)}
            q_share, k_share = q * count / _flow(q, sums["sources"]), k * count / _flow(k, sums["sinks"])
            sums |= {"sink_flow": running("sink_flow", q_share), "source_flow": running("source_flow", k_share)}
            conserved = _flow(q, sums["source_flow"]) / count
            weight = mask_fill((_flow(k, sums["sink_flow"]) / count).clamp(-CLAMP, CLAMP).exp(), padding.key)
            sums["mass"] = running("mass", weight)
            # A row that holds nothing yet, all of it padding, has no mass to divide by.
            written = upcast(value) * (weight * count / sums["mass"].clamp(min=torch.finfo(q.dtype).tiny))
            output, values = recurrence(q_share / count, k, written, None, state["values"].to(q.dtype))
            new = {name: x[:, :, -1:] for name, x in sums.items()}
            new |= {"values": values, "length": state["length"] + lengths(query, padding.key)}
            return (output * conserved.sigmoid()).to(query.dtype), new


def _flow(x: Tensor, total: Tensor) -> Tensor:
    """Return x . total of each token, [B, H, N, 1]."""
    return ((x + EPSILON) * (total + EPSILON)).sum(dim=-1, keepdim=True)
