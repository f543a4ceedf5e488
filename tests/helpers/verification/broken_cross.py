"""Cross attentions with one real defect each."""

from __future__ import annotations

from cab import PaddingMasks
from tests.helpers.verification.mutations import Weighted, caught, defect


@defect("inputs", "CC", "lookahead_gradient lookahead_perturbation")
def queries_centered_over_targets(call):
    return call._replace(query=call.query - call.query.mean(2, keepdim=True))


@caught("CC", "decode_padded_right decode_padded_left decode_padded_inside")
class SourceMaskLostInDecoding(Weighted):
    def init_state(self, batch_size, *, key=None, value=None, **_mask):
        return super().init_state(batch_size, key=key, value=value)


@defect("inputs", "NC", "context_is_used")
def source_ignored(call):
    """Attends to the targets themselves."""
    masks = PaddingMasks(None, call.padding.query)
    return call._replace(key=call.query, value=call.query, padding=masks)


@caught("NC", "same_source")
class OneTensorAlone(Weighted):
    """Works when key and value are one tensor and takes the key for the value."""

    def compute(self, query, key, value, padding):
        value = key if key is value else value.flip(1)
        return super().compute(query, key, value, padding)
