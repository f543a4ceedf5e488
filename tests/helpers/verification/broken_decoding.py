"""Attentions whose decoding has one defect each: states that are modified, shared or grow."""

from __future__ import annotations

import torch

from tests.helpers.verification.mutations import Weighted, caught
from tests.helpers.verification.sound_learning import Gated


@caught("CS", "prefill_keeps_state")
class WritesIntoState(Gated):
    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        if query.shape[2] > 1:
            state["sum"].copy_(new["sum"])
            new["sum"] = state["sum"]
        return output, new


@caught("CS", "decode_branches")
class SharedCapacity(Weighted):
    """Tokens are written into a buffer with room for 64 more, which all continuations of a state share."""

    def prefill(self, query, state, *, query_padding_mask=None):
        output, new = super().prefill(query, state, query_padding_mask=query_padding_mask)
        before, after = state["query"].shape[1], new["query"].shape[1]
        buffer = state["query"]._base
        if buffer is None or buffer.dim() != 3 or buffer.shape[1] < after or buffer.shape[0] != len(query):
            buffer = torch.zeros(len(query), after + 64, query.shape[-1])
            buffer[:, :before] = state["query"]
        buffer[:, before:after] = query
        return output, new | {"query": buffer[:, :after]}


@caught("CS", "state_has_rows")
class StateWithoutRows(Gated):
    def init_decode_state(self, batch_size, like):
        return super().init_decode_state(batch_size, like) | {"count": like.new_zeros(1)}

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        return output, new | {"count": state["count"] + query.shape[2]}


@caught("CS", "decode_reordered")
class PaddingOnModule(Weighted):
    """The padding of a prompt is kept on the module, where beam search does not reorder it."""

    def init_state(self, batch_size, **source):
        self.prompt = None
        return super().init_state(batch_size, **source)

    def prefill(self, query, state, *, query_padding_mask=None):
        if query_padding_mask is not None and query.shape[1] > 1:
            self.prompt = query_padding_mask
        elif self.prompt is not None:
            rows = torch.arange(len(query)) % len(self.prompt)
            padding = state["query_padding"].clone()
            padding[:, : self.prompt.shape[1]] = self.prompt[rows]
            state = state | {"query_padding": padding}
        return super().prefill(query, state, query_padding_mask=query_padding_mask)


@caught("CS", "step_growth")
class GrowingState(Gated):
    """Declares a constant state, and keeps all keys."""

    def init_decode_state(self, batch_size, like):
        return super().init_decode_state(batch_size, like) | {"all": like.new_zeros(batch_size, 0)}

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        return output, new | {"all": torch.cat([state["all"], key[:, 0, :, 0]], 1)}


@caught("CS", "step_growth")
class QuadraticStep(GrowingState):
    """Every step compares all pairs of earlier tokens."""

    has_constant_size_state = False

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        pairs = new["all"][:, :, None] * new["all"][:, None]
        return output + 0.0 * pairs.mean((1, 2))[:, None, None, None], new
