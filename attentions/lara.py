"""LARA: randomized attention with one proposal a segment (Zheng et al. 2022)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.options import check_at_least
from attentions.kernels.key_summaries import average, segment_means, segments
from attentions.kernels.numerics import neg_inf, upcast
from cab import Attention, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit
from cab.padding import lengths


@register_attention("lara", patterns="NS", complexity="n", paper="Zheng et al. 2022")
class LARAAttention(Attention):
    """Compute self-normalized importance sampling of softmax attention with r adaptive proposals (CAB, Eq. 15).

    Proposal c is a Gaussian round mu_c = the mean query plus the mean key of segment c. A sample w_c gives a
    weighted mean of the values, with weights phi(k; w_c); a target mixes these means by the importance weights of
    the samples. log phi(x; w) = (w . x - |x|^2 / 2) / sqrt(E). Samples are drawn in training; evaluation takes the
    means themselves. Segments are of the row's real tokens. ``dropout`` is not used (as released).

    Args:
        num_landmarks: proposals r.
    """

    requires_right_padding = True

    def __init__(self, *, num_landmarks: int = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        check_at_least(1, num_landmarks=num_landmarks)
        self.num_landmarks = num_landmarks

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        """Return options with up to one proposal per token, which is close to softmax attention but not equal.

        The tolerance is what holds for logits of usual size; where softmax attention picks single keys, it does not.
        """
        steps = (1, max(num_tokens // 3, 1), num_tokens)
        return SoftmaxLimit(tuple({"num_landmarks": landmarks} for landmarks in steps), tolerance=0.2)

    def sample_noise(self, query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        """Draw the deviation of samples from the means of their proposals: ``noise`` [B, H, r, E]."""
        like = upcast(query.new_empty(0))
        shape = (len(query), self.num_heads, self.num_landmarks, self.head_dim)
        noise = like.new_zeros(shape)
        return {"noise": torch.randn_like(noise) if self.training else noise}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, noise: Tensor) -> Tensor:
        dtype, num_tokens = query.dtype, query.shape[2]
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (upcast(x) for x in (query, key, value))
            means, absent = segment_means(self.num_landmarks, lengths(key, padding.key), num_tokens, query.dtype)
            mean = average(means, query) + average(means, key)
            sample = mean + noise
            keys = (sample @ key.mT - key.square().sum(dim=-1).unsqueeze(-2) / 2) * self.scale
            if padding.key is not None:
                keys = keys.masked_fill(padding.key[:, None, None, :], neg_inf())
            values = keys.softmax(dim=-1) @ value
            evidence = keys.logsumexp(dim=-1) - self.scale * (
                (sample * mean).sum(dim=-1) - mean.square().sum(dim=-1) / 2
            )
            # -|q|^2 / 2 is the same for every proposal: it cancels in the softmax.
            weights = (query @ (mean + sample).mT) * self.scale + evidence.unsqueeze(-2)
            weights = weights.masked_fill(absent[:, None, None, :], neg_inf()).softmax(dim=-1)
            return (weights.masked_fill(absent[:, None, None, :], 0.0) @ values).to(dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, noise: Tensor) -> Tensor:
        mean = segments(query, self.num_landmarks) + segments(key, self.num_landmarks)  # [H, c, E]
        sample = mean + noise[:, : mean.shape[1]]

        def log_phi(x: Tensor, w: Tensor) -> Tensor:
            return ((w * x).sum(dim=-1) - x.square().sum(dim=-1) / 2) * self.scale

        keys = log_phi(key.unsqueeze(1), sample.unsqueeze(2))  # [H, c, n]
        proposals = keys.logsumexp(dim=-1) - log_phi(mean, sample)
        weights = (
            query @ mean.mT * self.scale + log_phi(query.unsqueeze(2), sample.unsqueeze(1)) + proposals.unsqueeze(1)
        )
        return weights.softmax(dim=-1) @ (keys.softmax(dim=-1) @ value)
