"""LARA: randomised attention with one proposal a segment (Zheng et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.landmarks import average, segment_means, segments
from attentions.kernels.precision import no_weight, wide
from cab import Attention, Pattern, UserError, register_attention
from cab.attention import Padding, SoftmaxLimit


@register_attention("lara", patterns="NS", complexity="n", paper="Zheng et al. 2022")
class LARAAttention(Attention):
    """Self-normalised importance sampling of softmax attention, with r adaptive proposals  (CAB, Eq. 15).

    Proposal c is a Gaussian round mu_c = the mean query plus the mean key of segment c. A sample w_c gives a
    weighted mean of the values, with weights phi(k; w_c); a target mixes these means by the importance weights of
    the samples. log phi(x; w) = (w . x - |x|^2 / 2) / sqrt(E). Samples are drawn in training; evaluation takes the
    means themselves. Segments are of the row's real tokens. There are no weights over tokens to drop, so
    ``dropout`` is not used (as released).

    Args:
        num_landmarks: proposals r.

    Raises:
        ValueError: for ``num_landmarks`` below 1.
    """

    compacts_padding = True

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_landmarks: int = 16,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_landmarks < 1:
            raise UserError(f"num_landmarks must be at least 1, got {num_landmarks}")
        self.num_landmarks = num_landmarks

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        """Nearer with every proposal, and not there with one a token: no proposal is the target's own mixture.

        The tolerance is what holds for logits of usual size; where softmax attention picks single keys, it does not.
        """
        steps = (1, max(num_tokens // 3, 1), num_tokens)
        return SoftmaxLimit(tuple({"num_landmarks": landmarks} for landmarks in steps), tolerance=0.2)

    def noise(self, like: Tensor) -> Tensor:
        """What samples differ from their proposals' means by, [B, H, r, E]."""
        shape = (*like.shape[:2], self.num_landmarks, self.head_dim)
        return torch.randn(shape, dtype=like.dtype, device=like.device) if self.training else like.new_zeros(shape)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        key_padding_mask = padding.key
        dtype, (rows, _, num_tokens, _) = query.dtype, query.shape
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (wide(x) for x in (query, key, value))
            hidden = key_padding_mask
            if hidden is None:
                hidden = torch.zeros(rows, num_tokens, dtype=torch.bool, device=query.device)
            means, absent = segment_means(self.num_landmarks, (~hidden).sum(dim=1), num_tokens, query.dtype)
            mean = average(means, query) + average(means, key)
            sample = mean + self.noise(query)
            keys = (sample @ key.transpose(-2, -1) - key.square().sum(dim=-1).unsqueeze(-2) / 2) * self.scale
            keys = keys.masked_fill(hidden[:, None, None, :], no_weight())
            values = keys.softmax(dim=-1) @ value
            evidence = keys.logsumexp(dim=-1) - self.scale * (
                (sample * mean).sum(dim=-1) - mean.square().sum(dim=-1) / 2
            )
            # -|q|^2 / 2 is the same for every proposal: it cancels in the softmax.
            weights = (query @ (mean + sample).transpose(-2, -1)) * self.scale + evidence.unsqueeze(-2)
            weights = weights.masked_fill(absent[:, None, None, :], no_weight()).softmax(dim=-1)
            return (weights.masked_fill(absent[:, None, None, :], 0.0) @ values).to(dtype)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Row by row and head by head, on the real tokens alone."""
        noise = self.noise(query)
        rows = []
        for row in range(len(query)):
            n = query.shape[2] if key_padding_mask is None else int((~key_padding_mask[row]).sum())
            heads = [
                self._head(query[row, h, :n], key[row, h, :n], value[row, h, :n], noise[row, h])
                for h in range(query.shape[1])
            ]
            rows.append(F.pad(torch.stack(heads), (0, 0, 0, query.shape[2] - n)))
        return torch.stack(rows)

    def _head(self, q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
        if not len(q):
            return q
        mean = segments(q, self.num_landmarks) + segments(k, self.num_landmarks)
        sample = mean + noise[: len(mean)]

        def log_phi(x: Tensor, w: Tensor) -> Tensor:
            return (w * x).sum(dim=-1) * self.scale - x.square().sum(dim=-1) * self.scale / 2

        keys = log_phi(k.unsqueeze(0), sample.unsqueeze(1))
        weight = (q @ mean.T) * self.scale + log_phi(q.unsqueeze(1), sample.unsqueeze(0))
        weight = weight + keys.logsumexp(dim=-1) - log_phi(mean, sample)
        return weight.softmax(dim=-1) @ (keys.softmax(dim=-1) @ v)
