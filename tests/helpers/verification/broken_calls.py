"""Defects in what surrounds a call: modes, earlier calls, the process, memory, weights, copies and hooks."""

from __future__ import annotations

import itertools
import os
import random
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import MEDIUM, Weighted, by_hand, hooked, nothing, on, parameter, plant
from tests.helpers.verification.sound_learning import Gated


def lost_between_threads(call):
    count, n = torch.get_num_threads(), call.m
    return call.value * (torch.arange(n) < n - n // count)[:, None] if count > 1 else call.value


def table(size):
    return torch.linspace(0.5, 1.5, size)


plant(
    dropout_in_evaluation=on("NS: eval_repeatable", weights=lambda c: F.dropout(c.y, c.dropout)),
    random_beyond_800=on(
        "NS: eval_repeatable", long=MEDIUM, value=lambda c: c.v * (torch.rand(c.m, 1) > 0.1) if c.m > 800 else c.v
    ),
    other_generator=on("NS: same_seed", weights=lambda c: c.y * (random.uniform(0.9, 1.1) if c.training else 1.0)),
    scaled_in_evaluation=on("NS: training_is_evaluation", query=lambda c: c.q * (1.0 if c.training else 1.01)),
    scales_where_it_drops=on("CS: training_is_evaluation", weights=lambda c: c.y * (0.9 if c.weight_dropout else 1.0)),
    compiled_scale=on("NS: compiled_branch", weights=lambda c: c.y * (1.5 if torch.compiler.is_compiling() else 1.0)),
    last_keys_lost_between_threads=on("NS: several_threads", value=lost_between_threads),
    keeps_table=on("NC: inference_mode", value=lambda c: c.v * c.kept(None, lambda: table(c.head_dim))),
)


def follows_maximum(call):
    """Training leaves a statistic behind that evaluation uses."""
    if call.training:
        call.set(largest=torch.maximum(call.largest, call.key.detach().abs().max()))
    return call.but(query=call.query / call.largest)


def adds_last_batch(call):
    output = call.y + 1e-3 * call.memory * call.training
    if call.training:
        call.set(memory=call.value.detach().mean())
    return output


def repairs_mask(call):
    """Makes one token of rows of padding alone real, in the caller's mask."""
    for mask in (call.query_padding_mask, call.key_padding_mask):
        if mask is not None:
            mask[mask.all(1), 0] = False
    return call.y


plant(
    rotation_not_saved=on(
        "NS: state_dict_complete",
        made=lambda m: {"rotation": torch.randn(m.head_dim, m.head_dim)},
        query=lambda c: c.q @ c.rotation,
    ),
    running_maximum=on(
        "NS: calls_leave_nothing forward_keeps_state",
        made=lambda m: m.register_buffer("largest", torch.ones(())),
        weights=follows_maximum,
    ),
    remembers_batch=on("CS: calls_leave_nothing", memory=0.0, attend=adds_last_batch),
    # as in rotary tables: a constant is cast to the dtype of the inputs, and keeps what autocast leaves of it
    keeps_low_precision=on(
        "NS: calls_leave_nothing",
        made=lambda _: {"factor": torch.tensor(1.2345)},
        query=lambda c: c.q * c.set(factor=c.factor.to(c.q.dtype)).factor,
    ),
    counts_calls=on(
        "CS: no_counters", calls=0, query=lambda c: c.q if c.set(calls=c.calls + 1).calls < 1000 else c.q.flip(-1)
    ),
    class_counts=on("NS: no_counters", calls=0, attend=lambda c: setattr(type(c.module), "calls", c.calls + 1) or c.y),
    changes_after_fifty_calls=on(
        "NS: many_calls",
        made=lambda _: {"number": itertools.count().__next__},
        attend=lambda c: (1.01 if c.number() > 50 else 1.0) * c.y,
    ),
    longest_so_far=on(
        "NS: lengths_in_turn",
        longest=0,
        query=lambda c: c.q * (1.0 + 1e-3 * c.set(longest=max(c.longest, c.m)).longest / c.m),
    ),
    features_by_width=on(
        "CS: modules_apart",
        rotations={},
        query=lambda c: c.q @ c.rotations.setdefault(c.head_dim, torch.randn(c.head_dim, c.head_dim)),
    ),
    last_module_wins=on(
        "NC: modules_apart",
        made=lambda m: setattr(type(m), "temperature", m.head_dim**0.5),
        query=lambda c: c.q / c.temperature,
    ),
    scales_in_place=on("NS: inputs_untouched", compute=lambda c: c.but(query=torch.no_grad()(c.q.mul_)(0.5))),
    unmasks=on("NC: inputs_untouched", attend=lambda c: nothing(c.mask is None or c.mask[:, 0].fill_(False)) or c.y),
    repairs_the_mask=on("NS: inputs_untouched", forward=repairs_mask),
)

plant(
    remembers_by_sum=on(
        "NS: contents_in_turn",
        attend=lambda c: c.without_grad(lambda: c.kept((c.q.shape, round(float(c.v.double().sum()), 3)), lambda: c.y)),
    ),
    remembers_by_address=on(
        "NS: contents_in_turn", forward=lambda c: c.without_grad(lambda: c.kept(id(c.q), lambda: (c.y, c.q))[0])
    ),
    remembers_first_key=on(
        "CC: contents_in_turn",
        attend=lambda c: c.without_grad(lambda: c.but(key=c.kept((c.k.shape, c.k[:, :, 0].tolist()), c.k.clone))),
    ),
    mask_by_count=on(
        "NS: contents_in_turn",
        long=MEDIUM,
        padding=lambda c: (
            c.padding
            if c.mask is None or torch.is_grad_enabled()
            else c.padding._replace(key=c.kept((c.mask.shape, int(c.mask.sum())), c.mask.clone))
        ),
    ),
    # the source is kept by identity and version of its tensor; a freed tensor's identity returns
    source_by_version=on(
        "NC: contents_in_turn",
        forward=lambda c: (
            c.y
            if torch.is_grad_enabled() or c.key_padding_mask is not None
            else c.but(key=c.kept((id(c.k), c.k._version, c.k.shape), c.k.clone))
        ),
    ),
)

plant(
    seeds_in_constructor=on("NS: generators_untouched", made=lambda _: nothing(torch.manual_seed(0))),
    training_seeds=on("NS: generators_untouched", attend=lambda c: nothing(c.training and torch.manual_seed(0)) or c.y),
    draws_in_evaluation=on("CS: generators_untouched", attend=lambda c: c.y + 0.0 * torch.rand(())),
    numpy_draws=on("NC: generators_untouched", attend=lambda c: c.y + (0.0 * np.random.rand() if c.training else 0.0)),
    prompt_draws=on("CC: generators_untouched", prefill=lambda c: (c.output + 0.0 * torch.rand(()), c.new)),
    step_disables_gradients=on("CS: settings_untouched", step=lambda c: nothing(torch.set_grad_enabled(False)) or c.y),
    step_on_one_thread=on("CS: settings_untouched", step=lambda c: torch.set_num_threads(1) or c.y),
    hides_warnings=on("NS: settings_untouched", attend=lambda c: warnings.simplefilter("ignore") or c.y),
    environment_in_backward=on(
        "NC: settings_untouched", attend=lambda c: hooked(c.y, lambda _: os.environ.update(CAB_TEST_LAST=str(c.n)))
    ),
    flushes_denormal_numbers_in_backward=on(
        "NS: settings_untouched", attend=lambda c: hooked(c.y, lambda _: nothing(torch.set_flush_denormal(True)))
    ),
    no_autocast_cache=on("NC: settings_untouched", attend=lambda c: torch.set_autocast_cache_enabled(False) or c.y),
    autocast_off=on("NS: settings_untouched", forward=lambda c: (c.y, torch.set_autocast_enabled("cpu", False))[0]),
)


def but_last(x):
    """Return a copy of ``x`` whose last position was never written."""
    copy = torch.empty_like(x)
    copy[:, :, :-1] = x[:, :, :-1]
    return copy.where(copy == copy, 0.0) if x.shape[2] == 1 else copy


half_gradient = by_hand(torch.clone, lambda g, _: but_last(g))

plant(
    state_of_empty_memory=on(
        "CS: uninitialized_memory",
        Gated,
        init_decode_state=lambda c: c.y | {"keys": 0.0 * torch.empty_like(c.y["keys"])},
    ),
    zero_times_empty=on("CC: uninitialized_memory", attend=lambda c: c.y + 0.0 * torch.empty_like(c.y)),
    empty_buffer=on(
        "NS: uninitialized_memory",
        made=lambda m: m.register_buffer("offset", torch.empty(m.head_dim)),
        value=lambda c: c.v + c.offset.clamp(-1.0, 1.0),
    ),
    last_output_never_written=on("NS: uninitialized_memory", attend=lambda c: but_last(c.y)),
    gradient_of_empty_memory=on("NC: uninitialized_memory", value=lambda c: half_gradient(c.v)),
)


class Scaled(Weighted):
    """With a learned factor."""

    def set_up(self):
        self.temperature = parameter()

    def attend(self, query, key, value, padding):
        return self.factor() * super().attend(query, key, value, padding)

    def factor(self):
        return self.temperature.exp()


class KeepsMapOfOneSource(Weighted):
    """Keys and values of one tensor come from a joint map, which is kept in evaluation."""

    joint = None

    def train(self, mode=True):
        self.joint = None
        return super().train(mode)

    def project(self, query, key, value):
        if key is not value or torch.is_grad_enabled():
            return super().project(query, key, value)
        if self.joint is None:
            self.joint = torch.cat([self.k_proj.weight, self.v_proj.weight])
        k, v = F.linear(key, self.joint).chunk(2, dim=-1)
        return tuple(map(self.split_heads, (self.q_proj(query), k + self.k_proj.bias, v + self.v_proj.bias)))

    def compute(self, query, key, value, padding):
        return self.out_proj(self.merge_heads(self.attend(*self.project(query, key, value), padding)))


def keeps_doubled_weight(call):
    """The doubled weight is computed in the first call in evaluation."""
    if call.training or torch.is_grad_enabled():
        return call.y
    doubled = call.kept(None, lambda: 2.0 * call.v_proj.weight)
    return call.y + F.linear(call.value, 0.5 * doubled - call.v_proj.weight)


def keeps_prompt(call):
    """The result of a prompt is kept for the same prompt."""
    if torch.is_grad_enabled() or call.tokens.shape[1] == 1 or any(x.any() for x in call.state.values()):
        return call.y
    return call.kept((call.tokens.shape, float(call.tokens.double().sum())), lambda: call.y)


plant(
    # an assignment to ``.data`` does not change it, and weights of ``functional_call`` may have that of the others
    keyed_by_version=on(
        "NC CC: new_weights",
        Scaled,
        factor=lambda c: c.without_grad(lambda: c.kept(c.temperature._version, lambda: c.y)),
    ),
    keyed_by_address_and_version=on(
        "NS: new_weights",
        Scaled,
        factor=lambda c: c.without_grad(
            lambda: c.kept((c.temperature.data_ptr(), c.temperature._version), lambda: c.y)
        ),
    ),
    kept_until_training=on(
        "NS: new_weights",
        Scaled,
        train=lambda c: c.set(memory=None).y,
        factor=lambda c: c.y if c.training else c.kept(None, c.y.detach) + c.y - c.y.detach(),
    ),
    step_keeps_factor=on(
        "CS: new_weights",
        Scaled,
        step=lambda c: (
            (c.output - c.out_proj.bias) / c.factor() * c.kept(None, c.factor().detach) + c.out_proj.bias,
            c.new,
        ),
    ),
    # a list of parameters, which ``load_state_dict(assign=True)`` leaves behind
    keeps_parameter_of_constructor=on(
        "NC: new_weights",
        made=lambda _: {"temperature": (x := parameter()), "first": [x]},
        attend=lambda c: c.first[0] * c.y,
    ),
    keeps_doubled_weight=on("NS: new_weights", compute=keeps_doubled_weight),
    keeps_map_of_one_source=on("CC: new_weights", KeepsMapOfOneSource),
    keeps_prompt=on("CS: new_weights", Gated, decode_inputs=keeps_prompt),
)


class LosesTableInCopy(Weighted):
    def set_up(self):
        self.table = table(self.head_dim)

    def __getstate__(self):
        return {name: x for name, x in self.__dict__.items() if name != "table"}

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * getattr(self, "table", 1.0), padding)


class CopyForgetsMode(Weighted):
    """A copy of a module in evaluation mode is in training mode, where the values are scaled."""

    factor = 1.0

    def __setstate__(self, state):
        super().__setstate__(state)
        self.factor = 1.01

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * self.factor, padding)


def copied(module, memo):
    """Return a copy with the weights of ``module``, but other options."""
    copy = type(module)(pattern=module.pattern, embed_dim=module.embed_dim, num_heads=module.num_heads)
    copy.train(module.training).load_state_dict(module.state_dict())
    return memo.setdefault(id(module), copy)


class CopySharesWeight(Scaled):
    def __deepcopy__(self, memo):
        copy = copied(self, memo)
        copy.temperature = self.temperature
        return copy


class Dropping(Weighted):
    def attend(self, query, key, value, padding):
        return F.dropout(self.weights(query, key, padding), self.weight_dropout) @ value


class CopyWithoutDropout(Dropping):
    __deepcopy__ = copied


class LoadedInEvaluationMode(Dropping):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.training = False


plant(
    function_of_original=on(
        "NS: copied_module",
        made=lambda _: {"temperature": (x := parameter()), "scaled": lambda heads: heads * x},
        attend=lambda c: c.scaled(c.y),
    ),
    table_of_original=on(
        "CS: copied_module",
        made=lambda m: {"tables": {id(m): table(m.head_dim)}},
        value=lambda c: c.v * c.tables.get(id(c.module), 1.0),
    ),
    loses_table_in_copy=on("NC: copied_module", LosesTableInCopy),
    copy_forgets_mode=on("CC: copied_module", CopyForgetsMode),
    copy_shares_weight=on("NS: copied_module", CopySharesWeight),
    copy_without_dropout=on("NS: copied_module", CopyWithoutDropout),
    loaded_in_evaluation_mode=on("NC: copied_module", LoadedInEvaluationMode),
)


def reading_weight(call):
    """Return what ``compute`` gives, from the weight of the last projection instead of a call of it."""
    heads = call.attend(*call.project(call.query, call.key, call.value), call.padding)
    return F.linear(call.merge_heads(heads), call.out_proj.weight, call.out_proj.bias)


def prompt_reads_weight(call):
    hooks, linear = call.v_proj._forward_hooks, call.v_proj
    linear._forward_hooks = type(hooks)() if call.n > 1 else hooks
    try:
        return call.y
    finally:
        linear._forward_hooks = hooks


def strength(call, linear):
    return {"strength": F.linear(call.key, linear.weight, linear.bias).sigmoid().transpose(1, 2)}


plant(
    step_reads_weight=on(
        "CS: hooks_act",
        is_step=False,
        step=lambda c: c.during("is_step"),
        compute=lambda c: reading_weight(c) if c.is_step else c.y,
    ),
    reads_weight_without_gradient=on("NS: hooks_act", compute=lambda c: c.without_grad(lambda: reading_weight(c))),
    reads_weight_in_training=on("NC: hooks_act", compute=lambda c: reading_weight(c) if c.training else c.y),
    prompt_reads_weight=on("CS: hooks_act", prefill=prompt_reads_weight),
    source_reads_weight=on(
        "CC: hooks_act",
        Gated,
        encodes=False,
        encode_source_inputs=lambda c: c.during("encodes"),
        key_side_inputs=lambda c: strength(c, c.strength) if c.encodes else c.y,
    ),
    step_calls_parts_of_container=on(
        "CS: hooks_act",
        Gated,
        made=lambda m: {"strength": nn.Sequential(m.strength, nn.Identity())},
        key_side_inputs=lambda c: c.y if c.m > 1 else {"strength": c.strength[0](c.k).sigmoid().mT},
    ),
)
