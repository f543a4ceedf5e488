"""Defects of padding, batches, lengths, numbers, precision, sizes, context and layouts."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from attentions.gla import GatedLinearAttention
from cab.claims import Claims, softmax_if
from tests.cab.verification.planted.mutations import LONG, by_hand, hide, hooked, medium, on, planted

autocast = functools.partial(torch.is_autocast_enabled, "cpu")


def in_rows(call, chosen, factor):
    """Return outputs, times ``factor`` in the rows of a padded batch whose real keys are ``chosen``."""
    return call.with_mask(lambda mask: torch.where(chosen(~mask)[:, None, None, None], factor * call.y, call.y))


def centered(x):
    return x - 0.01 * x.mean((0, 2), keepdim=True)


def trained(x, count):
    return torch.cat([x[:count], x[count:].detach()])


def mask_of_first_rows(call):
    """Rows beyond 512 are computed in a second chunk, with the mask of the first."""
    if call.mask is None or len(call.query) <= 512:
        return call.y
    rest = call.query[512:], call.key[512:], call.value[512:]
    return torch.cat([call.y[:512], F.scaled_dot_product_attention(*rest, ~call.mask[: len(rest[0]), None, None])])


def shares(x):
    return x / x.sum(-1, keepdim=True)


product = by_hand(torch.matmul, lambda g, weights, value: (g @ value.mT, weights.mT @ g))


def places(call):
    """Return a function of positions in the dtype of the keys: above 256, bfloat16 has only even numbers."""
    return 1.0 + 0.5 * torch.cos(torch.arange(call.m, dtype=call.key.dtype)[:, None])


def miscounted(call, mask):
    """Return the error of positions that are counted in the dtype of the queries."""
    error = (~mask).to(call.query.dtype).cumsum(1).float() - (~mask).cumsum(1)
    return error[:, None, :, None].to(call.query.dtype)


def in_coarse_mask(call, wrong):
    """Return the result, or what is ``wrong`` where a mask meets bfloat16."""
    return call.with_mask(lambda _: wrong(call) if call.query.dtype == torch.bfloat16 else call.y)


def without(call, hidden):
    """Return the weights without the pairs of ``hidden(distance)``."""
    distance = torch.arange(call.n)[:, None] - torch.arange(call.m)
    weights = call.y.masked_fill(hidden(distance), 0.0)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)


class Forgets(GatedLinearAttention):
    """Every form forgets what is older than 128 tokens."""

    def update(self, terms, memory, form):
        count, outputs = terms.value.shape[2], []
        for start in range(0, count, 128):
            part = [None if x is None else x[:, :, start : start + 128] for x in terms]
            output, memory = super().update(type(terms)._make(part), torch.zeros_like(memory), form)
            outputs.append(output)
        return torch.cat(outputs, 2), memory


def in_memory(x):
    """Return what is in the memory of ``x`` as if it were contiguous."""
    return x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))


def first(x):
    return x[:1].contiguous().roll(1, 1).expand_as(x)


DEFECTS = planted(
    padding_forgotten=on("NS NC: padded_right padded_left padded_inside", mask=lambda _: None),
    padding_forgotten_beyond_300=medium(
        "NS: padded_left padded_right padded_in_training_inside", mask=lambda c: None if c.m > 300 else c.mask
    ),
    # head by head where the flattened batch is row by row (Performer, LARA, Nystromformer)
    mask_tiled_by_head=on(
        "NS CC: padded_right padded_left padded_inside padded_row",
        weights=lambda c: c.with_mask(
            lambda x: hide(c.logits, x.repeat(c.num_heads, 1).view(*c.q.shape[:2], 1, c.m)).softmax(-1)
        ),
    ),
    # before the base class clears it: NaN times zero is NaN
    padding_times_zero=on(
        "NS: padding_poison_right padding_poison_left padding_poison_inside",
        forward=lambda c: c.y + 0.0 * c.q.sum(1, keepdim=True),
    ),
    mask_adds_a_key_of_zeros=on(
        "NS: padding_of_nothing",
        attend=lambda c: c.with_mask(
            lambda x: c.but(key=F.pad(c.k, (0, 0, 0, 1)), value=F.pad(c.v, (0, 0, 0, 1)), mask=F.pad(x, (0, 1)))
        ),
    ),
    # an average that leaves the token itself out of the count divides a single one by zero, which is caught
    single_token_lost=on("NC: padded_single_token", attend=lambda c: in_rows(c, lambda x: x.sum(1) == 1, 0.0)),
    single_source_token=on("NC: every_length", attend=lambda c: in_rows(c, lambda x: x.sum(1) == 1, 0.5)),
    rows_of_47=on("CS: every_length", weights=lambda c: in_rows(c, lambda x: x.sum(1) == 47, 0.9)),
    padded_on_the_left=on(
        "CC: every_length", attend=lambda c: in_rows(c, lambda x: ~x[:, 0] & x[:, 60:61].any(1) & (c.m > 65), 0.99)
    ),
    small_heads_in_padded_batches=on(
        "NS: every_length", attend=lambda c: in_rows(c, lambda x: x.any(1) & (c.head_dim == 6 and c.n > 40), 1.01)
    ),
    last_token_of_63_lost=on("NS: every_length", attend=lambda c: c.y * (0.9 if c.mask is None and c.n == 63 else 1.0)),
    reads_nothing_with_a_mask=on(
        "NS: padding_keeps_context", weights=lambda c: c.with_mask(lambda _: torch.eye(c.m).expand_as(c.y))
    ),
    grows_with_padding_in_training=on(
        "NS: padded_in_training_right padded_in_training_left",
        attend=lambda c: c.with_mask(lambda x: c.y * (1 + 0.01 * c.training * x.float().mean(1)[:, None, None, None])),
    ),
    centered_over_batch=on("NS: rows_independent rows_gradient batch_size", value=lambda c: centered(c.v)),
    centered_over_257_rows=on("NC: many_rows", value=lambda c: centered(c.v) if len(c.q) >= 257 else c.v),
    mean_of_batch_in_training=on(
        "NS: rows_in_training", attend=lambda c: c.y + 0.01 * c.training * c.v.detach().mean((0, 2), keepdim=True)
    ),
    rows_mixed_beyond_900=medium(
        "NS: batch_size rows_independent", attend=lambda c: c.y + 0.01 * (c.n > 900) * c.y.mean(0, keepdim=True)
    ),
    times_zero_over_batch=on("NS: bad_row", value=lambda c: c.v + 0.0 * c.v.sum(0)),
    shifted_by_largest_of_batch=on("NC: bad_row", weights=lambda c: shares((c.logits - c.logits.max().detach()).exp())),
    gradient_normalized_over_batch=on("CC: bad_row", value=lambda c: hooked(c.v, lambda g: g * (g.norm() / g.norm()))),
    packed_rows_share_zero=on("NS: bad_row", forward_packed=lambda c: c.y + 0.0 * c.y.sum()),
    only_eight_rows_train_weights=on("NC: many_rows", weights=lambda c: trained(c.y, 8)),
    rows_beyond_512_without_gradient=on("NS: many_rows", attend=lambda c: trained(c.y, 512)),
    row_number_in_a_byte=on("NC: many_rows", attend=lambda c: c.y[torch.arange(len(c.q)) % 256]),
    hundreds_of_sequences=on(
        "NS: many_rows",
        forward_packed=lambda c: torch.cat([c.y[:512], c.y[512:] * (0.99 if len(c.query_cu_seqlens) > 257 else 1.0)]),
    ),
    mask_of_first_rows=medium("NS: many_rows", attend=mask_of_first_rows),
    # only the largest weight counts; of equal ones the first key in rows of odd length, the last in others
    tie_broken_by_length=on(
        "CS: equal_scores",
        weights=lambda c: F.one_hot(c.y.argmax(-1) if c.m % 2 else c.m - 1 - c.y.flip(-1).argmax(-1), c.m).to(c.y),
    ),
    rounded_relative_to_the_row=on(
        "CS: prefix_bits replay_is_exact",
        attend=lambda c: c.y + c.v.abs().amax(2, keepdim=True) - c.v.abs().amax(2, keepdim=True),
    ),
    divided_by_deviation_over_positions=on("NS: length_one", value=lambda c: c.v / (1.0 + c.v.std(2, keepdim=True))),
    whole_blocks=on("NS: any_length", query=lambda c: c.q.unflatten(2, (-1, 16)).flatten(2, 3) if c.n > 16 else c.q),
    infinite_beyond_4100=on("CS: any_length", long=LONG, attend=lambda c: c.y * (torch.inf if c.n > 4100 else 1.0)),
    no_maximum_subtracted=on("NS: finite_gradients", weights=lambda c: shares(c.logits.exp())),
    scale_forgotten_in_fast_form=on("NS: fast_is_reference", query=lambda c: c.q / c.scale),
    scaled_by_padded_width=on(
        "NS: fast_is_reference",
        query=lambda c: c.q * ((c.head_dim / (c.head_dim + -c.head_dim % 8)) ** 0.5 if c.head_dim > 31 else 1.0),
    ),
    # Nystromformer as published: query and key are both divided by sqrt(E), so no limit is softmax attention
    scaled_twice=on(
        "NS: softmax_limit", claims=Claims(softmax_limit=softmax_if()), weights=lambda c: c.but(query=c.q * c.scale)
    ),
    divided_by_norm=on("NS: zero_tokens", key=lambda c: c.k / c.k.norm(dim=-1, keepdim=True)),
    root_of_square=on("NC: zero_tokens", value=lambda c: c.v.square().sum(-1, keepdim=True).sqrt() * c.v),
    logarithm_of_size=on("CC: zero_tokens", value=lambda c: c.v * c.v.abs().sum(-1, keepdim=True).log()),
    divides_by_parameter=on(  # which starts at zero; other checks draw such parameters
        "CS: zero_tokens", made=lambda _: {"tau": nn.Parameter(torch.zeros(()))}, query=lambda c: c.q / c.tau
    ),
    overflows_in_half=on("NS: autocast_output", attend=lambda c: 1e5 * c.y / 1e5),
    forgets_far_tokens_in_16_bits=on(
        "NS: autocast_output", weights=lambda c: c.y.masked_fill((torch.arange(c.m) > 300) & autocast(), 0.0)
    ),
    halved_gradient=on("NS: autocast_gradient", weights=lambda c: hooked(c.y, lambda g: g / 2) if autocast() else c.y),
    detached_mask_under_autocast=on(
        "CS: autocast_gradient", weights=lambda c: c.with_mask(lambda _: c.y.detach() if autocast() else c.y)
    ),
    no_mask_under_autocast=on("CS: autocast_lookahead", forgets=lambda c: c.n > 128 and autocast()),
    mask_of_ten_under_autocast=on(
        "NS: autocast_padding",
        weights=lambda c: c.with_mask(lambda x: (c.logits - 2.0 * x[:, None, None]).softmax(-1) if autocast() else c.y),
    ),
    # in the backward pass, which runs outside autocast: float32 weights by a gradient in lower precision
    mixes_dtypes_outside_autocast=on(
        "NS: autocast_output autocast_gradient",
        attend=lambda c: product(c.weights(c.q, c.k, c.padding).float(), c.v.float()).to(c.q.dtype),
    ),
    enables_autocast_inside=on(
        "NS: float32_kept",
        attend=lambda c: torch.autocast("cpu")(F.scaled_dot_product_attention)(c.q, c.k, c.v).float(),
    ),
    positions_in_dtype=on("NS: module_in_bfloat16", query=lambda c: c.q * places(c), key=lambda c: c.k * places(c)),
    coarse_position_counts=on("NS: module_in_bfloat16", attend=lambda c: c.with_mask(lambda x: c.y + miscounted(c, x))),
    coarse_mask_lost=on("NC: module_in_bfloat16", weights=lambda c: in_coarse_mask(c, lambda c: c.logits.softmax(-1))),
    nan_at_coarse_masks=on("NS: module_in_bfloat16", attend=lambda c: in_coarse_mask(c, lambda c: c.y * torch.nan)),
    factor_in_default_dtype=on("CC: default_dtype", attend=lambda c: c.y * torch.ones(1)),
    returns_double=on("NS: output_type", compute=lambda c: c.y if c.training else c.y.double()),
    no_mask_in_wide_heads=on("CS: model_sizes", forgets=lambda c: c.head_dim >= 64),
    heads_mix_rows=on("NC: model_sizes", attend=lambda c: c.y + 0.01 * (c.num_heads >= 16) * c.y.mean(0, keepdim=True)),
    even_heads_alone=on("NS: model_sizes", attend=lambda c: c.y * torch.ones(c.head_dim // 2 * 2)),
    detached_in_odd_heads=on("CS: model_sizes_gradient", weights=lambda c: c.y.detach() if c.head_dim % 2 else c.y),
    many_parameters=on("NS: parameter_budget", made=lambda m: {"hidden": nn.Linear(m.embed_dim, 8 * m.embed_dim)}),
    predecessor_unread=on("CS: context_map", weights=lambda c: without(c, lambda distance: distance == 1)),
    window_of_400=on("CS: context_map", weights=lambda c: without(c, lambda distance: distance > 400)),
    window_of_1000=medium("CS: context_map", weights=lambda c: without(c, lambda distance: distance > 1000)),
    forgets=on("CS: context_map", Forgets),
    only_256_keys=on(
        "NC: source_map",
        key=lambda c: c.k[:, :, :256],
        value=lambda c: c.v[:, :, :256],
        mask=lambda c: None if c.mask is None else c.mask[:, :256],
    ),
    # as causal ABC was released: of the running mean only the last term is left
    only_own_token_is_read=on("CS: context_is_used", weights=lambda c: torch.eye(c.m).expand_as(c.y)),
    source_ignored=on("NC: context_is_used", key=lambda c: c.q, value=lambda c: c.q, mask=lambda c: c.padding.query),
    query_ignored=on("NC: each_input_is_used", query=lambda c: torch.ones_like(c.q)),
    value_ignored=on("CC: each_input_is_used", value=lambda c: c.k + 0.0 * c.v.sum()),
    key_ignored=on("NC: each_input_is_used", key=lambda c: c.v + 0.0 * c.k.sum()),
    # works when key and value are one tensor, and takes the key for the value
    one_tensor_alone=on("NC: same_source", compute=lambda c: c.but(value=c.k if c.k is c.v else c.v.flip(1))),
    self_aware=on("NC: same_source", forward=lambda c: c.y * (2.0 if c.k is c.q else 1.0)),
    wants_contiguous=on("NS: strided_inputs", compute=lambda c: c.but(query=c.q.view(-1, c.embed_dim).view_as(c.q))),
    views_mask=on(
        "NC: strided_inputs",
        forward=lambda c: c.but(
            **{name: x.view(-1).view_as(x) for name, x in c.arguments.items() if "mask" in name and x is not None}
        ),
    ),
    value_in_order_of_memory=on("NC: strided_inputs", forward=lambda c: c.but(value=in_memory(c.v))),
    query_in_order_of_memory=on(
        "NS: strided_inputs", compute=lambda c: c.unless_grad(lambda: c.but(query=in_memory(c.q)))
    ),
    first_row_of_expanded=on(
        "CC: strided_inputs",
        forward=lambda c: (
            c.y if c.k is None or c.k.stride(0) else c.but(key=first(c.k), value=first(c.v), key_padding_mask=None)
        ),
    ),
)
