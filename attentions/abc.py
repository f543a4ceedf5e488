"""ABC: attention with bounded-memory control (Peng et al. 2022), the fast linear form that CAB uses.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r memory slots.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.causal_abc import causal_abc
from attentions.kernels.numerics import mask_value, once_differentiable, upcast
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.registry.options import Positive


@register_attention("abc", patterns="NS CS NC CC", complexity="n", paper="Peng et al. 2022")
class ABCAttention(Attention):
    """Compute softmax(q K~^T / sqrt(E)) V~ over r memory slots (CAB, Eq. 20).

    A slot holds a weighted mean of the keys, K~ = softmax over positions of (k C_k), transposed, times k,
    and one of the values, V~, likewise with C_v. In pattern CS the memory of target t is made of positions
    up to t: it is a running mean. (The code released with CAB keeps only the last term of that running sum.)

    The state of CS is of constant size: for keys and for values, r means and the logarithms of their total
    weights. That of CC is the memory of the source, formed once. ``dropout`` is not used (as released).

    Args:
        num_landmarks: memory slots r of each head.
    """

    has_constant_size_state = True

    def __init__(self, *, num_landmarks: Positive = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS  # so that a row begins with a token
        self.num_landmarks = num_landmarks
        self.compress_k = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        self.compress_v = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        for weight in (self.compress_k, self.compress_v):
            nn.init.xavier_uniform_(weight, gain=2**-0.5)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute Eq. 20 with the memory of every target: of its own prefix in CS, else of all keys."""
        n, m = query.shape[1], key.shape[1]
        outputs = []
        for t in range(n):
            seen = t + 1 if self.pattern is Pattern.CS else m
            k, v = key[:, :seen], value[:, :seen]
            keys = (k @ self.compress_k).softmax(dim=1).mT @ k
            values = (v @ self.compress_v).softmax(dim=1).mT @ v
            outputs.append((query[:, t : t + 1] @ keys.mT * self.scale).softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=1)

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return K~ and V~ [B, H, r, E], zero for a sequence that is all padding."""
        with torch.autocast(key.device.type, enabled=False):
            keys = WeightedMeans.apply(upcast(key), upcast(self.compress_k), padding.key)
            values = WeightedMeans.apply(upcast(value), upcast(self.compress_v), padding.key)
        return {"keys": keys.to(key.dtype), "values": values.to(value.dtype)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        return F.scaled_dot_product_attention(query, state["keys"], state["values"]), state

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the logarithms of masses [B, 2, H, r] and the means [B, 2, H, r, E] of no keys and values."""
        shape = (batch_size, 2, self.num_heads, self.num_landmarks)
        mass = like.new_full(shape, mask_value(), dtype=torch.float64)
        return {"mass": mass, "mean": upcast(like.new_zeros(*shape, self.head_dim))}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        memory = (state[name].transpose(0, 1) for name in ("mass", "mean"))
        compress = torch.stack([self.compress_k, self.compress_v])
        output, mass, mean = causal_abc(query, key, value, compress, padding.key, *memory)
        return output, {"mass": mass.transpose(0, 1), "mean": mean.transpose(0, 1)}


class WeightedMeans(torch.autograd.Function):
    """Compute softmax over positions of (x weight), transposed, times x: [B, H, M, E] to [B, H, r, E].

    The hand-written backward pass recomputes the weights and forms both gradients of x in one product
    (results/efficiency/kernel_gains.csv lists what that gains).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: Tensor | None) -> Tensor:
        logits = weight.T @ x.transpose(-2, -1)
        if padding is not None:
            logits.masked_fill_(padding[:, None, None], mask_value())
        mass = logits.logsumexp(dim=-1, keepdim=True)
        mean = logits.sub_(mass).exp_() @ x
        if padding is not None:
            mean.masked_fill_(padding.all(dim=1)[:, None, None, None], 0.0)
        ctx.save_for_backward(x, weight, padding, mass, mean)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, padding, mass, mean = ctx.saved_tensors
        if padding is not None:
            grad = grad.masked_fill(padding.all(dim=1)[:, None, None, None], 0.0)
        columns = weight.T.expand_as(grad)
        both = torch.cat([columns, grad], dim=-2) @ x.transpose(-2, -1)
        weights, logits_grad = both.chunk(2, dim=-2)
        if padding is not None:
            weights.masked_fill_(padding[:, None, None], mask_value(weights.dtype))
        weights.sub_(mass).exp_()
        logits_grad.sub_((grad * mean).sum(dim=-1, keepdim=True)).mul_(weights)
        x_grad = both.transpose(-2, -1) @ torch.cat([grad, columns], dim=-2)
        return x_grad, (logits_grad @ x).sum(dim=(0, 1)).T, None
