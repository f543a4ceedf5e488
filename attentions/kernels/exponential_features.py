"""Attention through features exp(w . x): two softmaxes, one over the keys and one over the features.

With a_ir = exp(w_r . q_i) and b_jr = exp(w_r . k_j - |k_j|^2 / 2) (the factor of a query cancels),

    sum_j sum_r a_ir b_jr v_j / sum_j sum_r a_ir b_jr = sum_r softmax_r(w_r . q_i + log sum_j b_jr) mean_r,
    mean_r = sum_j softmax_j(w_r . k_j - |k_j|^2 / 2) v_j,

so nothing over- or underflows and no scale has to be chosen. Tokens are processed in chunks whose features fit in the
processor cache, and features are recomputed in the backward pass instead of stored.

Shapes: G rows times heads, N queries, M keys, E width of a head, r features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attentions.kernels.chunks import chunk_slices, tokens_at_once
from attentions.kernels.numerics import once_differentiable, recompute


def _key_logarithms(key: Tensor, weights: Tensor, hidden: Tensor | None) -> Tensor:
    """Return w_r . k_j - |k_j|^2 / 2, [G, r, keys], plus ``hidden`` [G, 1, keys]."""
    bias = key.square().sum(dim=-1).mul_(-0.5).unsqueeze(1)
    if hidden is not None:
        bias = bias + hidden
    return torch.baddbmm(bias, weights, key.transpose(1, 2))


class KeyMeans(torch.autograd.Function):
    """Compute mean_r [G, r, E] and log sum_j b_jr [G, r] from keys and values [G, M, E] and weights [G, r, E].

    ``hidden`` [G, 1, M] or None is added to the logarithms: zero, or very negative for padding. The gradient is
    hand-written (results/efficiency/kernel_gains.csv lists what that gains).
    """

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, weights: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        peak = weights[..., :1].new_full((*weights.shape[:2], 1), -torch.inf)
        total, means = torch.zeros_like(peak), torch.zeros_like(weights)
        for piece in chunk_slices(key):
            logs = _key_logarithms(key[:, piece], weights, None if hidden is None else hidden[..., piece])
            highest = torch.maximum(peak, logs.amax(dim=-1, keepdim=True))
            features = logs.sub_(highest).exp_()
            shrunk = peak.sub_(highest).exp_()
            total = total.mul_(shrunk).add_(features.sum(dim=-1, keepdim=True))
            means = means.mul_(shrunk).baddbmm_(features, value[:, piece])
            peak = highest
        means, log_mass = means.div_(total), peak + total.log()
        ctx.save_for_backward(key, value, weights, hidden, means, log_mass)
        return means, log_mass.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, means_grad: Tensor, mass_grad: Tensor) -> tuple[Tensor | None, ...]:
        key, value, weights, hidden, means, log_mass = ctx.saved_tensors
        with torch.autocast(means_grad.device.type, enabled=False):
            key_grad, value_grad = torch.empty_like(key), torch.empty_like(value)
            shift = mass_grad.unsqueeze(-1) - (means_grad * means).sum(dim=-1, keepdim=True)
            for piece in chunk_slices(key):
                k, v = key[:, piece], value[:, piece]
                share = (
                    _key_logarithms(k, weights, None if hidden is None else hidden[..., piece]).sub_(log_mass).exp_()
                )
                value_grad[:, piece] = torch.bmm(share.transpose(1, 2), means_grad)
                logs_grad = torch.baddbmm(shift, means_grad, v.transpose(1, 2)).mul_(share)
                through_norm = logs_grad.sum(dim=1).unsqueeze(-1) * k
                key_grad[:, piece] = torch.baddbmm(through_norm, logs_grad.transpose(1, 2), weights, beta=-1.0)
            return key_grad, value_grad, None, None


def read_features(query: Tensor, weights: Tensor, means: Tensor, log_mass: Tensor) -> Tensor:
    """Return sum_r softmax_r(w_r . q_i + log_mass_r) mean_r, [G, N, E].

    Args:
        query: [G, N, E].
        weights: w, [G, r, E], without a gradient.
        means: [G, r, E].
        log_mass: [G, r].
    """

    def read(query: Tensor, means: Tensor, log_mass: Tensor) -> Tensor:
        logits = torch.baddbmm(log_mass.unsqueeze(1), query, weights.transpose(1, 2))
        return torch.bmm(logits.softmax(dim=-1), means)

    if weights.shape[1] <= weights.shape[2]:  # the shares are no larger than the queries, which are stored anyway
        return read(query, means, log_mass)
    size = tokens_at_once(len(query), query.device)
    return torch.cat([recompute(read, piece, means, log_mass) for piece in query.split(size, dim=1)], dim=1)
