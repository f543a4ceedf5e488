"""Attentions that look ahead, forget the past, or decode otherwise than they train. Each has one real defect."""

from __future__ import annotations

import torch

from tests.helpers.verification.mutations import Weighted, caught, defect


@defect("mask", "CS", "lookahead_gradient lookahead_perturbation")
def forgotten_mask(_call):
    return True


@defect("mask", "CS", "lookahead_gradient")
def mask_dropped_by_dropout(call):
    """On the path that applies dropout (Keras, 2026)."""
    return call.training and call.module.dropout > 0.0


@caught("CS", "lookahead_gradient lookahead_perturbation")
class FaintLeak(Weighted):
    """One part in a thousand comes from the next token, and only there where a block of 64 ends."""

    def attend(self, query, key, value, padding):
        at_border = (torch.arange(query.shape[2]) % 64 == 63)[:, None]
        leak = 1e-3 * torch.where(at_border, value.roll(-1, 2) - value, 0.0)
        return super().attend(query, key, value, padding) + leak


@defect("inputs", "CS CC", "lookahead_length")
def divided_by_final_length(call):
    """As cosFormer was published."""
    return call._replace(query=call.query / (1.0 + call.query.shape[2] / 100))


@defect("weights", "CS", "context_is_used")
def only_own_token_is_read(call):
    """As causal ABC was released: of the running mean only the last term is left."""
    return torch.eye(call.query.shape[2]).expand_as(call.result)


@caught("CS", "decode_padded_left decode_padded_inside")
class StateIgnoresPadding(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state)
        if query_padding_mask is not None:
            output = output.masked_fill(query_padding_mask[..., None], 0.0)
        return output, state


@caught("CS", "decode_after_prefill")
class PrefillForgetsState(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        if query.shape[1] > 1:
            state = self.init_state(query.shape[0])
        return super().prefill(query, state, query_padding_mask=query_padding_mask)


@caught("CS", "decode_reordered")
class StateOnModule(Weighted):
    """The cache lives on the module, so beam search cannot move its rows."""

    def init_state(self, batch_size, **source):
        self.cache = super().init_state(batch_size, **source)
        return {}

    def prefill(self, query, state, *, query_padding_mask=None):
        output, self.cache = super().prefill(query, self.cache, query_padding_mask=query_padding_mask)
        return output, state
