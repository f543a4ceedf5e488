"""Defects in what surrounds a call: modes, earlier calls, the process, memory, weights, copies and hooks."""

import functools
import itertools
import os
import random
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cab.verification.planted.mutations import Weighted, by_hand, hooked, medium, nothing, on, parameter, planted
from tests.cab.verification.planted.sound_learning import Gated


def lost_between_threads(call):
    count, n = torch.get_num_threads(), call.m
    return call.value * (torch.arange(n) < n - n // count)[:, None] if count > 1 else call.value


def table(size):
    return torch.linspace(0.5, 1.5, size)


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


def but_last(x):
    """Return a copy of ``x`` whose last position was never written."""
    copy = torch.empty_like(x)
    copy[:, :, :-1] = x[:, :, :-1]
    return copy.where(copy == copy, 0.0) if x.shape[2] == 1 else copy


half_gradient = by_hand(torch.clone, lambda g, _: but_last(g))


class Scaled(Weighted):
    def set_up(self):
        self.tau = parameter()

    def attend(self, query, key, value, padding):
        return self.factor() * super().attend(query, key, value, padding)

    def factor(self):
        return self.tau.exp()


def keeps_joint_map(call):
    """Keys and values of one tensor come from a joint map, which is kept in evaluation."""
    if call.key is not call.value or torch.is_grad_enabled():
        return call.y
    joint = call.kept(None, lambda: torch.cat([call.k_proj.weight, call.v_proj.weight]))
    k, v = F.linear(call.key, joint).chunk(2, dim=-1)
    heads = map(call.split_heads, (call.q_proj(call.query), k + call.k_proj.bias, v + call.v_proj.bias))
    return call.out_proj(call.merge_heads(call.attend(*heads, call.padding)))


def keeps_doubled_weight(call):
    """The doubled weight is computed in the first call in evaluation."""
    if call.training or torch.is_grad_enabled():
        return call.y
    return call.y + F.linear(call.value, 0.5 * call.kept(None, lambda: 2.0 * call.v_proj.weight) - call.v_proj.weight)


def keeps_prompt(call):
    """The result of a prompt is kept for the same prompt."""
    if torch.is_grad_enabled() or call.tokens.shape[1] == 1 or any(x.any() for x in call.state.values()):
        return call.y
    return call.kept((call.tokens.shape, float(call.tokens.double().sum())))


class CopiesItself(Weighted):
    """A copy has the same weights, but other options."""

    def __deepcopy__(self, memo):
        copy = type(self)(pattern=self.pattern, embed_dim=self.embed_dim, num_heads=self.num_heads)
        copy.train(self.training).load_state_dict(self.state_dict())
        return memo.setdefault(id(self), copy)


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


gated, scaled = (functools.partial(on, base=base) for base in (Gated, Scaled))

DEFECTS = planted(
    dropout_in_evaluation=on("NS: eval_repeatable", weights=lambda c: F.dropout(c.y, c.dropout)),
    random_beyond_800=medium("NS: eval_repeatable", value=lambda c: F.dropout(c.v, 0.1, c.m > 800)),
    other_generator=on("NS: same_seed", weights=lambda c: c.y * (random.uniform(0.9, 1.1) if c.training else 1.0)),
    scaled_in_evaluation=on("NS: training_is_evaluation", query=lambda c: c.q * (1.0 if c.training else 1.01)),
    scales_where_it_drops=on("CS: training_is_evaluation", weights=lambda c: c.y * (0.9 if c.weight_dropout else 1.0)),
    compiled_scale=on("NS: compiled_branch", weights=lambda c: c.y * (1.5 if torch.compiler.is_compiling() else 1.0)),
    last_keys_lost_between_threads=on("NS: several_threads", value=lost_between_threads),
    keeps_table=on("NC: inference_mode", value=lambda c: c.v * c.kept(None, lambda: table(c.head_dim))),
    rotation_not_saved=on(
        "NS: state_dict_complete", made=lambda m: {"map": torch.randn(2 * [m.head_dim])}, query=lambda c: c.q @ c.map
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
    counts_calls=on("CS: no_counters", calls=0, query=lambda c: c.q * (c.set(calls=c.calls + 1).calls < 1000)),
    class_counts=on("NS: no_counters", calls=0, attend=lambda c: setattr(type(c.module), "calls", c.calls + 1) or c.y),
    changes_after_fifty_calls=on(
        "NS: many_calls",
        made=lambda _: {"number": itertools.count().__next__},
        attend=lambda c: (1.01 if c.number() > 50 else 1.0) * c.y,
    ),
    longest_so_far=on(
        "NS: lengths_in_turn", most=0, query=lambda c: c.q * (1.0 + 1e-3 * c.set(most=max(c.most, c.m)).most / c.m)
    ),
    features_by_width=on(
        "CS: modules_apart", maps={}, query=lambda c: c.q @ c.maps.setdefault(c.head_dim, torch.randn(2 * [c.head_dim]))
    ),
    last_module_wins=on(
        "NC: modules_apart", made=lambda m: setattr(type(m), "tau", m.head_dim**0.5), query=lambda c: c.q / c.tau
    ),
    scales_in_place=on("NS: inputs_untouched", compute=lambda c: c.but(query=torch.no_grad()(c.q.mul_)(0.5))),
    unmasks=on("NC: inputs_untouched", attend=lambda c: nothing(c.mask is None or c.mask[:, 0].fill_(False)) or c.y),
    repairs_the_mask=on("NS: inputs_untouched", forward=repairs_mask),
    remembers_by_sum=on(
        "NS: contents_in_turn", attend=lambda c: c.unless_grad(lambda: c.kept((c.q.shape, round(float(c.v.sum()), 3))))
    ),
    remembers_by_address=on(
        "NS: contents_in_turn", forward=lambda c: c.unless_grad(lambda: c.kept(id(c.q), lambda: (c.y, c.q))[0])
    ),
    remembers_first_key=on(
        "CC: contents_in_turn",
        attend=lambda c: c.unless_grad(lambda: c.but(key=c.kept((c.k.shape, c.k[:, :, 0].tolist()), c.k.clone))),
    ),
    mask_by_count=medium(
        "NS: contents_in_turn",
        attend=lambda c: c.unless_grad(
            lambda: c.with_mask(lambda x: c.but(mask=c.kept((x.shape, int(x.sum())), x.clone)))
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
    seeds_in_constructor=on("NS: generators_untouched", made=lambda _: nothing(torch.manual_seed(0))),
    training_seeds=on("NS: generators_untouched", attend=lambda c: nothing(c.training and torch.manual_seed(0)) or c.y),
    draws_in_evaluation=on("CS: generators_untouched", attend=lambda c: c.y + 0.0 * torch.rand(())),
    numpy_draws=on("NC: generators_untouched", attend=lambda c: c.y + (0.0 * np.random.rand() if c.training else 0.0)),
    prompt_draws=on("CC: generators_untouched", prefill=lambda c: c.output + 0.0 * torch.rand(())),
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
    state_of_empty_memory=gated(
        "CS: uninitialized_memory", init_decode_state=lambda c: c.y | {"keys": 0.0 * torch.empty_like(c.y["keys"])}
    ),
    zero_times_empty=on("CC: uninitialized_memory", attend=lambda c: c.y + 0.0 * torch.empty_like(c.y)),
    empty_buffer=on(
        "NS: uninitialized_memory",
        made=lambda m: m.register_buffer("offset", torch.empty(m.head_dim)),
        value=lambda c: c.v + c.offset.clamp(-1.0, 1.0),
    ),
    last_output_never_written=on("NS: uninitialized_memory", attend=lambda c: but_last(c.y)),
    gradient_of_empty_memory=on("NC: uninitialized_memory", value=lambda c: half_gradient(c.v)),
    # an assignment to ``.data`` does not change it, and weights of ``functional_call`` may have that of the others
    keyed_by_version=scaled("NC CC: new_weights", factor=lambda c: c.unless_grad(lambda: c.kept(c.tau._version))),
    keyed_by_address_and_version=scaled(
        "NS: new_weights", factor=lambda c: c.unless_grad(lambda: c.kept((c.tau.data_ptr(), c.tau._version)))
    ),
    kept_until_training=scaled(
        "NS: new_weights",
        train=lambda c: c.set(memory=None).y,
        factor=lambda c: c.y if c.training else c.kept(None, c.y.detach) + c.y - c.y.detach(),
    ),
    step_keeps_factor=scaled(
        "CS: new_weights",
        step=lambda c: (c.output - c.out_proj.bias) / c.factor() * c.kept(None, c.factor().detach) + c.out_proj.bias,
    ),
    # a list of parameters, which ``load_state_dict(assign=True)`` leaves behind
    keeps_parameter_of_constructor=on(
        "NC: new_weights", made=lambda _: {"tau": (x := parameter()), "first": [x]}, attend=lambda c: c.first[0] * c.y
    ),
    keeps_doubled_weight=on("NS: new_weights", compute=keeps_doubled_weight),
    keeps_map_of_one_source=on("CC: new_weights", train=lambda c: c.set(memory=None).y, compute=keeps_joint_map),
    keeps_prompt=gated("CS: new_weights", decode_inputs=keeps_prompt),
    function_of_original=on(
        "NS: copied_module",
        made=lambda _: {"tau": (x := parameter()), "scaled": lambda heads: heads * x},
        attend=lambda c: c.scaled(c.y),
    ),
    table_of_original=on(
        "CS: copied_module",
        made=lambda m: {"tables": {id(m): table(m.head_dim)}},
        value=lambda c: c.v * c.tables.get(id(c.module), 1.0),
    ),
    loses_table_in_copy=on(
        "NC: copied_module",
        made=lambda m: {"table": table(m.head_dim)},
        __getstate__=lambda c: {name: x for name, x in c.y.items() if name != "table"},
        value=lambda c: c.v * getattr(c.module, "table", 1.0),
    ),
    copy_forgets_mode=on(
        "CC: copied_module", factor=1, __setstate__=lambda c: c.y or c.set(factor=1.01), value=lambda c: c.v * c.factor
    ),
    copy_shares_weight=on(
        "NS: copied_module",
        CopiesItself,
        made=lambda _: {"tau": parameter()},
        __deepcopy__=lambda c: c.y.register_parameter("tau", c.tau) or c.y,
        attend=lambda c: c.tau.exp() * c.y,
    ),
    copy_without_dropout=on("NS: copied_module", CopiesItself, weights=lambda c: F.dropout(c.y, c.weight_dropout)),
    loaded_in_evaluation_mode=on(
        "NC: copied_module",
        __setstate__=lambda c: c.y or c.set(training=False),
        weights=lambda c: F.dropout(c.y, c.weight_dropout),
    ),
    step_reads_weight=on(
        "CS: hooks_act",
        is_step=False,
        step=lambda c: c.during("is_step"),
        compute=lambda c: reading_weight(c) if c.is_step else c.y,
    ),
    reads_weight_without_gradient=on("NS: hooks_act", compute=lambda c: c.unless_grad(lambda: reading_weight(c))),
    reads_weight_in_training=on("NC: hooks_act", compute=lambda c: reading_weight(c) if c.training else c.y),
    prompt_reads_weight=on("CS: hooks_act", prefill=prompt_reads_weight),
    source_reads_weight=gated(
        "CC: hooks_act",
        encodes=False,
        encode_source_inputs=lambda c: c.during("encodes"),
        key_side_inputs=lambda c: (
            {"strength": F.linear(c.k, *c.strength.parameters()).sigmoid().mT} if c.encodes else c.y
        ),
    ),
    step_calls_parts_of_container=gated(
        "CS: hooks_act",
        made=lambda m: {"strength": nn.Sequential(m.strength, nn.Identity())},
        key_side_inputs=lambda c: c.y if c.m > 1 else {"strength": c.strength[0](c.k).sigmoid().mT},
    ),
)
