"""Attentions with one defect each of repeated calls, modes, precision, sizes or context."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from cab import PaddingMasks
from tests.cab.verification.broken_causal import hide_padding
from tests.cab.verification.mutations import caught
from tests.cab.verification.sound_learning import Weighted


class Unmasked(Weighted):
    """Forgets the causal mask where ``forgets`` is true."""

    def forgets(self, query):
        raise NotImplementedError

    def weights(self, query, key, padding):
        if self.forgets(query):
            return hide_padding(query @ key.mT * self.scale, padding.key).softmax(-1)
        return super().weights(query, key, padding)


# --- modes and calls -----------------------------------------------------------------------------------------


@caught("NS", "training_is_evaluation")
class ScaledInEvaluation(Weighted):
    """The inference path multiplies the logits by a hundredth more."""

    def weights(self, query, key, padding):
        return super().weights(query if self.training else 1.01 * query, key, padding)


@caught("NC", "inference_mode")
class KeepsTable(Weighted):
    """A table is created in the first call, which may be in inference mode."""

    table = None

    def attend(self, query, key, value, padding):
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, self.head_dim)
        return super().attend(query, key, value * self.table, padding)


@caught("NS", "several_threads")
class SplitsByThreads(Weighted):
    """With several threads, keys are cut into one part per thread, and the last one is left out."""

    def attend(self, query, key, value, padding):
        count = torch.get_num_threads()
        if count > 1:
            value = value * (torch.arange(value.shape[2]) < value.shape[2] - value.shape[2] // count)[:, None]
        return super().attend(query, key, value, padding)


@caught("CS", "no_counters")
class CountsCalls(Weighted):
    """Random features would be drawn again at the thousandth call."""

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


@caught("NS", "many_calls no_counters")
class RemembersTraining(Weighted):
    """Keeps values of training from the 21st call, and adds their mean in evaluation."""

    def set_up(self):
        self.kept = []
        self.seen = 0

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if self.training:
            self.seen += 1
            if self.seen > 20:
                self.kept.append(value.detach().mean((0, 1, 2)))
        elif self.kept:
            output = output + torch.stack(self.kept).mean(0)
        return output


@caught("CC", "default_dtype")
class TypeOfDefault(Weighted):
    """A factor is created in the default dtype."""

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value, padding) * torch.ones(1)


# --- gradients -----------------------------------------------------------------------------------------------


class WritesGradient(torch.autograd.Function):
    """The identity, whose backward pass clamps the gradient in place."""

    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        return gradient.mul_(1.0) if gradient.dim() == 4 else gradient.clamp_(-0.5, 0.5)


@caught("NS", "gradient_of_residual")
class GradientInPlace(Weighted):
    def compute(self, query, key, value, padding):
        return WritesGradient.apply(super().compute(query, key, value, padding))


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


@caught("NS", "gradient_of_two_calls")
class SavedOutsideContext(Weighted):
    def attend(self, query, key, value, padding):
        return super().attend(query, key, LastInput.apply(value), padding)


@caught("NC", "gradient_of_many_rows")
class GradientOfEightRows(Weighted):
    """Only the first eight sequences train the weights."""

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return torch.cat([weights[:8], weights[8:].detach()])


@caught("CS", "parameters_in_every_batch")
class UnusedWhenShort(Weighted):
    """A parameter that only long sequences use."""

    def set_up(self):
        self.far = nn.Parameter(torch.zeros(self.head_dim))

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + self.far if query.shape[2] > 50 else output


# --- precision -----------------------------------------------------------------------------------------------


class ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient in low precision is half of the true one."""

    @staticmethod
    def forward(context, x):
        context.low = x.dtype is not torch.float32
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient / 2 if context.low else gradient


@caught("NS", "autocast_gradient")
class HalfGradientUnderAutocast(Weighted):
    def attend(self, query, key, value, padding):
        return super().attend(query, key, ScaledGradient.apply(value), padding)


@caught("CS", "autocast_lookahead")
class NoMaskUnderAutocast(Unmasked):
    def forgets(self, query):
        return query.shape[2] > 128 and torch.is_autocast_enabled("cpu")


@caught("NS", "module_in_bfloat16")
class PositionsInType(Weighted):
    """Positions are numbers of the type of the input: above 256, bfloat16 has only even ones."""

    def weights(self, query, key, padding):
        angle = torch.arange(key.shape[2], dtype=key.dtype)[:, None]
        factor = 1.0 + 0.5 * torch.cos(angle)
        return super().weights(query * factor[: query.shape[2]], key * factor, padding)


# --- sizes ---------------------------------------------------------------------------------------------------


@caught("CS", "model_sizes")
class NoMaskInWideHeads(Unmasked):
    def forgets(self, _query):
        return self.head_dim >= 64


@caught("NC", "model_sizes")
class RowsMixedInManyHeads(Weighted):
    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + 0.01 * output.mean(0, keepdim=True) if self.num_heads >= 16 else output


@caught("CS", "model_sizes_gradient")
class DetachedInOddHeads(Weighted):
    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights.detach() if self.head_dim % 2 else weights


@caught("CS", "lookahead_long", quick=False)
class NoMaskInLongHeads(Unmasked):
    def forgets(self, query):
        return query.shape[2] > 3000 and self.num_heads > 1


# --- padding and dropout ---------------------------------------------------------------------------------------


@caught("NC", "padded_single_token")
class SingleTokenLost(Weighted):
    """The average leaves the own token out of the count: a single one is divided by zero, which is caught."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if padding.key is None:
            return output
        return output * ((~padding.key).sum(1) != 1)[:, None, None, None]


class QuadraticWithPadding(Weighted):
    """Linear attention, whose masked form writes all weights out."""

    def attend(self, query, key, value, padding):
        q, k = query.relu() + 0.1, key.relu() + 0.1
        if padding.key is None:
            return q @ (k.mT @ value) / (q @ k.sum(2).unsqueeze(-1))
        scores = (q @ k.mT).masked_fill(padding.key[:, None, None], 0.0)
        return scores @ value / scores.sum(-1, keepdim=True).clamp_min(1e-6)


@caught("NS", "dropout_differs")
class DropoutSharedByRows(Weighted):
    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights * F.dropout(torch.ones_like(weights[:1]), self.dropout, self.training)


@caught("CS", "dropout_differs")
class DropoutSharedByPairs(Weighted):
    """The mask of half of the batch, twice."""

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        half = F.dropout(torch.ones_like(weights[: (len(weights) + 1) // 2]), self.dropout, self.training)
        return weights * torch.cat([half, half])[: len(weights)]


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


@caught("NS", "dropout_per_head")
class DropoutSharedByHeads(Weighted):
    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights * F.dropout(torch.ones_like(weights[:, :1]), self.dropout, self.training)


@caught("NC", "dropout_per_head")
class DropoutSharedByPositions(Weighted):
    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights * F.dropout(torch.ones_like(weights[:, :, :1]), self.dropout, self.training)


# --- context -------------------------------------------------------------------------------------------------


class Hiding(Weighted):
    """Hides the pairs of ``hidden(distance)``."""

    def hidden(self, distance):
        raise NotImplementedError

    def attend(self, query, key, value, padding):
        n = query.shape[2]
        weights = self.weights(query, key, padding)
        kept = weights.masked_fill(self.hidden(torch.arange(n)[:, None] - torch.arange(n)), 0.0)
        return kept / kept.sum(-1, keepdim=True).clamp_min(1e-9) @ value


@caught("CS", "context_map")
class PredecessorUnread(Hiding):
    def hidden(self, distance):
        return distance == 1


@caught("CS", "context_map")
class WindowOf400(Hiding):
    def hidden(self, distance):
        return distance > 400


@caught("CS", "context_map")
class OddTokensUnreadBeyond64(Hiding):
    def hidden(self, distance):
        return (distance > 64) & (distance % 2 == 1)


@caught("CS", "context_map", quick=False)
class WindowOf2000(Hiding):
    def hidden(self, distance):
        return distance > 2000


@caught("NC", "source_map")
class FirstKeysOnly(Weighted):
    """Reads a source only up to 256 keys."""

    def attend(self, query, key, value, padding):
        hidden = None if padding.key is None else padding.key[:, :256]
        return super().attend(query, key[:, :, :256], value[:, :, :256], PaddingMasks(padding.query, hidden))
