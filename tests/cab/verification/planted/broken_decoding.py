"""Defects of causality and decoding: what looks ahead, and states that are modified, shared, mixed or lost."""

import functools

import torch
from torch.nn import functional as F

from attentions.gla import GatedLinearAttention
from tests.cab.verification.planted.mutations import Weighted, each, hide, medium, on, planted, variant
from tests.cab.verification.planted.sound_learning import Gated


def leak(call, block):
    """Return outputs, to which a thousandth of the next token is added where a block ends."""
    at_border = torch.arange(call.n) % block == block - 1
    at_border[-1] = False
    return call.y + 1e-3 * torch.where(at_border[:, None], call.value.roll(-1, 2), 0.0)


def ignores_padding(call):
    output, state = call.but(query_padding_mask=None)
    mask = call.query_padding_mask
    return output if mask is None else output.masked_fill(mask[..., None], 0.0), state


def written(call):
    """Return the result, whose state is written into the memory of the earlier one."""
    return call.new | {"sum": call.state["sum"].copy_(call.new["sum"])}


def shares_capacity(call):
    """Tokens are written into a buffer with room for 64 more, which all continuations of a state share."""
    rows, before, after = len(call.query), call.state["query"].shape[1], call.new["query"].shape[1]
    buffer = call.state["query"]._base
    if buffer is None or buffer.dim() != 3 or buffer.shape[1] < after or buffer.shape[0] != rows:
        buffer = torch.zeros(rows, after + 64, call.query.shape[-1])
        buffer[:, :before] = call.state["query"]
    buffer[:, before:after] = call.query
    return call.new | {"query": buffer[:, :after]}


def caches_on_module(call):
    """The cache lives on the module, so beam search cannot move its rows."""
    output, cache = call.but(state=call.cache)
    call.set(cache=cache)
    return output, call.state


def keeps_padding(call):
    """The padding of a prompt is kept on the module, where beam search does not reorder it."""
    state = call.state
    if call.query_padding_mask is not None and call.n > 1:
        call.set(prompt=call.query_padding_mask)
    elif call.prompt is not None:
        padding = state["query_padding"].clone()
        padding[:, : call.prompt.shape[1]] = call.prompt[torch.arange(len(call.query)) % len(call.prompt)]
        state = state | {"query_padding": padding}
    return call.but(state=state)


def sorts_rows(call):
    """Rows are sorted by a number in the state, which is their order until they are reordered."""
    output, new = call.with_state(lambda x: x[call.state["row"][:, 0].argsort(stable=True)])
    return output, new | {"row": call.state["row"]}


def counts_on_module(call):
    """The number of tokens is kept on the module, and its values decide."""
    position = call.count + torch.arange(call.n)
    call.set(count=call.count + call.n)
    return call.output * (1.0 + 0.01 * position[:, None])


def counts_all_sequences(call):
    """The outputs depend on the number of tokens read since any sequence began."""
    call.set(count=call.count + call.n)
    count = call.state["count"] + call.n
    return call.output * (count / call.count)[:, None, None, None], call.new | {"count": count}


def own_state(call):
    """A prompt of a batch of the same size as the last one continues the state that the module remembers."""
    is_prompt = call.n > 1 and len(call.query) > 2
    is_taken = is_prompt and call.memory is not None and call.memory["sum"].shape == call.state["sum"].shape
    output, new = call.but(state=call.memory) if is_taken else call.y
    call.set(memory=new)
    return output, dict(new)


def step_after_padded_chunk(call):
    """A chunk with padding leaves its rows on the module, and the next step of as many rows counts as padding there."""
    padding, mask = call.padding, call.memory
    if padding.key is not None and call.n > 1:
        call.set(memory=padding.key)
    elif mask is not None and len(mask) == len(call.query) and call.n == 1:
        padding = padding._replace(key=mask.any(1, keepdim=True))
        call.set(memory=None)
    return call.but(padding=padding)


def weights_of_first_prompt(call):
    """The strength of keys is projected with the weights that the first prompt of the module met."""
    if call.m > 2 and call.memory is None and not call.training:
        call.set(memory=call.strength.weight.detach().clone())
    if call.memory is None or call.m > 2:
        return call.y
    return {"strength": (call.key @ call.memory.mT + call.strength.bias).sigmoid().mT}


class PackedSoftmax(Weighted):
    """Sound: all tokens are one sequence, in which pairs of tokens across a border are hidden."""

    def forward_packed(self, query, key=None, value=None, *, query_cu_seqlens, key_cu_seqlens=None):
        key, value = (query, query) if key is None else (key, value)
        numbers = self.sequence_of(query_cu_seqlens)
        sources = numbers if key_cu_seqlens is None else self.sequence_of(key_cu_seqlens)
        query, key, value = self.project(query[None], key[None], value[None])
        weights = self.softmax(hide(query @ key.mT * self.scale, numbers[:, None] != sources))
        return self.out_proj(self.merge_heads(weights @ value))[0]

    def sequence_of(self, ends):
        return torch.bucketize(torch.arange(ends[-1]), ends[1:], right=True)


def moved(x):
    """Return tokens [B, N, D], to which functions of their positions are added."""
    return x + (torch.arange(x.shape[1])[:, None] * torch.logspace(0, -2, x.shape[2])).sin()


def detaches_short_sequences(call):
    numbers = call.sequence_of(call.query_cu_seqlens)
    return torch.where((numbers.bincount()[numbers] == 1)[:, None], call.y.detach(), call.y)


def one_by_one(call):
    parts = call.query.split(call.query_cu_seqlens.diff().tolist())
    return torch.cat([call.module(tokens[None])[0] if len(tokens) else tokens for tokens in parts])


# Declares a constant state, and keeps all keys.
growing_state = variant(
    Gated,
    init_decode_state=lambda c: c.y | {"all": c.like.new_zeros(c.batch_size, 0)},
    decode=lambda c: c.new | {"all": torch.cat([c.state["all"], c.key[:, 0, :, 0]], 1)},
)
gated, packed = (functools.partial(on, base=base) for base in (Gated, PackedSoftmax))

DEFECTS = planted(
    forgotten_mask=on("CS: lookahead_gradient lookahead_perturbation", forgets=lambda _: True),
    # on the path that applies dropout (Keras, 2026)
    mask_dropped_by_dropout=on("CS: lookahead_gradient", forgets=lambda c: c.training and c.dropout > 0.0),
    no_mask_beyond_3000=on("CS: lookahead_long lookahead_length", long=3200, forgets=lambda c: c.n > 3000),
    border_leak_64=on("CS: lookahead_gradient lookahead_perturbation", attend=lambda c: leak(c, 64)),
    border_leak_77=medium("CS: lookahead_perturbation", attend=lambda c: leak(c, 77)),
    border_leak_191=medium("CS: lookahead_gradient", attend=lambda c: leak(c, 191)),
    border_leak_1536=on("CS: lookahead_long", long=3200, attend=lambda c: leak(c, 1536)),
    mean_of_all_values_in_training=on(
        "CS: lookahead_in_training", attend=lambda c: c.y + 1e-3 * c.training * c.v.detach().mean(2, keepdim=True)
    ),
    # as cosFormer was published
    divided_by_final_length=on("CS CC: lookahead_length", query=lambda c: c.q / (1.0 + c.n / 100)),
    centered_query=on("CC: lookahead_gradient lookahead_perturbation", query=lambda c: c.q - c.q.mean(2, keepdim=True)),
    gate_sees_all=gated(
        "CS CC: lookahead_gradient lookahead_perturbation",
        query_side_inputs=lambda c: c.but(query=c.q + c.q.mean(1, keepdim=True)),
    ),
    state_ignores_padding=on("CS: decode_padded_left decode_padded_inside", prefill=ignores_padding),
    source_mask_lost_in_decoding=on(
        "CC: decode_padded_right decode_padded_left decode_padded_inside",
        init_state=lambda c: c.but(key_padding_mask=None),
    ),
    prefill_forgets_state=on(
        "CS: decode_after_prefill", prefill=lambda c: c.but(state=c.init_state(len(c.q)) if c.n > 1 else c.state)
    ),
    prompt_of_65=gated(
        "CS: decode_after_prefill",
        decode=lambda c: each(c.new, lambda x: x * (0.99 if c.n == 65 and c.mask is not None else 1.0)),
    ),
    prompt_of_one=on(
        "CS: decode_after_prefill",
        GatedLinearAttention,
        steps=False,
        step=lambda c: c.during("steps"),
        prefill=lambda c: c.state if c.n == 1 and not c.steps else c.new,
    ),
    lost_gate=gated("CS: decode_steps decode_after_prefill", decode=lambda c: c.but(gate=torch.ones_like(c.gate))),
    cache_of_500=medium("CS: decode_steps decode_after_prefill", prefill=lambda c: each(c.new, lambda x: x[:, -500:])),
    step_returns_half=on("CS: output_type", step=lambda c: c.output.bfloat16()),
    step_views_token=on("CS: strided_inputs", step=lambda c: c.but(query_t=c.query_t.view(-1).view_as(c.query_t))),
    views_state=gated("CS: strided_inputs", decode=lambda c: c.with_state(lambda x: x.view(len(x), -1).view_as(x))),
    divided_step=gated("CS: zero_tokens", step=lambda c: c.output * (c.query_t.norm() / c.query_t.norm())),
    step_shares_scale=gated("CS: decode_bad_row", step=lambda c: c.output * (x := c.query_t.abs().max().clamp(1)) / x),
    step_reads_first_rows=gated(
        "CS: decode_many_rows", decode=lambda c: c.with_state(lambda x: x[torch.arange(len(x)) % 32])
    ),
    many_rows=on("CC: decode_many_rows", prefill=lambda c: c.output.roll(int(len(c.q) >= 40 and c.n == 1), 0)),
    trains_stateless=gated("CS: decode_in_training", decode=lambda c: c.state if c.training else c.new),
    prompt_scaled_in_training=gated(
        "CS: decode_in_training", prefill=lambda c: c.output * (1.01 if c.training and c.n > 1 else 1.0)
    ),
    source_in_training=gated("CC: decode_in_training", encode_source=lambda c: c.but(value=c.v * 0.9**c.training)),
    step_drops_always=gated("CS: decode_in_training", step=lambda c: F.dropout(c.output, 0.1, c.training)),
    steps_without_history=gated(
        "CS: decode_in_training", decode=lambda c: each(c.new, torch.detach) if c.training and c.n == 1 else c.new
    ),
    step_raises_in_training=gated("CS: decode_in_training", step=lambda c: 1 / 0 if c.training else c.y),
    prompt_writes_into_state=gated("CS: prefill_keeps_state", decode=lambda c: written(c) if c.n > 1 else c.y),
    adds_to_state=gated("CS: decode_keeps_state", decode=written),
    renames_in_state=gated("CS: decode_keeps_state", decode=lambda c: c.state.update(c.new) or c.state),
    shared_capacity=on("CS: decode_branches", prefill=shares_capacity),
    state_without_rows=gated(
        "CS: state_has_rows",
        init_decode_state=lambda c: c.y | {"count": c.like.new_zeros(1)},
        decode=lambda c: c.new | {"count": c.state["count"] + c.n},
    ),
    growing_state=on("CS: step_growth", growing_state),
    quadratic_step=on(
        "CS: step_growth",
        growing_state,
        has_constant_size_state=False,
        decode=lambda c: (
            c.output + 0.0 * (c.new["all"][:, :, None] * c.new["all"][:, None]).mean((1, 2))[:, None, None, None]
        ),
    ),
    state_on_module=on("CS: decode_reordered", init_state=lambda c: c.set(cache=c.y) and {}, prefill=caches_on_module),
    padding_on_module=on("CS: decode_reordered", init_state=lambda c: c.set(prompt=None).y, prefill=keeps_padding),
    sorts_rows=gated(
        "CS: decode_reordered",
        init_decode_state=lambda c: c.y | {"row": torch.arange(c.batch_size, dtype=c.like.dtype)[:, None]},
        decode=sorts_rows,
    ),
    position_on_module=gated("CS: merged_states", init_state=lambda c: c.set(count=0).y, decode=counts_on_module),
    age_of_first_row=gated(
        "CS: merged_states",
        init_decode_state=lambda c: c.y | {"age": c.like.new_zeros(c.batch_size)},
        decode=lambda c: (
            c.output * (1.0 + 0.01 * (c.state["age"][:1] + torch.arange(c.n))[:, None]),
            c.new | {"age": c.state["age"] + c.n},
        ),
    ),
    counts_on_module=gated(
        "CS: decode_walk",
        init_state=lambda c: c.set(count=0).y,
        init_decode_state=lambda c: c.y | {"count": c.like.new_zeros(c.batch_size)},
        decode=counts_all_sequences,
    ),
    training_ends_decoding=gated(
        "CS: decode_walk",
        factor=1.0,
        attend=lambda c: c.set(factor=c.factor * (0.9 if c.training else 1.0)).y,
        decode=lambda c: c.but(gate=c.gate * c.factor),
    ),
    own_state=gated("CS: decode_walk", init_decode_state=lambda c: c.set(memory=None).y, decode=own_state),
    step_after_padded_chunk=gated("CS: decode_walk", decode=step_after_padded_chunk),
    weights_of_first_prompt=gated("CS: decode_walk", key_side_inputs=weights_of_first_prompt),
    border_off_by_one=packed(
        "CS NC: packed_outputs packed_gradients packed_borders",
        sequence_of=lambda c: torch.bucketize(torch.arange(c.ends[-1]), c.ends[1:]),
    ),
    positions_go_on=packed(
        "NS: packed_outputs packed_gradients", requires_right_padding=True, project=lambda c: c.but(query=moved(c.q))
    ),
    detached_short_sequences=packed("NC: packed_gradients", forward_packed=detaches_short_sequences),
    # every sequence adds a whole auxiliary loss, so many short sequences count more than one long sequence
    loss_of_every_sequence=packed(
        "NS: packed_loss",
        attend=lambda c: c.add_loss(c.q.square().mean((1, 3)), c.padding) or c.y,
        forward_packed=one_by_one,
    ),
    prompts_off_by_one=packed("CS: packed_prompts", prefill_packed=lambda c: c.output.roll(1, 0)),
    empty_prompt_resets=packed(
        "CS: packed_prompts",
        prefill_packed=lambda c: (
            c.new | {"query_padding": c.new["query_padding"] | (c.query_cu_seqlens.diff() == 0)[:, None]}
        ),
    ),
)
