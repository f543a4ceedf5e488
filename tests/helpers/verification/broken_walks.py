"""Attentions that decode one sequence correctly, and fail where decoding is mixed with other calls."""

from __future__ import annotations

from tests.helpers.verification.mutations import caught
from tests.helpers.verification.sound_learning import Gated


@caught("CS", "decode_walk")
class CountsOnModule(Gated):
    """The outputs depend on the number of tokens read since any sequence began."""

    def init_state(self, batch_size, **source):
        self.count = 0
        return super().init_state(batch_size, **source)

    def init_decode_state(self, batch_size, like):
        return super().init_decode_state(batch_size, like) | {"count": like.new_zeros(batch_size)}

    def decode(self, query, key, value, state, padding, **more):
        self.count += query.shape[2]
        count = state["count"] + query.shape[2]
        output, new = super().decode(query, key, value, state, padding, **more)
        return output * (count / self.count)[:, None, None, None], new | {"count": count}


@caught("CS", "decode_walk")
class TrainingEndsDecoding(Gated):
    """Each training call makes decoding, but not the forward pass, work with smaller gates."""

    factor = 1.0

    def attend(self, query, key, value, padding, *, gate, strength):
        self.factor *= 0.9 if self.training else 1.0
        return super().attend(query, key, value, padding, gate=gate, strength=strength)

    def decode(self, query, key, value, state, padding, *, gate, strength):
        return super().decode(query, key, value, state, padding, gate=gate * self.factor, strength=strength)


@caught("CS", "decode_walk")
class ContinuesItsOwnState(Gated):
    """A prompt of a batch of the same size as the last one continues the state that the module remembers."""

    last = None

    def init_decode_state(self, batch_size, like):
        self.last = None
        return super().init_decode_state(batch_size, like)

    def decode(self, query, key, value, state, padding, **more):
        is_prompt = query.shape[2] > 1 and query.shape[0] > 2
        if is_prompt and self.last is not None and self.last["sum"].shape == state["sum"].shape:
            state = self.last
        output, self.last = super().decode(query, key, value, state, padding, **more)
        return output, dict(self.last)


@caught("CS", "decode_walk")
class StepAfterPaddedChunk(Gated):
    """A chunk with padding leaves its rows on the module, and the next step of as many rows counts as padding there."""

    mask = None

    def decode(self, query, key, value, state, padding, **more):
        if padding.key is not None and query.shape[2] > 1:
            self.mask = padding.key
        elif self.mask is not None and len(self.mask) == len(query) and query.shape[2] == 1:
            padding, self.mask = padding._replace(key=self.mask.any(1, keepdim=True)), None
        return super().decode(query, key, value, state, padding, **more)


@caught("CS", "decode_walk")
class WeightsOfFirstPrompt(Gated):
    """The strength of keys is projected with the weights that the first prompt of the module met."""

    first = None

    def key_side_inputs(self, key):
        if key.shape[1] > 2 and self.first is None and not self.training:
            self.first = self.strength.weight.detach().clone()
        if self.first is None or key.shape[1] > 2:
            return super().key_side_inputs(key)
        return {"strength": (key @ self.first.mT + self.strength.bias).sigmoid().transpose(1, 2)}
