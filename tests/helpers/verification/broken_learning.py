"""Attentions with one real defect each in what they ask of the training loop, or compute from the layer's inputs."""

from __future__ import annotations

import torch

from cab import PaddingMasks
from cab.training import ParamGroupOverride
from tests.helpers.verification.mutations import Weighted, caught, defect, hide_padding
from tests.helpers.verification.sound_learning import Clustered, Deep, Gated, Sharpened

# --- losses --------------------------------------------------------------------------------------------------


@defect("losses", "CS", "loss_lookahead", base=Sharpened)
def loss_of_weights_without_mask(call):
    """A target's loss trains on what comes later."""
    weights = hide_padding(call.query @ call.key.mT * call.module.scale, call.padding.key).softmax(-1)
    call.module.add_loss(call.module.entropy(weights), call.padding)


@defect("losses", "CS CC", "loss_lookahead", base=Sharpened)
def loss_contains_detached_loss_of_next(call):
    """No gradient shows it."""
    loss = call.module.entropy(call.result)
    call.module.add_loss(loss + 1e-3 * loss.detach().roll(-1, 1), call.padding)


@defect("losses", "NS CC", "loss_padding", base=Sharpened)
def loss_counts_padding(call):
    call.module.add_loss(call.module.entropy(call.result))


@defect("losses", "NC", "loss_padding", base=Sharpened)
def loss_counts_padded_keys(call):
    count = torch.tensor(call.key.shape[2])
    call.module.add_loss(call.module.entropy(call.result) / (1.0 + count.log()), call.padding)


@caught("NS", "loss_once")
class LossInEvaluation(Sharpened):
    def add_loss(self, loss, padding=None):
        self._losses.append(loss.mean())
        return padding


@caught("CS", "loss_once")
class LossGivenTwice(Sharpened):
    def auxiliary_loss(self):
        return torch.stack(self._losses).sum() if self._losses else None


@defect("losses", "NS", "loss_number", base=Sharpened)
def scalar_loss_of_inputs(call):
    call.module.add_loss(call.module.entropy(call.result).mean(), PaddingMasks())


@defect("losses", "NS", "loss_number", base=Sharpened)
def scalar_loss_of_first_row(call):
    call.module.add_loss(call.module.entropy(call.result)[0].mean())


@defect("losses", "CC", "loss_number", base=Sharpened)
def scalar_loss_of_detached_inputs(call):
    call.module.add_loss(call.module.temperature.square().mean() * call.query.detach().abs().mean())


@caught("NS", "loss_once")
class LossDroppedByEvaluation(Sharpened):
    def weights(self, query, key, padding):
        if not self.training:
            self._losses = []
        return super().weights(query, key, padding)


@caught("NC", "loss_once")
class LossTwiceRecomputed(Sharpened):
    def add_loss(self, loss, padding=None):
        if self.training:
            self._losses.append(loss.mean())
        return padding


# --- buffers that learn --------------------------------------------------------------------------------------


@defect("output", "CS", "forward_keeps_state statistics_once", base=Clustered)
def buffer_changes_in_forward(call):
    if call.training:
        call.module.centroids.lerp_(call.key.detach().mean((0, 2)).unsqueeze(1), 0.01)
    return call.result


@defect("output", "NS", "forward_keeps_state", base=Clustered)
def buffer_changes_in_backward(call):
    def follow(gradient):
        call.module.centroids += 0.01 * gradient.mean()

    if call.result.requires_grad and call.training:
        call.result.register_hook(follow)
    return call.result


@caught("NS", "statistics_once")
class GathersTwice(Clustered):
    @torch.no_grad()
    def accumulate_statistics(self, **statistics):
        if self.training:
            for name, x in statistics.items():
                self._statistics[name] = self._statistics.get(name, 0.0) + x


@caught("NS", "statistics_once")
class GathersInEvaluation(Clustered):
    @torch.no_grad()
    def accumulate_statistics(self, **statistics):
        mode, self.training = self.training, True
        super().accumulate_statistics(**statistics)
        self.training = mode


@caught("CS", "statistics_once")
class GathersInEvaluationAlone(Clustered):
    @torch.no_grad()
    def accumulate_statistics(self, **statistics):
        if not self.training:
            self._statistics.update(statistics)


@caught("NC", "statistics_padding")
class StatisticsOfPadding(Clustered):
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
    shift = 0.0

    def membership(self, x):
        return super().membership(x - self.shift)

    def update_buffers(self, *, total, count):
        self.shift = (total.sum(1) / count.sum(-1, keepdim=True)).mean()


# --- what is computed from the layer's inputs ----------------------------------------------------------------


@caught("CS CC", "lookahead_gradient lookahead_perturbation")
class GateSeesAll(Gated):
    def query_side_inputs(self, query):
        return super().query_side_inputs(query + query.mean(1, keepdim=True))


@caught("CS", "decode_steps decode_after_prefill")
class GateLostInDecoding(Gated):
    def decode(self, query, key, value, state, padding, *, gate, strength):
        return super().decode(query, key, value, state, padding, gate=torch.ones_like(gate), strength=strength)


# --- depth and rules -----------------------------------------------------------------------------------------


class LastSeesAll(Deep):
    def forgets(self, _query):
        return 0 < self.layer_position.index == self.layer_position.num_layers - 1


class FirstIgnoresPadding(Deep):
    def weights(self, query, key, padding):
        is_first = self.layer_position.index == 0 and self.layer_position.num_layers > 1
        return super().weights(query, key, PaddingMasks() if is_first else padding)


@caught("NS", "param_group_overrides")
class RuleOfNobody(Weighted):
    def param_group_overrides(self):
        return {"decay": ParamGroupOverride(learning_rate=1e-4)}


@caught("NC", "param_group_overrides")
class RuleBelowZero(Sharpened):
    def param_group_overrides(self):
        return {"temperature": ParamGroupOverride(weight_decay=-0.1)}
