"""Attentions with their own packed form: one that is sound, and others with one real defect each."""

from __future__ import annotations

import torch

from cab import Pattern
from tests.helpers.verification.mutations import Method, caught, future, hide_padding


class PackedSoftmax(Method):
    """Sound: all tokens are one sequence, in which pairs of tokens across a border are hidden."""

    def attend(self, query, key, value, padding):
        return self.weights(hide_padding(query @ key.mT * self.scale, padding.key)) @ value

    def weights(self, logits):
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(future(logits.shape[-1]), torch.finfo(logits.dtype).min)
        return logits.softmax(-1)

    def forward_packed(self, query, key=None, value=None, *, query_cu_seqlens, key_cu_seqlens=None):
        key, value = (query, query) if key is None else (key, value)
        numbers = self.sequence_of(query_cu_seqlens)
        sources = numbers if key_cu_seqlens is None else self.sequence_of(key_cu_seqlens)
        query, key, value = self.project(query[None], key[None], value[None])
        logits = query @ key.mT * self.scale
        weights = self.weights(logits.masked_fill(numbers[:, None] != sources, torch.finfo(logits.dtype).min))
        return self.out_proj(self.merge_heads(weights @ value))[0]

    def sequence_of(self, ends):
        return torch.bucketize(torch.arange(ends[-1]), ends[1:], right=True)


@caught("CS NC", "packed_outputs packed_gradients packed_borders")
class BorderOffByOne(PackedSoftmax):
    def sequence_of(self, ends):
        return torch.bucketize(torch.arange(ends[-1]), ends[1:])


@caught("NS", "packed_outputs packed_gradients")
class PositionsGoOn(PackedSoftmax):
    requires_right_padding = True

    def project(self, query, key, value):
        position = torch.arange(query.shape[1])[:, None] * torch.logspace(0, -2, query.shape[2])
        return super().project(query + position.sin(), key, value)


@caught("NC", "packed_gradients")
class DetachedShortSequences(PackedSoftmax):
    def forward_packed(self, query, key=None, value=None, **ends):
        output = super().forward_packed(query, key, value, **ends)
        numbers = self.sequence_of(ends["query_cu_seqlens"])
        return torch.where((numbers.bincount()[numbers] == 1)[:, None], output.detach(), output)


@caught("NS", "packed_loss")
class LossOfEverySequence(PackedSoftmax):
    """Every sequence adds a whole auxiliary loss, so many short sequences count more than one long sequence."""

    def attend(self, query, key, value, padding):
        self.add_loss(query.square().mean((1, 3)), padding)
        return super().attend(query, key, value, padding)

    def forward_packed(self, query, **ends):
        lengths = ends["query_cu_seqlens"].diff().tolist()
        return torch.cat([self(tokens[None])[0] if len(tokens) else tokens for tokens in query.split(lengths)])


@caught("CS", "packed_prompts")
class PromptsOffByOne(PackedSoftmax):
    """Only outputs of the prompts are wrong; the state is sound."""

    def prefill_packed(self, query, state, *, query_cu_seqlens):
        output, state = super().prefill_packed(query, state, query_cu_seqlens=query_cu_seqlens)
        return output.roll(1, 0), state


@caught("CS", "packed_prompts")
class EmptyPromptResets(PackedSoftmax):
    def prefill_packed(self, query, state, *, query_cu_seqlens):
        output, state = super().prefill_packed(query, state, query_cu_seqlens=query_cu_seqlens)
        is_empty = query_cu_seqlens.diff() == 0
        return output, state | {"query_padding": state["query_padding"] | is_empty[:, None]}
