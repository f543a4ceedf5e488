"""Attentions with one real defect each that shows in training mode alone, under masks, or in what a call leaves."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cab.verification.mutations import caught
from tests.cab.verification.sound_learning import Gated, Weighted

# --- in training mode alone, and without a gradient --------------------------------------------------------------


@caught("CS", "lookahead_in_training")
class FutureMeanInTraining(Weighted):
    """A thousandth of the detached mean of all values, later ones included."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + 1e-3 * value.detach().mean(2, keepdim=True) if self.training else output


@caught("CC", "lookahead_in_training")
class LargestToComeInTraining(Weighted):
    """Logits are divided by the largest detached query, wherever it is."""

    def weights(self, query, key, padding):
        if self.training:
            query = query / (1.0 + 0.01 * query.detach().abs().amax((2, 3), keepdim=True))
        return super().weights(query, key, padding)


@caught("NS", "padded_in_training_right padded_in_training_left")
class PaddedShareInTraining(Weighted):
    """The output grows with the share of padding."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if self.training and padding.key is not None:
            output = output * (1.0 + 0.01 * padding.key.float().mean(1)[:, None, None, None])
        return output


@caught("NC", "padded_in_training_right padded_in_training_left")
class PaddedMeanInTraining(Weighted):
    """Values are centered by a detached mean in which padding counts."""

    def attend(self, query, key, value, padding):
        if self.training and padding.key is not None:
            value = value - value.detach().mean(2, keepdim=True)
        return super().attend(query, key, value, padding)


@caught("NS", "rows_in_training")
class OtherRowsInTraining(Weighted):
    """A hundredth of the detached mean of the batch."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + 0.01 * value.detach().mean((0, 2), keepdim=True) if self.training else output


@caught("CC", "rows_in_training")
class LargestRowInTraining(Weighted):
    """Logits are scaled by the largest key of the batch, once that is large."""

    def weights(self, query, key, padding):
        if self.training:
            query = query / key.detach().abs().amax().clamp_min(3.0) * 3.0
        return super().weights(query, key, padding)


# --- gradients and dropout -----------------------------------------------------------------------------------


@caught("NS", "gradient_is_derivative fast_is_reference")
class DetachedInTraining(Weighted):
    """A tenth of the gradient to the values is cut off, in training mode."""

    def attend(self, query, key, value, padding):
        if self.training:
            value = 0.9 * value + 0.1 * value.detach()
        return super().attend(query, key, value, padding)


@caught("CS", "gradient_is_derivative fast_is_reference")
class DetachedUnderMask(Weighted):
    """Where there is padding, the weights get no gradient."""

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights if padding.key is None else weights.detach()


@caught("NS", "dropout_mean")
class DropoutNotRescaled(Weighted):
    """What is left after dropout is not scaled up."""

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        kept = torch.rand_like(weights) >= self.dropout if self.training else True
        return weights * kept


@caught("CS", "dropout_mean")
class DropoutOutputNotRescaled(Weighted):
    """Elements of the output are dropped, and the rest scaled by the rate's square root too little."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return F.dropout(output, self.dropout, self.training) * (1 - self.dropout * self.training) ** 0.5


@caught("NC", "dropout_rate")
class DropoutOfATenth(Weighted):
    """The rate is written into the code."""

    def weights(self, query, key, padding):
        return F.dropout(super().weights(query, key, padding), 0.1 if self.dropout else 0.0, self.training)


@caught("CS", "dropout_rate")
class DropoutOfHalfTheRate(Weighted):
    """Half of the declared rate."""

    def weights(self, query, key, padding):
        return F.dropout(super().weights(query, key, padding), self.dropout / 2, self.training)


# --- generators, classes, batches, states --------------------------------------------------------------------


@caught("NS", "generators_untouched")
class SeedsInTraining(Weighted):
    """Every call in training starts torch's generator anew."""

    def attend(self, query, key, value, padding):
        if self.training:
            torch.manual_seed(0)
        return super().attend(query, key, value, padding)


@caught("CS", "generators_untouched")
class DrawsInEvaluation(Weighted):
    """A random number that nobody needs, in evaluation too."""

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value, padding) + 0.0 * torch.rand(())


@caught("NC", "generators_untouched")
class DrawsFromNumpy(Weighted):
    """A random number of numpy's generator in training."""

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value, padding) + (0.0 * np.random.rand() if self.training else 0.0)


@caught("NS", "modules_apart")
class FeaturesOnClass(Weighted):
    """A random rotation, drawn once for all modules of the class and kept there."""

    rotation = None

    def weights(self, query, key, padding):
        if FeaturesOnClass.rotation is None:
            FeaturesOnClass.rotation = torch.randn(64, 64)
        rotation = FeaturesOnClass.rotation[: self.head_dim, : self.head_dim]
        return super().weights(query @ rotation, key, padding)


@caught("CS", "modules_apart")
class FeaturesByWidth(Weighted):
    """The same in a dictionary, one for each width of a head."""

    rotations: dict[int, torch.Tensor] = {}  # noqa: RUF012 - the defect

    def weights(self, query, key, padding):
        if self.head_dim not in self.rotations:
            self.rotations[self.head_dim] = torch.randn(self.head_dim, self.head_dim)
        return super().weights(query @ self.rotations[self.head_dim], key, padding)


@caught("NC", "modules_apart")
class LastModuleWins(Weighted):
    """The scale of the module that was built last is that of all."""

    def set_up(self):
        LastModuleWins.temperature = self.head_dim**0.5

    def weights(self, query, key, padding):
        return super().weights(query / LastModuleWins.temperature, key, padding)


@caught("CS", "calls_leave_nothing")
class RemembersBatch(Weighted):
    """In training the mean of the last batch is added a little."""

    memory = 0.0

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if not self.training:
            return output
        output, self.memory = output + 1e-3 * self.memory, value.detach().mean()
        return output


@caught("NS", "calls_leave_nothing")
class RemembersLargest(Weighted):
    """In training logits are clipped by the largest that any batch had."""

    largest = 1.0

    def weights(self, query, key, padding):
        if self.training:
            self.largest = max(self.largest, float(query.detach().abs().max()))
            query = query.clamp(-0.5 * self.largest, 0.5 * self.largest)
        return super().weights(query, key, padding)


@caught("CS", "decode_keeps_state")
class AddsToState(Gated):
    """The sums of the state that a step is given are added to in place."""

    def decode(self, query, key, value, state, padding, *, gate, strength):
        output, new = super().decode(query, key, value, state, padding, gate=gate, strength=strength)
        state["sum"].copy_(new["sum"])
        return output, {**new, "sum": state["sum"]}


@caught("CS", "decode_keeps_state")
class RenamesInState(Gated):
    """The mapping that a step is given is filled with the new state."""

    def decode(self, query, key, value, state, padding, *, gate, strength):
        output, new = super().decode(query, key, value, state, padding, gate=gate, strength=strength)
        state.update(new)
        return output, state


# --- what is there and does nothing ------------------------------------------------------------------------------


@caught("NS", "parameters_learn")
class UnusedParameter(Weighted):
    """A parameter that no equation has."""

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(self.num_heads))


@caught("CC", "parameters_learn")
class RoundedParameter(UnusedParameter):
    """A parameter that is rounded, which has no gradient."""

    def weights(self, query, key, padding):
        return super().weights(query * self.temperature.round()[:, None, None], key, padding)


@caught("NC", "each_input_is_used")
class QueryIgnored(Weighted):
    """Weights come from the keys alone."""

    def weights(self, query, key, padding):
        return super().weights(torch.ones_like(query), key, padding)


@caught("CC", "each_input_is_used")
class ValueIgnored(Weighted):
    """The keys are averaged."""

    def attend(self, query, key, value, padding):
        return self.weights(query, key, padding) @ key + 0.0 * value.sum()


@caught("NC", "each_input_is_used")
class KeyIgnored(Weighted):
    """The values are compared with the queries."""

    def attend(self, query, key, value, padding):
        return self.weights(query, value, padding) @ value + 0.0 * key.sum()


@caught("NC", "inputs_untouched")
class MaskInPlace(Weighted):
    """The source's mask is changed for the caller: its first token is real from now on."""

    def attend(self, query, key, value, padding):
        if padding.key is not None:
            padding.key[:, 0] = False
        return super().attend(query, key, value, padding)


@caught("CC", "inputs_untouched")
class MaskEmptied(Weighted):
    """Rows that are padding alone are made real, in the caller's mask."""

    def compute(self, query, key, value, padding):
        output = super().compute(query, key, value, padding)
        if padding.query is not None:
            padding.query.logical_and_(torch.zeros_like(padding.query))
        return output


@caught("NS", "output_type")
class ReturnsDouble(Weighted):
    """In evaluation the output is float64."""

    def compute(self, query, key, value, padding):
        output = super().compute(query, key, value, padding)
        return output if self.training else output.double()


@caught("CS", "output_type")
class StepReturnsHalf(Weighted):
    """Decoding gives bfloat16."""

    def step(self, query_t, state, *, query_padding_mask=None):
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        return output.bfloat16(), state
