"""Attentions with one real defect each that shows in training mode alone, under masks, or in what a call leaves."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import Weighted, caught, defect
from tests.helpers.verification.sound_learning import Gated

# --- in training mode alone, and without a gradient --------------------------------------------------------------


@defect("output", "CS", "lookahead_in_training")
def mean_of_all_values_in_training(call):
    return call.result + 1e-3 * call.training * call.value.detach().mean(2, keepdim=True)


@defect("output", "NS", "padded_in_training_right padded_in_training_left")
def grows_with_padding_in_training(call):
    if not call.training or call.padding.key is None:
        return call.result
    return call.result * (1.0 + 0.01 * call.padding.key.float().mean(1)[:, None, None, None])


@defect("output", "NS", "rows_in_training")
def mean_of_batch_in_training(call):
    return call.result + 0.01 * call.training * call.value.detach().mean((0, 2), keepdim=True)


# --- gradients and dropout -----------------------------------------------------------------------------------


@defect("inputs", "NS", "gradient_is_derivative fast_is_reference")
def detached_in_training(call):
    value = 0.9 * call.value + 0.1 * call.value.detach()
    return call._replace(value=value) if call.training else call


@defect("weights", "CS", "gradient_is_derivative fast_is_reference")
def detached_under_mask(call):
    return call.result if call.padding.key is None else call.result.detach()


@defect("weights", "NS", "dropout_mean")
def dropout_not_rescaled(call):
    return call.result * (torch.rand_like(call.result) >= call.module.dropout * call.training)


@defect("weights", "CS", "dropout_rate")
def dropout_of_half_the_rate(call):
    return F.dropout(call.result, call.module.dropout / 2, call.training)


# --- generators, classes, batches, states --------------------------------------------------------------------


@defect("output", "NS", "generators_untouched")
def seeds_in_training(call):
    if call.training:
        torch.manual_seed(0)
    return call.result


@defect("output", "CS", "generators_untouched")
def draws_in_evaluation(call):
    return call.result + 0.0 * torch.rand(())


@defect("output", "NC", "generators_untouched")
def draws_from_numpy(call):
    return call.result + (0.0 * np.random.rand() if call.training else 0.0)


@caught("CS", "modules_apart")
class FeaturesByWidth(Weighted):
    rotations: dict[int, torch.Tensor] = {}  # noqa: RUF012 - the defect

    def weights(self, query, key, padding):
        if self.head_dim not in self.rotations:
            self.rotations[self.head_dim] = torch.randn(self.head_dim, self.head_dim)
        return super().weights(query @ self.rotations[self.head_dim], key, padding)


@caught("NC", "modules_apart")
class LastModuleWins(Weighted):
    def set_up(self):
        LastModuleWins.temperature = self.head_dim**0.5

    def weights(self, query, key, padding):
        return super().weights(query / LastModuleWins.temperature, key, padding)


@caught("CS", "calls_leave_nothing")
class RemembersBatch(Weighted):
    memory = 0.0

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if not self.training:
            return output
        output, self.memory = output + 1e-3 * self.memory, value.detach().mean()
        return output


@caught("NS", "calls_leave_nothing")
class KeepsLowPrecision(Weighted):
    """As in rotary tables: a constant is cast to the dtype of the inputs, and keeps what autocast leaves of it."""

    def set_up(self):
        self.factor = torch.tensor(1.2345)

    def attend(self, query, key, value, padding):
        self.factor = self.factor.to(query.dtype)
        return super().attend(query * self.factor, key, value, padding)


@caught("CS", "decode_keeps_state")
class AddsToState(Gated):
    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        state["sum"].copy_(new["sum"])
        return output, {**new, "sum": state["sum"]}


@caught("CS", "decode_keeps_state")
class RenamesInState(Gated):
    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        state.update(new)
        return output, state


# --- what is there and does nothing ------------------------------------------------------------------------------


@caught("NS", "parameters_learn")
class UnusedParameter(Weighted):
    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(self.num_heads))


@caught("CC", "parameters_learn")
class RoundedParameter(UnusedParameter):
    def weights(self, query, key, padding):
        return super().weights(query * self.temperature.round()[:, None, None], key, padding)


@defect("inputs", "NC", "each_input_is_used")
def query_ignored(call):
    return call._replace(query=torch.ones_like(call.query))


@defect("inputs", "CC", "each_input_is_used")
def value_ignored(call):
    return call._replace(value=call.key + 0.0 * call.value.sum())


@defect("inputs", "NC", "each_input_is_used")
def key_ignored(call):
    return call._replace(key=call.value + 0.0 * call.key.sum())


@defect("inputs", "NC", "inputs_untouched")
def first_key_made_real_in_mask_of_caller(call):
    if call.padding.key is not None:
        call.padding.key[:, 0] = False
    return call


@caught("NS", "output_type")
class ReturnsDouble(Weighted):
    def compute(self, query, key, value, padding):
        output = super().compute(query, key, value, padding)
        return output if self.training else output.double()


@caught("CS", "output_type")
class StepReturnsHalf(Weighted):
    def step(self, query_t, state, *, query_padding_mask=None):
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        return output.bfloat16(), state
