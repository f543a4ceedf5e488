"""Attentions with one defect each of repeated calls, modes, precision, sizes or context."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from cab import PaddingMasks
from tests.helpers.verification.mutations import MEDIUM, Weighted, caught, defect

# --- modes and calls -----------------------------------------------------------------------------------------


@defect("inputs", "NS", "training_is_evaluation")
def scaled_in_evaluation(call):
    return call if call.training else call._replace(query=1.01 * call.query)


@caught("NC", "inference_mode")
class KeepsTable(Weighted):
    """A table is created in the first call, which may be in inference mode."""

    table = None

    def attend(self, query, key, value, padding):
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, self.head_dim)
        return super().attend(query, key, value * self.table, padding)


@defect("inputs", "NS", "several_threads")
def last_keys_lost_between_threads(call):
    count, n = torch.get_num_threads(), call.value.shape[2]
    return call._replace(value=call.value * (torch.arange(n) < n - n // count)[:, None]) if count > 1 else call


@caught("CS", "no_counters")
class CountsCalls(Weighted):
    calls = 0

    def attend(self, query, key, value, padding):
        self.calls += 1
        return super().attend(query if self.calls < 1000 else query.flip(-1), key, value, padding)


@caught("NS", "no_counters")
class CountsOnClass(CountsCalls):
    def attend(self, query, key, value, padding):
        type(self).calls += 1
        return Weighted.attend(self, query, key, value, padding)


@caught("NS", "many_calls")
class ChangesAfterFiftyCalls(Weighted):
    """The counter is hidden in a closure."""

    def set_up(self):
        numbers = itertools.count()
        self.factor = lambda: 1.01 if next(numbers) > 50 else 1.0

    def attend(self, query, key, value, padding):
        return self.factor() * super().attend(query, key, value, padding)


@defect("output", "CC", "default_dtype")
def factor_in_default_dtype(call):
    return call.result * torch.ones(1)


# --- gradients -----------------------------------------------------------------------------------------------


@caught("NS", "gradient_of_residual")
class GradientInPlace(Weighted):
    def compute(self, query, key, value, padding):
        output = super().compute(query, key, value, padding)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.clamp_(-0.5, 0.5))
        return output


class LastInput(torch.autograd.Function):
    """The square, which keeps its input on the class instead of in the context."""

    last = None

    @staticmethod
    def forward(_context, x):
        LastInput.last = x.detach().clone()
        return x.square()

    @staticmethod
    def backward(_context, gradient):
        last = LastInput.last
        return 2.0 * gradient * (last if last.shape == gradient.shape else last.mean())


@defect("inputs", "NS", "gradient_of_two_calls")
def saved_outside_context(call):
    return call._replace(value=LastInput.apply(call.value))


@defect("weights", "NC", "many_rows")
def only_eight_rows_train_weights(call):
    return torch.cat([call.result[:8], call.result[8:].detach()])


@caught("CS", "parameters_in_every_batch")
class UnusedWhenShort(Weighted):
    def set_up(self):
        self.far = nn.Parameter(torch.zeros(self.head_dim))

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + self.far if query.shape[2] > 50 else output


# --- precision -----------------------------------------------------------------------------------------------


@defect("weights", "NS", "autocast_gradient")
def half_gradient_under_autocast(call):
    if call.result.requires_grad and torch.is_autocast_enabled("cpu"):
        call.result.register_hook(lambda gradient: gradient / 2)
    return call.result


@defect("mask", "CS", "autocast_lookahead")
def no_mask_under_autocast(call):
    return call.query.shape[2] > 128 and torch.is_autocast_enabled("cpu")


@defect("inputs", "NS", "module_in_bfloat16")
def positions_in_dtype(call):
    """Above 256, bfloat16 has only even numbers."""
    angle = torch.arange(call.key.shape[2], dtype=call.key.dtype)[:, None]
    factor = 1.0 + 0.5 * torch.cos(angle)
    return call._replace(query=call.query * factor[: call.query.shape[2]], key=call.key * factor)


# --- sizes ---------------------------------------------------------------------------------------------------


@defect("mask", "CS", "model_sizes")
def no_mask_in_wide_heads(call):
    return call.module.head_dim >= 64


@defect("output", "NC", "model_sizes")
def rows_mixed_in_many_heads(call):
    return call.result + 0.01 * (call.module.num_heads >= 16) * call.result.mean(0, keepdim=True)


@defect("weights", "CS", "model_sizes_gradient")
def detached_in_odd_heads(call):
    return call.result.detach() if call.module.head_dim % 2 else call.result


# --- padding and dropout ---------------------------------------------------------------------------------------


@defect("output", "NC", "padded_single_token")
def single_token_lost(call):
    """An average that leaves the token itself out of the count divides a single one by zero, which is caught."""
    keys = call.padding.key
    return call.result if keys is None else call.result * ((~keys).sum(1) != 1)[:, None, None, None]


def dropped(call, like):
    """Dropout of ones."""
    return F.dropout(torch.ones_like(like), call.module.dropout, call.training)


@defect("weights", "NS", "dropout_differs")
def dropout_shared_by_rows(call):
    return call.result * dropped(call, call.result[:1])


@caught("NS", "dropout_differs")
class DropoutOfFirstCall(Weighted):
    mask = None

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        if not self.training:
            return weights
        if self.mask is None or self.mask.shape != weights.shape:
            self.mask = F.dropout(torch.ones_like(weights), self.dropout)
        return weights * self.mask


@defect("weights", "NS", "dropout_per_head")
def dropout_shared_by_heads(call):
    return call.result * dropped(call, call.result[:, :1])


@defect("weights", "NC", "dropout_per_head")
def dropout_shared_by_positions(call):
    return call.result * dropped(call, call.result[:, :, :1])


# --- context -------------------------------------------------------------------------------------------------


def without(call, hidden):
    """The weights without the pairs of ``hidden(distance)``."""
    distance = torch.arange(call.query.shape[2])[:, None] - torch.arange(call.key.shape[2])
    kept = call.result.masked_fill(hidden(distance), 0.0)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-9)


@defect("weights", "CS", "context_map")
def predecessor_unread(call):
    return without(call, lambda distance: distance == 1)


@defect("weights", "CS", "context_map")
def window_of_400(call):
    return without(call, lambda distance: distance > 400)


@defect("weights", "CS", "context_map", long=MEDIUM)
def window_of_1000(call):
    return without(call, lambda distance: distance > 1000)


@defect("inputs", "NC", "source_map")
def only_256_keys(call):
    hidden = None if call.padding.key is None else call.padding.key[:, :256]
    masks = PaddingMasks(call.padding.query, hidden)
    return call._replace(key=call.key[:, :, :256], value=call.value[:, :, :256], padding=masks)
