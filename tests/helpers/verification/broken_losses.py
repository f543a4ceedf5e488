"""Attentions with one real defect each in losses and statistics that are added in unusual ways, and in what is rare."""

from __future__ import annotations

import torch

from cab.training import is_recomputing
from tests.helpers.verification.mutations import Weighted, caught, defect
from tests.helpers.verification.sound_learning import Gated, Sharpened

# --- losses ---------------------------------------------------------------------------------------------------


@caught("NS", "loss_number")
class LossAppended(Weighted):
    """A scalar of the inputs, which no call of ``add_loss`` adds."""

    def attend(self, query, key, value, padding):
        if self.training and not is_recomputing():
            self._losses.append(query.square().mean())
        return super().attend(query, key, value, padding)


@caught("CS", "loss_lookahead")
class LossOfNextByOwnMethod(Sharpened):
    def add_losses(self, weights, _query, _key, padding):
        loss = self.entropy(weights)
        self.add_loss(loss + loss.roll(-1, 1), padding)

    def add_loss(self, loss, padding=None):
        if self.training and not is_recomputing():
            real = loss if padding is None or padding.query is None else loss[~padding.query]
            self._losses.append(real.mean())


@defect("losses", "NS", "loss_number", base=Sharpened)
def loss_of_largest_query(call):
    call.module.add_loss(call.query.detach().abs().amax() * call.module.temperature.square().mean())


@caught("NS", "loss_once")
class LossKeptForNextQuery(Sharpened):
    def attend(self, query, key, value, padding):
        if self.training and not is_recomputing():
            self._losses = []
        return super().attend(query, key, value, padding)

    def auxiliary_loss(self):
        return torch.stack(self._losses).sum() if self._losses else None


@caught("NS", "loss_padding")
class RandomLossOfPadding(Sharpened):
    def add_losses(self, weights, _query, _key, padding):
        loss = self.entropy(weights)
        self.add_loss(loss if padding.query is None else loss.masked_fill(padding.query, 5.0))

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        return output * (1.0 + 0.1 * torch.randn(output.shape[:2])[..., None, None]) if self.training else output


# --- statistics -----------------------------------------------------------------------------------------------


class Gathering(Weighted):
    """Adds a running mean of keys to the values."""

    persistent = True

    def set_up(self):
        self.register_buffer("mean", torch.zeros(self.head_dim), persistent=self.persistent)

    def real_keys(self, key, padding):
        return key.detach() if padding.key is None else key.detach().masked_fill(padding.key[:, None, :, None], 0.0)


@caught("NS", "statistics_once")
class UnsavedMeanInEvaluation(Gathering):
    persistent = False

    def attend(self, query, key, value, padding):
        self.accumulate_statistics(total=self.real_keys(key, padding).sum((0, 1, 2)), count=torch.ones(()))
        return super().attend(query, key, value if self.training else value + self.mean, padding)

    def update_buffers(self, *, total, count):
        self.mean.lerp_(total / total.norm().clamp_min(count * 1e-6), 0.5)


@caught("NS", "statistics_once")
class SmallStatisticTwice(Gathering):
    """The smaller one of two statistics is gathered again in recomputation."""

    def attend(self, query, key, value, padding):
        keys = self.real_keys(key, padding)
        self.accumulate_statistics(big=1e6 * keys.square().sum((0, 1, 2)))
        if self.training:
            self._statistics["total"] = self._statistics.get("total", 0.0) + keys.sum((0, 1, 2))
        return super().attend(query, key, value + self.mean, padding)

    def update_buffers(self, *, big, total):
        self.mean.lerp_(total / (total.norm() + 0.0 * big).clamp_min(1e-6), 0.5)


# --- what is rare: the order of rows, second derivatives, padding in evaluation -------------------------------


@caught("CS", "decode_reordered")
class SortsRows(Gated):
    """Rows are sorted by a number in the state, which is their order until they are reordered."""

    def init_decode_state(self, batch_size, like):
        rows = torch.arange(batch_size, dtype=like.dtype)[:, None]
        return super().init_decode_state(batch_size, like) | {"row": rows}

    def decode(self, query, key, value, state, padding, **more):
        order = state["row"][:, 0].argsort(stable=True)
        sorted_state = {name: x[order] for name, x in state.items() if name != "row"}
        output, new = super().decode(query, key, value, sorted_state, padding, **more)
        return output, new | {"row": state["row"]}


class Cube(torch.autograd.Function):
    """x³, with half of its second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3.0 * x * x.detach()


@defect("inputs", "NS CS NC", "second_derivative")
def half_of_a_second_derivative(call):
    return call._replace(key=call.key + 0.05 * Cube.apply(call.key))
