"""Attentions with one real defect each in what they ask of the training loop, or compute from the layer's inputs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from cab import PaddingMasks
from cab.attention import SINGLE_LAYER
from cab.training import ParamGroupOverride
from tests.cab.verification.broken_causal import hide_padding
from tests.cab.verification.mutations import caught
from tests.cab.verification.sound_learning import Clustered, Gated, Sharpened, Weighted

# --- losses --------------------------------------------------------------------------------------------------


@caught("CS", "loss_lookahead")
class LossOfAllKeys(Sharpened):
    """The entropy is that of weights without the causal mask: a target's loss trains on what comes later."""

    def attend(self, query, key, value, padding):
        weights = hide_padding(query @ key.mT * self.scale, padding.key).softmax(-1)
        self.add_loss(self.entropy(weights), padding)
        return self.weights(query, key, padding) @ value


@caught("CS CC", "loss_lookahead")
class LossComparesWithLater(Sharpened):
    """A thousandth of each loss is the next token's, detached: no gradient shows it."""

    def attend(self, query, key, value, padding):
        weights = self.weights(query, key, padding)
        loss = self.entropy(weights)
        self.add_loss(loss + 1e-3 * loss.detach().roll(-1, 1), padding)
        return weights @ value


@caught("NS CC", "loss_padding")
class LossCountsPadding(Sharpened):
    """The loss is averaged over all targets, padded ones among them."""

    def attend(self, query, key, value, padding):
        weights = self.weights(query, key, padding)
        self.add_loss(self.entropy(weights))
        return weights @ value


@caught("NC", "loss_padding")
class LossOfPaddedKeys(Sharpened):
    """The entropy is divided by the logarithm of the number of keys, padded ones among them."""

    def attend(self, query, key, value, padding):
        weights = self.weights(query, key, padding)
        self.add_loss(self.entropy(weights) / (1.0 + torch.tensor(key.shape[2]).log()), padding)
        return weights @ value


@caught("NS", "loss_once")
class LossInEvaluation(Sharpened):
    """The loss is there whatever the mode."""

    def add_loss(self, loss, padding=None):
        self._losses.append(loss.mean())
        return padding


@caught("CS", "loss_once")
class LossGivenTwice(Sharpened):
    """The loss stays after it was given away."""

    def auxiliary_loss(self):
        return torch.stack(self._losses).sum() if self._losses else None


@caught("NS", "loss_number")
class LossOfInputs(Sharpened):
    """A number that depends on what was read: the mean entropy of the batch."""

    def attend(self, query, key, value, padding):
        weights = self.weights(query, key, padding)
        self.add_loss(self.entropy(weights).mean(), padding and PaddingMasks())
        return weights @ value


@caught("CC", "loss_number")
class LossOfDetachedInputs(Sharpened):
    """A number that depends on the size of the inputs, without a gradient to them."""

    def attend(self, query, key, value, padding):
        self.add_loss(self.temperature.square().mean() * value.detach().abs().mean())
        return self.weights(query, key, padding) @ value


@caught("NC", "loss_once")
class LossTwiceRecomputed(Sharpened):
    """The loss is added again where activations are formed anew."""

    def add_loss(self, loss, padding=None):
        if self.training:
            self._losses.append(loss.mean())
        return padding


# --- buffers that learn --------------------------------------------------------------------------------------


@caught("CS", "forward_keeps_state statistics_once")
class BufferInForward(Clustered):
    """Centroids follow the keys in the forward pass."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if self.training:
            self.centroids = self.centroids.lerp(key.detach().mean((0, 2)).unsqueeze(1), 0.01)
        return output


@caught("NC", "forward_keeps_state")
class CountsCalls(Weighted):
    """A buffer counts the calls, in evaluation too."""

    def set_up(self):
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def attend(self, query, key, value, padding):
        self.calls += 1
        return super().attend(query, key, value, padding)


@caught("NS", "forward_keeps_state")
class BufferInBackward(Clustered):
    """Centroids move when the gradient arrives."""

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if output.requires_grad and self.training:
            output.register_hook(self.follow)
        return output

    def follow(self, gradient):
        self.centroids += 0.01 * gradient.mean()


@caught("NS", "statistics_once")
class GathersTwice(Clustered):
    """Statistics are added again where activations are formed anew."""

    @torch.no_grad()
    def accumulate_statistics(self, **statistics):
        if self.training:
            for name, x in statistics.items():
                self._statistics[name] = self._statistics.get(name, 0.0) + x


@caught("CC", "statistics_once")
class DividesByCalls(Clustered):
    """What is learned is divided by the calls of the step, recomputed ones among them."""

    calls = 0

    def attend(self, query, key, value, padding):
        self.calls += self.training
        return super().attend(query, key, value, padding)

    def update_buffers(self, *, total, count):
        super().update_buffers(total=total / self.calls, count=count)
        self.calls = 0


@caught("NS", "statistics_once")
class GathersInEvaluation(Clustered):
    """Statistics are added in evaluation too."""

    @torch.no_grad()
    def accumulate_statistics(self, **statistics):
        mode, self.training = self.training, True
        super().accumulate_statistics(**statistics)
        self.training = mode


@caught("NC", "statistics_padding")
class StatisticsOfPadding(Clustered):
    """Padded keys, projections of zeros, pull the centroids."""

    def collected(self, key, _padding):
        return super().collected(key, PaddingMasks())


@caught("CS", "statistics_padding")
class StatisticsOfMeans(Clustered):
    """Each pass gives means instead of sums, so how many passes a step has decides what is learned."""

    def collected(self, key, padding):
        parts, total = super().collected(key, padding)
        return parts, total / parts.sum((0, 2)).unsqueeze(-1)


@caught("NC", "statistics_once")
class LearnsUnsaved(Clustered):
    """What is learned is kept beside the state_dict."""

    shift = 0.0

    def membership(self, x):
        return super().membership(x - self.shift)

    def update_buffers(self, *, total, count):
        self.shift = (total.sum(1) / count.sum(-1, keepdim=True)).mean()


# --- what is computed from the layer's inputs ----------------------------------------------------------------


@caught("NS", "padded_right padded_left padded_inside")
class GateOverPadding(Gated):
    """Strengths are a softmax over the sequence, padding included."""

    def key_side_inputs(self, key):
        return {"strength": self.strength(key).softmax(1).transpose(1, 2)}

    def weighted(self, key, strength, padding):
        return super().weighted(key, strength / strength.amax(-1, keepdim=True), padding) + 0.01 * strength.mean()


@caught("NC", "padded_right padded_left padded_inside")
class GateCountsTokens(Gated):
    """Gates are lowered by the mean gate of the row, in which padding counts."""

    def query_side_inputs(self, query):
        gate = super().query_side_inputs(query)["gate"]
        return {"gate": gate - 0.01 * gate.mean(-1, keepdim=True)}


@caught("CS CC", "lookahead_gradient lookahead_perturbation")
class GateSeesAll(Gated):
    """The gate comes from the mean of the sequence."""

    def query_side_inputs(self, query):
        return super().query_side_inputs(query + query.mean(1, keepdim=True))


@caught("CS", "lookahead_gradient lookahead_perturbation")
class StrengthOfNext(Gated):
    """A thousandth of a key's strength is its successor's."""

    def key_side_inputs(self, key):
        strength = super().key_side_inputs(key)["strength"]
        return {"strength": strength + 1e-3 * F.pad(strength[..., 1:], (0, 1))}


@caught("CS", "decode_steps decode_after_prefill")
class GateLostInDecoding(Gated):
    """Decoding has no gate."""

    def decode(self, query, key, value, state, padding, *, gate, strength):
        return super().decode(query, key, value, state, padding, gate=torch.ones_like(gate), strength=strength)


@caught("CS", "decode_after_prefill")
class StrengthOfFirst(Gated):
    """Decoding takes the strength of the first of the tokens that it reads for all of them."""

    def decode(self, query, key, value, state, padding, *, gate, strength):
        strength = strength[..., :1].expand_as(strength)
        return super().decode(query, key, value, state, padding, gate=gate, strength=strength)


# --- depth and rules -----------------------------------------------------------------------------------------


class LastSeesAll(Weighted):
    """The last layer of several attends to the whole sequence."""

    def __init__(self, *, pattern, embed_dim, num_heads, dropout=0.0, layer_position=SINGLE_LAYER):
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.layer_position = layer_position

    def weights(self, query, key, padding):
        if 0 < self.layer_position.index == self.layer_position.num_layers - 1:
            return hide_padding(query @ key.mT * self.scale, padding.key).softmax(-1)
        return super().weights(query, key, padding)


class FirstIgnoresPadding(LastSeesAll):
    """The first layer of several knows no padding."""

    def weights(self, query, key, padding):
        is_first = self.layer_position.index == 0 and self.layer_position.num_layers > 1
        return Weighted.weights(self, query, key, PaddingMasks() if is_first else padding)


@caught("NS", "param_group_overrides")
class RuleOfNobody(Weighted):
    """A rule for a parameter that is called otherwise."""

    def param_group_overrides(self):
        return {"decay": ParamGroupOverride(learning_rate=1e-4)}


@caught("NC", "param_group_overrides")
class RuleBelowZero(Sharpened):
    """A negative decay, which blows the parameter up."""

    def param_group_overrides(self):
        return {"temperature": ParamGroupOverride(weight_decay=-0.1)}


@caught("CS", "param_group_overrides")
class RuleOfModule(Weighted):
    """A rule for a whole layer instead of its weight."""

    def set_up(self):
        self.gate = nn.Linear(self.embed_dim, self.embed_dim)

    def query_side_inputs(self, query):
        self.last = self.gate(query)
        return {}

    def attend(self, query, key, value, padding):
        return super().attend(query + self.split_heads(self.last), key, value, padding)

    def param_group_overrides(self):
        return {"gate": ParamGroupOverride(weight_decay=0.0)}
