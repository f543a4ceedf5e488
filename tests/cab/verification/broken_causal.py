"""Attentions that look ahead, forget the past, or decode otherwise than they train. Each has one real defect."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.cab.verification.mutations import NEVER, Method, Weighted, caught, defect, future, hide_padding


def causal_average(scores: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
    """Weighted mean with non-negative ``scores`` [B, H, N, N] over the past."""
    scores = scores.masked_fill(future(scores.shape[-1]), 0.0)
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None, :], 0.0)
    return scores @ value / scores.sum(-1, keepdim=True).clamp_min(1e-6)


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


@caught("CS", "lookahead_length")
class LengthFactor(Method):
    """cosFormer as published: the re-weighting cos(pi/2 (i - j)/L) divides by the final length."""

    autocast_dtypes = ()

    def attend(self, query, key, value, padding):
        n = query.shape[2]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        scores = query.relu() @ key.relu().mT * torch.cos(torch.pi / 2 * distance / n)
        return causal_average(scores + 1e-3, value, padding.key)


@caught("CS", "lookahead_gradient lookahead_perturbation")
class GlobalStabiliser(Method):
    """Performer as published: the keys' features are divided by their maximum over all positions."""

    autocast_dtypes = ()

    def set_up(self):
        self.register_buffer("projection", torch.randn(self.head_dim, 16))

    def attend(self, query, key, value, padding):

        def features(x: Tensor, dims: tuple[int, ...]) -> Tensor:
            x = x * self.scale**0.5
            logits = x @ self.projection - x.square().sum(-1, keepdim=True) / 2
            return (logits - logits.amax(dims, keepdim=True)).exp() + 1e-4

        return causal_average(features(query, (-1,)) @ features(key, (-1, -2)).mT, value, padding.key)


@caught("CS", "context_is_used")
class NoRunningSum(Method):
    """Causal ABC as released: of the running weighted mean only the last term is left."""

    autocast_dtypes = ()

    def set_up(self):
        self.compress = nn.Parameter(torch.randn(2, self.head_dim, 16) * self.head_dim**-0.5)

    def attend(self, query, key, value, padding):

        def slots(x: Tensor, weight: Tensor) -> Tensor:
            logits = x @ weight
            if padding.key is not None:
                logits = logits.masked_fill(padding.key[:, None, :, None], -1e30)
            return (logits - logits.logcumsumexp(2)).exp().unsqueeze(-1) * x.unsqueeze(-2)

        keys, values = slots(key, self.compress[0]), slots(value, self.compress[1])
        weights = (torch.einsum("bhne,bhnre->bhnr", query, keys) * self.scale).softmax(-1)
        return torch.einsum("bhnr,bhnre->bhne", weights, values)


@caught("CS", "lookahead_gradient lookahead_perturbation")
class OwnBlockSummary(Method):
    """Softmax over the tokens of the own block so far and over block means, the own block's among them."""

    requires_right_padding = True
    block = 8

    def attend(self, query, key, value, padding):
        n = query.shape[2]
        blocks = torch.arange(n) // self.block
        member = F.one_hot(blocks).float()
        if padding.key is not None:
            member = member * ~padding.key[:, None, :, None]
        member = member / member.sum(-2, keepdim=True).clamp_min(1.0)
        keys, values = member.mT @ key, member.mT @ value
        near = (query @ key.mT * self.scale).masked_fill(future(n) | (blocks[:, None] != blocks), NEVER)
        far = (query @ keys.mT * self.scale).masked_fill(torch.arange(keys.shape[2]) > blocks[:, None], NEVER)
        near = hide_padding(near, padding.key)
        near_weight, far_weight = torch.cat([near, far], -1).softmax(-1).split([n, keys.shape[2]], -1)
        return near_weight @ value + far_weight @ values


@caught("CS", "lookahead_gradient lookahead_perturbation")
class CircularConvolution(Method):
    """A long convolution by FFT without zeros behind the sequence: its end runs into its beginning."""

    requires_right_padding = True

    def set_up(self):
        self.decay = nn.Parameter(torch.linspace(-3.0, 0.0, self.head_dim))

    def attend(self, _query, _key, value, padding):
        n = value.shape[2]
        if padding.key is not None:
            value = value.masked_fill(padding.key[:, None, :, None], 0.0)
        kernel = (-self.decay.exp() * torch.arange(n)[:, None]).exp()
        return torch.fft.irfft(torch.fft.rfft(value, dim=2) * torch.fft.rfft(kernel, dim=0), n=n, dim=2)


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


@caught("CS", "decode_steps")
class StepDropsLastToken(Weighted):
    """An error by one: a step attends to what came before it, not to itself."""

    def step(self, query_t, state, *, query_padding_mask=None):
        past = state["query"]
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        if past.shape[1] == 0:
            return output, state
        query = query_t.reshape(query_t.shape[0], 1, -1)
        q, k, v = (
            self.split_heads(projection(x))
            for projection, x in ((self.q_proj, query), (self.k_proj, past), (self.v_proj, past))
        )
        output = self.merge_heads((q @ k.mT * self.scale).softmax(-1) @ v)
        return self.out_proj(output).reshape(query_t.shape), state
