"""Cross attentions with one real defect each."""

from __future__ import annotations

import torch
from torch import Tensor

from cab import PaddingMasks
from tests.cab.verification.broken import Softmax
from tests.cab.verification.mutations import Method, caught


@caught("CC", "lookahead_gradient lookahead_perturbation")
class QueriesSeeEachOther(Softmax):
    """Queries are centered by their mean over targets, later ones included."""

    def weights(self, query, key, padding):
        return super().weights(query - query.mean(2, keepdim=True), key, padding)


@caught("CC", "lookahead_gradient lookahead_perturbation")
class QueryStabiliserOverTargets(Method):
    """Performer whose query features are divided by their maximum over all targets, before a floor is added."""

    autocast_dtypes = ()

    def set_up(self):
        self.register_buffer("projection", torch.randn(self.head_dim, 16))

    def attend(self, query, key, value, padding):

        def features(x: Tensor, dims: tuple[int, ...]) -> Tensor:
            logits = x * self.scale**0.5 @ self.projection - x.square().sum(-1, keepdim=True) * self.scale / 2
            return (logits - logits.amax(dims, keepdim=True)).exp() + 1e-4

        k = features(key, (-1,))
        if padding.key is not None:
            k = k.masked_fill(padding.key[:, None, :, None], 0.0)
        q = features(query, (-1, -2))
        return q @ (k.mT @ value) / (q @ k.sum(2).unsqueeze(-1)).clamp_min(1e-9)


@caught("CC", "lookahead_length")
class SharedScale(Method):
    """cosFormer as published in a cross pattern: one scale for targets and source, the longer of the two lengths."""

    autocast_dtypes = ()

    def attend(self, query, key, value, padding):
        n, m = query.shape[2], key.shape[2]
        distance = torch.arange(n)[:, None] - torch.arange(m)
        scores = query.relu() @ key.relu().mT * torch.cos(torch.pi / 2 * distance / max(n, m)) + 1e-3
        if padding.key is not None:
            scores = scores.masked_fill(padding.key[:, None, None], 0.0)
        return scores @ value / scores.sum(-1, keepdim=True).clamp_min(1e-6)


@caught("CC", "decode_padded_right decode_padded_left decode_padded_inside")
class SourceMaskLostInDecoding(Softmax):
    """Decoding starts from the source without its mask."""

    def init_state(self, batch_size, *, key=None, value=None, **_mask):
        return super().init_state(batch_size, key=key, value=value)


@caught("NC", "context_is_used")
class SourceIgnored(Softmax):
    """Attends to the targets themselves; the source only lends its length."""

    def attend(self, query, _key, _value, padding):
        return super().attend(query, query, query, PaddingMasks(None, padding.query))


@caught("NC", "same_source")
class OneTensorAlone(Softmax):
    """Works when key and value are one tensor and takes the key for the value."""

    def compute(self, query, key, value, padding):
        value = key if key is value else value.flip(1)
        return super().compute(query, key, value, padding)
