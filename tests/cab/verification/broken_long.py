"""Attentions that are sound at short lengths and in small batches, each with one real defect beyond."""

from __future__ import annotations

import torch

from cab import PaddingMasks
from tests.cab.verification.broken_causal import hide_padding
from tests.cab.verification.mutations import caught
from tests.cab.verification.sound_learning import Weighted


@caught("CS", "lookahead_gradient lookahead_perturbation")
class BorderLeak(Weighted):
    """One part in a thousand of the output where a block ends is the next token's."""

    block = 48

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        at_border = torch.arange(query.shape[2]) % self.block == self.block - 1
        at_border[-1] = False
        return output + 1e-3 * torch.where(at_border[:, None], value.roll(-1, 2), 0.0)


@caught("CS", "lookahead_perturbation", quick=False)
class BorderLeak77(BorderLeak):
    block = 77


@caught("CS", "lookahead_gradient", quick=False)
class BorderLeak191(BorderLeak):
    block = 191


@caught("CS", "lookahead_long", quick=False)
class BorderLeak350(BorderLeak):
    block = 350


@caught("CS", "lookahead_long", quick=False)
class BorderLeak1000(BorderLeak):
    block = 1000


@caught("CS", "lookahead_long", quick=False)
class BorderLeak1536(BorderLeak):
    block = 1536


@caught("CS", "lookahead_long lookahead_length", quick=False)
class NoMaskBeyond3000(Weighted):
    """Another code path for long sequences, without the causal mask."""

    beyond = 3000

    def weights(self, query, key, padding):
        if query.shape[2] > self.beyond:
            return hide_padding(query @ key.mT * self.scale, padding.key).softmax(-1)
        return super().weights(query, key, padding)


@caught("CS", "lookahead_long", quick=False)
class NoMaskBeyond400(NoMaskBeyond3000):
    beyond = 400


@caught("NS", "padded_left padded_in_training_inside", quick=False)
class PaddingForgottenBeyond300(Weighted):
    """Padding is not looked at in long sequences."""

    beyond = 300

    def weights(self, query, key, padding):
        return super().weights(query, key, PaddingMasks() if key.shape[2] > self.beyond else padding)


@caught("NS", "padded_right", quick=False)
class PaddingForgottenBeyond3500(PaddingForgottenBeyond300):
    beyond = 3500


@caught("CS", "decode_steps", quick=False)
class CacheOf500(Weighted):
    """Decoding keeps the last 500 tokens."""

    kept = 500

    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state, query_padding_mask=query_padding_mask)
        return output, {name: x[:, -self.kept :] for name, x in state.items()}


@caught("CS", "decode_after_prefill", quick=False)
class CacheOf3900(CacheOf500):
    kept = 3900


@caught("NS", "any_length", quick=False)
class NumbersLostBeyond2500(Weighted):
    """What is far beyond the usual is infinite."""

    beyond = 2500

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output * torch.inf if query.shape[2] > self.beyond else output


@caught("CS", "any_length", quick=False)
class NumbersLostBeyond4100(NumbersLostBeyond2500):
    beyond = 4100


@caught("NS", "batch_size rows_independent", quick=False)
class RowsMixedBeyond900(Weighted):
    """Long sequences share a hundredth with the other rows."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output + 0.01 * output.mean(0, keepdim=True) if query.shape[2] > 900 else output


@caught("NS", "eval_repeatable", quick=False)
class RandomBeyond800(Weighted):
    """Long sequences are computed from a random part of the keys, in evaluation too."""

    def attend(self, query, key, value, padding):
        if query.shape[2] > 800:
            value = value * (torch.rand(value.shape[2], 1) > 0.1)
        return super().attend(query, key, value, padding)


class ScaledBySize(Weighted):
    """A target in 300 is scaled by the size of the call."""

    every, dtypes = 300, (torch.float32, torch.float64)

    def attend(self, query, key, value, padding):
        scaled = torch.arange(query.shape[2]) % self.every == self.every - 1
        factor = 1.0 + 1e-3 * (query.numel() % 7) * scaled * (query.dtype in self.dtypes)
        return super().attend(query, key, value, padding) * factor[:, None]


class RoundingDecides(ScaledBySize):
    """Only in float32: as if these targets chose between scores that are nearly equal. No defect."""

    dtypes = (torch.float32,)


class DigitsLost(ScaledBySize):
    """A target in 20, in float32: as if summed badly, too often for choices that rounding decides."""

    every, dtypes = 20, (torch.float32,)


@caught("NS", "gradient_is_derivative", quick=False)
class DetachedBeyond1000(Weighted):
    """Long sequences lose the gradient of their weights."""

    def weights(self, query, key, padding):
        weights = super().weights(query, key, padding)
        return weights.detach() if query.shape[2] > 1000 else weights


@caught("NS", "batch_size")
class LargeBatchMixed(Weighted):
    """From nine rows on, values are centered over the batch."""

    rows = 9

    def attend(self, query, key, value, padding):
        if len(query) >= self.rows:
            value = value - 0.01 * value.mean((0, 2), keepdim=True)
        return super().attend(query, key, value, padding)


@caught("NC", "batch_size")
class HugeBatchMixed(LargeBatchMixed):
    rows = 257


@caught("NS", "lengths_in_turn")
class LongestSoFar(Weighted):
    """A factor depends on the longest sequence that was ever read."""

    longest = 0

    def weights(self, query, key, padding):
        self.longest = max(self.longest, key.shape[2])
        return super().weights(query * (1.0 + 1e-3 * self.longest / key.shape[2]), key, padding)


@caught("NC", "lengths_in_turn")
class KeepsPositions(Weighted):
    """Positions, relative to the length, are kept and only made anew for longer sequences."""

    positions = None

    def weights(self, query, key, padding):
        n = key.shape[2]
        if self.positions is None or len(self.positions) < n:
            self.positions = torch.arange(n)[:, None] / n
        return super().weights(query, key * (1.0 + 0.01 * self.positions[:n]), padding)


class QuadraticInEvaluation(Weighted):
    """Linear attention in training; in evaluation all weights are written out."""

    def attend(self, query, key, value, padding):
        q, k = query.relu() + 0.1, key.relu() + 0.1
        if padding.key is not None:
            k = k.masked_fill(padding.key[:, None, :, None], 0.0)
        if self.training:
            return q @ (k.mT @ value) / (q @ k.sum(2).unsqueeze(-1))
        scores = q @ k.mT
        return scores @ value / scores.sum(-1, keepdim=True)


class QuadraticInTraining(QuadraticInEvaluation):
    """The other way round."""

    def attend(self, query, key, value, padding):
        self.training = not self.training
        output = super().attend(query, key, value, padding)
        self.training = not self.training
        return output
