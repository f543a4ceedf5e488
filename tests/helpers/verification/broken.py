"""Attentions with one real defect each, of padding, batches, randomness, numbers or cost."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

from cab import Attention, PaddingMasks
from cab.claims import Claims, softmax_if
from tests.helpers.verification.mutations import Weighted, caught, defect

# --- padding -------------------------------------------------------------------------------------------------


@defect("inputs", "NS NC", "padded_right padded_left padded_inside")
def forgotten_padding(call):
    """Padded keys take part with what their biases make of zeros."""
    return call._replace(padding=PaddingMasks())


@caught("NS CC", "padded_right padded_left padded_inside padded_row")
class MaskTiledByHead(Weighted):
    """The mask is tiled head by head where the flattened batch is row by row (Performer, LARA, Nystromformer)."""

    def weights(self, query, key, padding):
        if padding.key is None:
            return super().weights(query, key, padding)
        tiled = padding.key.repeat(self.num_heads, 1).unflatten(0, query.shape[:2])
        return (query @ key.mT * self.scale).masked_fill(tiled[:, :, None], torch.finfo(query.dtype).min).softmax(-1)


@caught("NS", "padding_poison_right padding_poison_left padding_poison_inside")
class PaddingByMultiplication(Weighted):
    """Multiplies padding by zero before the base class clears it: NaN times zero is NaN."""

    def forward(self, query, **masks):
        return super().forward(query, **masks) + 0.0 * query.sum(1, keepdim=True)


@defect("inputs", "NS", "padding_of_nothing")
def mask_adds_a_key_of_zeros(call):
    """Even an empty mask."""
    if call.padding.key is None:
        return call
    masks = PaddingMasks(call.padding.query, F.pad(call.padding.key, (0, 1), value=False))
    return call._replace(key=F.pad(call.key, (0, 0, 0, 1)), value=F.pad(call.value, (0, 0, 0, 1)), padding=masks)


# --- decoding and training -----------------------------------------------------------------------------------


@defect("weights", "CS", "equal_scores")
def tie_broken_by_length(call):
    """Only the largest weight counts; of equal ones the first key in rows of odd length, the last in others."""
    count = call.result.shape[-1]
    last = count - 1 - call.result.flip(-1).argmax(-1)
    return F.one_hot(call.result.argmax(-1) if count % 2 else last, count).to(call.result)


@defect("output", "CS", "prefix_bits replay_is_exact")
def rounded_relative_to_the_row(call):
    """Outputs pass through a sum with the largest value of the row, which only rounds them."""
    largest = call.value.abs().amax(dim=2, keepdim=True)
    return call.result + largest - largest


# --- batches -------------------------------------------------------------------------------------------------


@defect("inputs", "NS", "rows_independent rows_gradient batch_size")
def centered_over_batch(call):
    return call._replace(value=call.value - 0.01 * call.value.mean((0, 2), keepdim=True))


# --- randomness ----------------------------------------------------------------------------------------------


@caught("NS", "state_dict_complete")
class RotationNotSaved(Weighted):
    def set_up(self):
        self.rotation = torch.randn(self.head_dim, self.head_dim)

    def weights(self, query, key, padding):
        return super().weights(query @ self.rotation, key, padding)


@defect("weights", "NS", "eval_repeatable")
def dropout_in_evaluation(call):
    return F.dropout(call.result, call.module.dropout)


@defect("weights", "NS", "same_seed")
def number_of_another_generator(call):
    return call.result * random.uniform(0.9, 1.1) if call.training else call.result


@caught("NS", "calls_leave_nothing forward_keeps_state")
class RunningMaximum(Weighted):
    """Training leaves a statistic behind that evaluation uses."""

    def set_up(self):
        self.register_buffer("largest", torch.ones(()))

    def weights(self, query, key, padding):
        if self.training:
            self.largest = torch.maximum(self.largest, key.detach().abs().max())
        return super().weights(query / self.largest, key, padding)


@caught("NS", "inputs_untouched")
class ScalesInPlace(Weighted):
    def compute(self, query, key, value, padding):
        with torch.no_grad():
            query.mul_(0.5)
        return super().compute(query, key, value, padding)


# --- lengths and numbers ---------------------------------------------------------------------------------------


@defect("inputs", "NS", "length_one")
def divided_by_deviation_over_positions(call):
    """A single position has none."""
    return call._replace(value=call.value / (1.0 + call.value.std(2, keepdim=True)))


class NeedsWholeBlocks(Weighted):
    """Only multiples of 16 work beyond the first 16 tokens."""

    def attend(self, query, key, value, padding):
        if query.shape[2] > 16:
            query = query.unflatten(2, (-1, 16)).flatten(2, 3)
        return super().attend(query, key, value, padding)


@defect("weights", "NS", "finite_gradients")
def no_maximum_subtracted(call):
    weights = (call.query @ call.key.mT * call.module.scale).exp()
    return weights / weights.sum(-1, keepdim=True)


@defect("inputs", "NS", "gradient_is_derivative")
def half_of_key_detached(call):
    return call._replace(key=0.5 * (call.key + call.key.detach()))


@defect("inputs", "NS", "fast_is_reference")
def scale_forgotten_in_fast_form(call):
    return call._replace(query=call.query / call.module.scale)


@caught("NS", "softmax_limit")
class ScaledTwice(Weighted):
    """Nystromformer as published: query and key are both divided by sqrt(E), so no limit is softmax attention."""

    claims = Claims(softmax_limit=softmax_if())

    def weights(self, query, key, padding):
        return super().weights(query * self.scale, key, padding)


@defect("output", "NS", "autocast_output")
def overflows_in_half(call):
    return 1e5 * call.result / 1e5


@caught("NS", "strided_inputs")
class WantsContiguous(Weighted):
    """Cuts the width into heads by a view of the input."""

    def compute(self, query, key, value, padding):
        query = query.view(-1, self.embed_dim).view_as(query)
        return super().compute(query, key, value, padding)


# --- cost ------------------------------------------------------------------------------------------------------


@caught("NS", "parameter_budget")
class ManyParameters(Weighted):
    def set_up(self):
        self.hidden = nn.Linear(self.embed_dim, 8 * self.embed_dim)


class TakesAnything(Attention):
    def __init__(self, *, embed_dim, **_anything):
        super(Attention, self).__init__()
        self.embed_dim, self.pattern = embed_dim, None
        self.linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, *_source, **_masks):
        return self.linear(query)


class LooksAtANumber(Weighted):
    """Python asks for a value of a tensor, which breaks the graph of torch.compile."""

    def attend(self, query, key, value, padding):
        if query.abs().max().item() > 1e6:
            query = query / 1e6
        return super().attend(query, key, value, padding)
