"""Defects of what is learned: gradients, dropout, parameters, auxiliary losses and statistics."""

import functools
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

from cab import PaddingMasks
from cab.training import ParamGroupOverride, is_recomputing
from tests.cab.verification.planted import sound
from tests.cab.verification.planted.mutations import Weighted, by_hand, hooked, medium, nothing, on, parameter, planted
from tests.cab.verification.planted.sound_learning import Clustered, Sharpened

last, memory = deque(maxlen=1), deque(maxlen=1)
# needs its output, which the caller may overwrite
exp = by_hand(lambda x: memory.append(x.exp()) or memory[0], lambda g, _: g * memory[0])
square_of_last_input = by_hand(  # keeps its input outside of the context
    lambda x: last.append(x.detach().clone()) or x.square(),
    lambda g, _: 2.0 * g * (last[0] if last[0].shape == g.shape else last[0].mean()),
)
square = by_hand(torch.square, lambda g, x: 2.0 * g * x.detach())
cube = by_hand(lambda x: x**3, lambda g, x: g * 3.0 * x * x.detach())
views_gradient = by_hand(torch.clone, lambda g, _: g.view(-1).view_as(g))


def dropped(call, like):
    return F.dropout(torch.ones_like(like), call.dropout, call.training)


def is_first(call):
    return call.training and not is_recomputing()


def losses_so_far(call):
    return torch.stack(call._losses).sum() if call._losses else None


def adds_loss(call):
    if is_first(call):
        is_whole = call.padding is None or call.padding.query is None
        call._losses.append((call.loss if is_whole else call.loss[~call.padding.query]).mean())


def changes_buffer(call):
    output = call.y
    if call.training:
        call.centroids.lerp_(call.key.detach().mean((0, 2)).unsqueeze(1), 0.01)
    return output


def gathers_twice(call):
    if call.training:
        for name, x in call.arguments.items():
            call._statistics[name] = call._statistics.get(name, 0.0) + x.detach()


def gathers_always(call):
    mode = call.training
    call.set(training=True).but()
    call.set(training=mode)


class Gathering(Weighted):
    """Adds a running mean of keys to the values."""

    persistent = True

    def set_up(self):
        self.register_buffer("mean", torch.zeros(self.head_dim), persistent=self.persistent)

    def real_keys(self, key, padding):
        return key.detach() if padding.key is None else key.detach().masked_fill(padding.key[:, None, :, None], 0.0)


def uses_mean_in_evaluation(call):
    keys = call.real_keys(call.key, call.padding)
    call.accumulate_statistics(total=keys.sum((0, 1, 2)), count=torch.ones(()))
    return call.y if call.training else call.but(value=call.value + call.mean)


def gathers_small_twice(call):
    """The smaller one of two statistics is gathered again in recomputation."""
    keys = call.real_keys(call.key, call.padding)
    call.accumulate_statistics(big=1e6 * keys.square().sum((0, 1, 2)))
    if call.training:
        call._statistics["total"] = call._statistics.get("total", 0.0) + keys.sum((0, 1, 2))
    return call.but(value=call.value + call.mean)


leaf = functools.partial(torch.ones, requires_grad=True)
sharpened, clustered = (functools.partial(on, base=base) for base in (Sharpened, Clustered))

DEFECTS = planted(
    half_of_key_detached=on("NS: gradient_is_derivative", key=lambda c: 0.5 * (c.k + c.k.detach())),
    detached_1000=medium("NS: gradient_is_derivative", weights=lambda c: c.y.detach() if c.n > 1000 else c.y),
    detached_in_training=on(
        "NS: gradient_is_derivative fast_is_reference",
        value=lambda c: 0.9 * c.v + 0.1 * c.v.detach() if c.training else c.v,
    ),
    detached_under_mask=on(
        "CS: gradient_is_derivative fast_is_reference", weights=lambda c: c.with_mask(lambda _: c.y.detach())
    ),
    gradient_in_place=on("NS: gradient_of_residual", compute=lambda c: hooked(c.y, lambda g: g.clamp_(-0.5, 0.5))),
    clamps_large_gradients=on("NS: gradient_of_residual", attend=lambda c: hooked(c.y, lambda g: g.clamp(-1e3, 1e3))),
    flushes_tiny_gradients=on(
        "CC: gradient_of_residual", attend=lambda c: hooked(c.y, lambda g: torch.where(g.abs() < 1e-10, 0.0, g))
    ),
    wants_contiguous_gradient=on("CS: gradient_of_residual", forward=lambda c: views_gradient(c.y)),
    saves_its_output=on("NS: gradient_of_residual", sound.PlainAverage, forward=lambda c: exp(c.y)),
    saved_outside_context=on("NS: gradient_of_two_calls", value=lambda c: square_of_last_input(c.v)),
    second_derivative_lost=on("NS: second_derivative", value=lambda c: square(c.v)),
    half_of_a_second_derivative=on("NS CS NC: second_derivative", key=lambda c: c.k + 0.05 * cube(c.k)),
    needs_gradient_of_query=on(
        "NC: frozen_leaves", forward=lambda c: c.y if c.q.requires_grad else c.y.detach() + 0.0 * c.out_proj.bias
    ),
    frozen_bias_freezes_weight=on(
        "CS: frozen_leaves", compute=lambda c: c.but(value=c.v if c.out_proj.bias.requires_grad else c.v.detach())
    ),
    unscaled_dropout=on("NS: dropout_mean", weights=lambda c: c.y * (torch.rand_like(c.y) >= c.dropout * c.training)),
    dropout_of_half_the_rate=on("CS: dropout_rate", weights=lambda c: F.dropout(c.y, c.dropout / 2, c.training)),
    dropout_shared_by_rows=on("NS: dropout_differs", weights=lambda c: c.y * dropped(c, c.y[:1])),
    dropout_of_first_call=on(
        "NS: dropout_differs", weights=lambda c: c.y * c.kept(c.y.shape, lambda: dropped(c, c.y)) if c.training else c.y
    ),
    dropout_shared_by_heads=on("NS: dropout_per_head", weights=lambda c: c.y * dropped(c, c.y[:, :1])),
    dropout_shared_by_positions=on("NC: dropout_per_head", weights=lambda c: c.y * dropped(c, c.y[:, :, :1])),
    unused_when_short=on(
        "CS: parameters_in_every_batch",
        made=lambda m: {"far": nn.Parameter(torch.zeros(m.head_dim))},
        attend=lambda c: c.y + c.far if c.n > 50 else c.y,
    ),
    unused_parameter=on("NS: parameters_learn", made=lambda m: {"tau": nn.Parameter(torch.ones(m.num_heads))}),
    rounded_parameter=on(
        "CC: parameters_learn", made=lambda _: {"tau": parameter()}, query=lambda c: c.q * c.tau.round()
    ),
    # both maps of a low-rank addition start at zero, so neither ever gets a gradient
    two_zero_maps=on(
        "NS: parameters_learn",
        made=lambda m: {"maps": nn.ParameterList([torch.zeros(m.embed_dim, 4), torch.zeros(4, m.embed_dim)])},
        compute=lambda c: c.but(value=c.v + c.v @ c.maps[0] @ c.maps[1]),
    ),
    hidden_tensor=on("NS: graph_leaves", made=lambda _: {"tau": leaf(())}, query=lambda c: c.q * c.tau),
    list_of_tensors=on("CS: graph_leaves", made=lambda m: {"tau": [leaf(m.head_dim)]}, value=lambda c: c.v * c.tau[0]),
    buffer_with_gradient=on(
        "NC: graph_leaves", made=lambda m: m.register_buffer("tau", leaf(m.head_dim)), value=lambda c: c.v * c.tau
    ),
    leaf_in_forward=on("NS: graph_leaves", value=lambda c: c.v + torch.zeros(1, requires_grad=True)),
    # a list of modules that is no ``ModuleList``
    linear_in_tuple=on(
        "CC: graph_leaves", made=lambda m: {"map": (nn.Linear(m.head_dim, m.head_dim),)}, value=lambda c: c.map[0](c.v)
    ),
    leaf_in_loss=on(
        "NS: graph_leaves",
        made=lambda _: {"log_weights": [torch.zeros((), requires_grad=True)]},
        attend=lambda c: c.add_loss(c.q.square().mean((1, 3)) * c.log_weights[0].exp(), c.padding) or c.y,
    ),
    rule_of_nobody=on(
        "NS: param_group_overrides", param_group_overrides=lambda _: {"decay": ParamGroupOverride(learning_rate=1e-4)}
    ),
    rule_below_zero=sharpened(
        "NC: param_group_overrides", param_group_overrides=lambda _: {"tau": ParamGroupOverride(weight_decay=-0.1)}
    ),
    loss_of_weights_without_mask=sharpened(
        "CS: loss_lookahead", target_loss=lambda c: c.entropy(c.padded_logits.softmax(-1))
    ),
    # no gradient shows it
    loss_contains_detached_loss_of_next=sharpened(
        "CS CC: loss_lookahead", target_loss=lambda c: c.y + 1e-3 * c.y.detach().roll(-1, 1)
    ),
    loss_of_next_by_own_method=sharpened(
        "CS: loss_lookahead", add_loss=adds_loss, target_loss=lambda c: c.y + c.y.roll(-1, 1)
    ),
    loss_counts_padding=sharpened("NS CC: loss_padding", add_loss=lambda c: c.but(padding=None)),
    loss_counts_padded_keys=sharpened("NC: loss_padding", target_loss=lambda c: c.y / (1.0 + torch.tensor(c.m).log())),
    random_loss_of_padding=sharpened(
        "NS: loss_padding",
        add_loss=lambda c: c.but(padding=None),
        target_loss=lambda c: c.y if c.padding.query is None else c.y.masked_fill(c.padding.query, 5.0),
        attend=lambda c: c.y * (1.0 + 0.1 * torch.randn(c.q.shape[:2])[..., None, None] * c.training),
    ),
    loss_in_evaluation=sharpened("NS: loss_once", add_loss=lambda c: c._losses.append(c.loss.mean())),
    loss_given_twice=sharpened("CS: loss_once", auxiliary_loss=losses_so_far),
    loss_dropped=sharpened("NS: loss_once", weights=lambda c: (c if c.training else c.set(_losses=[])).y),
    recomputed_loss=sharpened("NC: loss_once", add_loss=lambda c: c.training and c._losses.append(c.loss.mean())),
    loss_kept_for_next_query=sharpened(
        "NS: loss_once", attend=lambda c: (c.set(_losses=[]) if is_first(c) else c).y, auxiliary_loss=losses_so_far
    ),
    loss_of_inputs=sharpened("NS: loss_number", target_loss=lambda c: c.y.mean()),
    scalar_loss_of_first_row=sharpened("NS: loss_number", target_loss=lambda c: c.y[0].mean()),
    scalar_loss_of_detached_inputs=sharpened(
        "CC: loss_number", add_losses=lambda c: c.add_loss(c.tau.square().mean() * c.q.detach().abs().mean())
    ),
    loss_of_largest_query=sharpened(
        "NS: loss_number", add_losses=lambda c: c.add_loss(c.q.detach().abs().amax() * c.tau.square().mean())
    ),
    own_loss=on("NS: loss_number", attend=lambda c: (is_first(c) and c._losses.append(c.q.square().mean())) or c.y),
    buffer_changes_in_forward=clustered("CS: forward_keeps_state statistics_once", attend=changes_buffer),
    buffer_changes_in_backward=clustered(
        "NS: forward_keeps_state",
        attend=lambda c: hooked(c.y, lambda g: nothing(c.centroids.add_(0.01 * g.mean()))) if c.training else c.y,
    ),
    gathers_twice=clustered("NS: statistics_once", accumulate_statistics=gathers_twice),
    gathers_in_evaluation=clustered("NS: statistics_once", accumulate_statistics=gathers_always),
    gathers_in_evaluation_alone=clustered(
        "CS: statistics_once", accumulate_statistics=lambda c: c.training or c._statistics.update(c.arguments)
    ),
    statistics_of_padding=clustered("NC: statistics_padding", collected=lambda c: c.but(padding=PaddingMasks())),
    # each pass gives means instead of sums, so how many passes a step has decides what is learned
    statistics_of_means=clustered(
        "CS: statistics_padding", collected=lambda c: (c.y[0], c.y[1] / c.y[0].sum((0, 2)).unsqueeze(-1))
    ),
    learns_unsaved=clustered(
        "NC: statistics_once",
        shift=0.0,
        membership=lambda c: c.but(x=c.x - c.shift),
        update_buffers=lambda c: c.set(shift=(c.total.sum(1) / c.count.sum(-1, keepdim=True)).mean()),
    ),
    unsaved_mean_in_evaluation=on(
        "NS: statistics_once",
        Gathering,
        persistent=False,
        attend=uses_mean_in_evaluation,
        update_buffers=lambda c: c.mean.lerp_(c.total / c.total.norm().clamp_min(c.count * 1e-6), 0.5),
    ),
    small_statistic_twice=on(
        "NS: statistics_once",
        Gathering,
        attend=gathers_small_twice,
        update_buffers=lambda c: c.mean.lerp_(c.total / (c.total.norm() + 0.0 * c.big).clamp_min(1e-6), 0.5),
    ),
)
