"""Attentions that are sound at short lengths and in small batches, each with one real defect beyond."""

from __future__ import annotations

import torch

from cab import PaddingMasks
from tests.helpers.verification.mutations import LONG, MEDIUM, Weighted, caught, defect


def border_leak(block, patterns, checks, **options):
    """Register an attention in which a thousandth of the output where a block ends is the next token's."""

    def leaking(call):
        at_border = torch.arange(call.query.shape[2]) % block == block - 1
        at_border[-1] = False
        return call.result + 1e-3 * torch.where(at_border[:, None], call.value.roll(-1, 2), 0.0)

    leaking.__name__ = f"border_leak_{block}"
    defect("output", patterns, checks, **options)(leaking)


border_leak(77, "CS", "lookahead_perturbation", long=MEDIUM)
border_leak(191, "CS", "lookahead_gradient", long=MEDIUM)
border_leak(1536, "CS", "lookahead_long", long=3200)


@defect("mask", "CS", "lookahead_long lookahead_length", long=3200)
def no_mask_beyond_3000(call):
    return call.query.shape[2] > 3000


@defect("inputs", "NS", "padded_left padded_right padded_in_training_inside", long=MEDIUM)
def padding_forgotten_beyond_300(call):
    return call._replace(padding=PaddingMasks()) if call.key.shape[2] > 300 else call


@caught("CS", "decode_steps decode_after_prefill", long=MEDIUM)
class CacheOf500(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state, query_padding_mask=query_padding_mask)
        return output, {name: x[:, -500:] for name, x in state.items()}


@defect("output", "CS", "any_length", long=LONG)
def infinite_beyond_4100(call):
    return call.result * torch.inf if call.query.shape[2] > 4100 else call.result


@defect("output", "NS", "batch_size rows_independent", long=MEDIUM)
def rows_mixed_beyond_900(call):
    return call.result + 0.01 * (call.query.shape[2] > 900) * call.result.mean(0, keepdim=True)


@defect("inputs", "NS", "eval_repeatable", long=MEDIUM)
def random_beyond_800(call):
    n = call.value.shape[2]
    return call._replace(value=call.value * (torch.rand(n, 1) > 0.1)) if n > 800 else call


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


@defect("weights", "NS", "gradient_is_derivative", long=MEDIUM)
def detached_beyond_1000(call):
    return call.result.detach() if call.query.shape[2] > 1000 else call.result


def centered(call):
    return call._replace(value=call.value - 0.01 * call.value.mean((0, 2), keepdim=True))


@defect("inputs", "NC", "many_rows")
def centered_over_257_rows(call):
    return centered(call) if len(call.query) >= 257 else call


@caught("NS", "lengths_in_turn")
class LongestSoFar(Weighted):
    longest = 0

    def weights(self, query, key, padding):
        self.longest = max(self.longest, key.shape[2])
        return super().weights(query * (1.0 + 1e-3 * self.longest / key.shape[2]), key, padding)


class SometimesQuadratic(Weighted):
    """Linear attention that writes all weights out in one ``mode``."""

    mode = "with padding"

    def attend(self, query, key, value, padding):
        q, k = query.relu() + 0.1, key.relu() + 0.1
        has_padding = padding.key is not None
        if has_padding:
            k = k.masked_fill(padding.key[:, None, :, None], 0.0)
        modes = {"with padding": has_padding, "in training": self.training, "in evaluation": not self.training}
        if not modes[self.mode]:
            return q @ (k.mT @ value) / (q @ k.sum(2).unsqueeze(-1))
        scores = q @ k.mT
        return scores @ value / scores.sum(-1, keepdim=True)
