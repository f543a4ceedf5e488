"""Landmarks of segments: Nystromformer (Xiong et al. 2021) and LARA (Zheng et al. 2022)."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.key_summaries import average, means_of_segments, segment_means, segments
from attentions.kernels.layers import value_convolution
from attentions.kernels.numerics import mask_value, upcast
from cab import Attention, PaddingMasks, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, SoftmaxLimit, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive

ITERATIONS = 6


@register_attention("nystromformer", patterns="NS", complexity="n", paper="Xiong et al. 2021")
class NystromAttention(Attention):
    """Compute softmax(q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ k^T) v with segment means Q~ and K~ (CAB, Eq. 11).

    The pseudo-inverse takes 6 iterations of Razavi et al. 2014, started from each matrix's own largest column sum
    (the released code takes the largest of the whole batch, so that rows change each other). A row with no more
    tokens than landmarks gets softmax attention itself. ``dropout`` is not used (as released).

    Args:
        num_landmarks: segments r.
        conv_kernel_size: odd width k of a depthwise convolution of the values over positions, one filter a head,
            that is added; None for none.
        logit_scale: ``sqrt`` for q . k / sqrt(E); ``linear`` for the released q . k / E.
    """

    claims = Claims(softmax_limit=softmax_if(num_landmarks=NUM_TOKENS))
    requires_right_padding = True

    def __init__(
        self,
        *,
        num_landmarks: Positive = 16,
        conv_kernel_size: Positive | None = None,
        logit_scale: Literal["sqrt", "linear"] = "sqrt",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.num_landmarks = num_landmarks
        self.logit_factor = self.scale if logit_scale == "sqrt" else 1.0 / self.head_dim
        self.conv = value_convolution(self.num_heads, conv_kernel_size)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        dtype = query.dtype
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (upcast(x) for x in (query, key, value))
            if padding.key is not None:
                value = value.masked_fill(padding.key[:, None, :, None], 0.0)
            if padding.key is None and query.shape[2] <= self.num_landmarks:
                output = self.softmax_attention(query, key, value)
            else:
                output = self.approximate(query, key, value, padding.key)
            if self.conv is not None:
                filters = self.conv.weight.to(value.dtype)
                output = output + F.conv2d(value, filters, padding=self.conv.padding, groups=self.num_heads)
            return output.to(dtype)

    def softmax_attention(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Compute weighted means of value; ``hidden`` keys [B, M] are masked, unless all are."""
        visible = None if hidden is None else (~hidden | hidden.all(dim=1, keepdim=True))[:, None, None]
        return F.scaled_dot_product_attention(query, key, value, visible, scale=self.logit_factor)

    def approximate(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Multiply the three softmax matrices with the values, from the right; padded values are zero."""
        num_tokens, count, absent = query.shape[2], lengths(query, padding), None
        if padding is None:
            queries, keys = (means_of_segments(x, self.num_landmarks) for x in (query, key))
        else:
            weights, absent = segment_means(self.num_landmarks, count, num_tokens, query.dtype)
            queries, keys = average(weights, query), average(weights, key)
        middle = queries @ keys.transpose(-2, -1) * self.logit_factor
        if absent is not None:
            middle = middle.masked_fill(absent[:, None, None], mask_value())
        values = pseudo_inverse(middle.softmax(dim=-1)) @ self.softmax_attention(queries, key, value, padding)
        if absent is None:
            return self.softmax_attention(query, keys, values)
        # In a row of at most r tokens each is its own landmark: with their values, this is softmax attention.
        tokens = F.pad(value[:, :, : self.num_landmarks], (0, 0, 0, max(self.num_landmarks - num_tokens, 0)))
        values = torch.where((count <= self.num_landmarks)[:, None, None, None], tokens, values)
        return self.softmax_attention(query, keys, values, absent)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query * self.logit_factor
        if query.shape[1] <= self.num_landmarks:
            output = (query @ key.mT).softmax(dim=-1) @ value
        else:
            queries, keys = (segments(x, self.num_landmarks) for x in (query, key))
            inverse = pseudo_inverse((queries @ keys.mT).softmax(dim=-1))
            output = (query @ keys.mT).softmax(dim=-1) @ inverse @ (queries @ key.mT).softmax(dim=-1) @ value
        return output if self.conv is None else output + self.conv(value.unsqueeze(0))[0]


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """Iterate Z <- Z/4 (13 I - A Z (15 I - A Z (7 I - A Z))) from Z = A^T / max column sum (Xiong et al., Eq. 11)."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    largest = matrix.sum(dim=-2).amax(dim=-1)[..., None, None].clamp(min=1e-30)
    inverse = matrix.transpose(-2, -1) / largest
    for _ in range(ITERATIONS):
        product = matrix @ inverse
        inverse = inverse / 4 @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return inverse


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

    # The tolerance is what holds for logits of usual size; where softmax attention picks single keys, it does not.
    claims = Claims(softmax_limit=SoftmaxLimit(tuple({"num_landmarks": r} for r in (1, 8, NUM_TOKENS)), tolerance=0.2))
    requires_right_padding = True

    def __init__(self, *, num_landmarks: Positive = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.num_landmarks = num_landmarks

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
                keys = keys.masked_fill(padding.key[:, None, None, :], mask_value())
            values = keys.softmax(dim=-1) @ value
            evidence = keys.logsumexp(dim=-1) - self.scale * (
                (sample * mean).sum(dim=-1) - mean.square().sum(dim=-1) / 2
            )
            # -|q|^2 / 2 is the same for every proposal: it cancels in the softmax.
            weights = (query @ (mean + sample).mT) * self.scale + evidence.unsqueeze(-2)
            weights = weights.masked_fill(absent[:, None, None, :], mask_value()).softmax(dim=-1)
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
