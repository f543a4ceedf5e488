"""Decoding checks: from any state, in any order, decoding reproduces the outputs of the parallel forward pass."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.attention import reorder_state
from cab.verification.check import Measurements, check
from cab.verification.compare import difference
from cab.verification.entries import (
    ALL_STEPS,
    CHUNKS,
    FORWARD,
    LONGEST,
    MERGED,
    PROMPT,
    STEPS,
    TRAINING_PROMPT,
    TRAINING_STEPS,
    Call,
    Setup,
    decode,
    initial_state,
    read_chunks,
)
from cab.verification.inputs import LAYOUTS, Inputs, copied, padding_masks, rows_alone
from cab.verification.relation import Variant, Variants, relation
from cab.verification.subject import Subject

LONGEST_STEPS = 700
"""Number of tokens in the longest step-by-step run: more than a few cache blocks."""
CONSTANT_STEPS = 2100
"""The corresponding number for a state of constant size, whose steps do not become slower."""

decoding = partial(
    relation,
    limit=lambda s: s.decode_tolerance,
    against=FORWARD,
    declared_in="decode_tolerance",
    says="disagree with the parallel forward pass",
)
"""A relation between decoding and the forward pass."""

HEADS = {"num_heads": 2, "embed_dim": 16}


@decoding(
    "decoding",
    "relative error of step-by-step decoding",
    entries=(ALL_STEPS,),
    setups=(
        Setup(1),
        Setup(2, num_heads=1),
        Setup(17, scale=4.0),
        Setup(37),
        Setup(140, num_heads=1),
        Setup(LONGEST_STEPS, is_full=True, **HEADS),
        Setup(CONSTANT_STEPS, is_full=True, **HEADS),
    ),
)
def decode_steps(call: Call) -> Variants:
    """Step-by-step decoding from an empty state reproduces the parallel forward pass, for inputs of scale 1 and 4."""
    subject = call.subject
    if call.setup.length < CONSTANT_STEPS or subject.has_constant_size_state or not subject.keeps_whole_contract:
        yield Variant("", call)


PLANS = {
    sum(plan): plan for plan in ([16, 1, 1, 1], [1, 7, 2, 1, 23, 1, 1], [33], [290, 1, 1, 1, 1], [64, 65, 1, 129, 1])
}


def _planned(length: int) -> list[int]:
    return PLANS.get(length, [length - 1500, 1, 1, 1495, 1, 1, 1])


@decoding(
    "decoding",
    "relative error of decoding after prefill",
    setups=(*map(Setup, PLANS), Setup(LONGEST)),
    entries=(replace(CHUNKS, compute=partial(CHUNKS.compute.func, chunks=_planned)),),
)
def decode_after_prefill(call: Call) -> Variants:
    """After a prompt, read at once or in chunks of uneven size, decoding reproduces the parallel forward pass."""
    yield Variant("", call)


@decoding(
    "decoding",
    "relative error of a prompt in two chunks",
    entries=(PROMPT,),
    setups=(
        Setup(130),
        Setup(130, batch=4, padding="left"),
        *(Setup(130, batch=4, padding=layout, is_full=True) for layout in ("right", "inside")),
    ),
)
def prompt_lengths(call: Call) -> Variants:
    """After two chunks of many pairs of lengths, with and without padding, outputs are those of the forward pass."""
    if call.setup.padding and not call.subject.decodes_padding(call.setup.padding):
        return
    for first, second in zip(
        (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65), (64, 33, 2, 1, 9, 17, 16, 47, 65, 32, 1, 66, 64), strict=True
    ):
        start = call.but(inputs=call.inputs.targets(0, first + second))
        with torch.no_grad():
            outputs = start.masked(decode(call.module, start.inputs, [first, second]))
        yield Variant(
            f"of {first} and {second} tokens", call, lambda x, n=first + second: x[:, :n], values={"outputs": outputs}
        )


@decoding(
    "decoding",
    "relative error of decoding padded input",
    layouts=LAYOUTS,
    setups=(Setup(19, batch=4),),
    entries=(STEPS, CHUNKS, PROMPT),
    applies=Subject.decodes_padding,
)
def decode_padded(call: Call) -> Variants:
    """With padded targets and sources, decoding reproduces the parallel forward pass."""
    if call.subject.prompt_padding_layouts is None:
        yield Variant("", call)
    elif call.entry is STEPS:
        yield from _padded_prompt(call)


def _padded_prompt(call: Call) -> Measurements:
    """Compare decoding after a padded prompt with every row without padding."""
    inputs = call.subject.draw(call.module, 20, batch=4)
    mask = F.pad(padding_masks(call.setup.padding, inputs.query[:, :17]), (0, 3))
    inputs = replace(inputs, query_padding=mask)
    prompts = ([17], [6, 5, 6]) if call.subject.prefills else ([1] * 17,)  # with padding in several chunks, too
    with torch.no_grad():
        for prompt in prompts:
            decoded = decode(call.module, inputs, [*prompt, 1, 1, 1])
            for row, alone in rows_alone(inputs):
                error = difference(decoded[row, inputs.real[row]], alone.run(call.module)[0])
                yield error, f"prompt in {len(prompt)} chunks of {max(prompt)}, 3 steps, row {row}"


@decoding(
    "decoding",
    "relative error of decoding in training mode",
    entries=(TRAINING_STEPS, TRAINING_PROMPT),
    setups=(Setup(9),),
)
def decode_in_training(call: Call) -> Variants:
    """In training mode without dropout, decoding reproduces the parallel forward pass."""
    if not call.subject.is_random_in_training:
        yield Variant("", call)


@relation(
    "decoding",
    "modified arguments of a step",
    entries=(STEPS,),
    setups=(Setup(2), Setup(9), Setup(9, batch=3, padding="left")),
    compares=False,
)
def decode_keeps_state(call: Call) -> Variants:
    """No step modifies the state, the source or the token it receives, so decoding can branch from any state."""
    received: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def remember(state: dict[str, Tensor]) -> dict[str, Tensor]:
        received.append((state, copied(state)))
        return state

    if call.setup.padding and not call.subject.decodes_padding(call.setup.padding):
        return
    received.append((call.inputs.arguments(), copied(call.inputs.arguments())))
    call.but(carry=remember).run()
    for token, (now, before) in enumerate(received):
        for name in now | before:
            is_same = name in now and name in before and torch.equal(now[name], before[name])
            finding = f"a call writes into `{name}`, which it received: return new tensors"
            yield float(not is_same), f"call {token}, {name}", None, finding


relation(
    "branching",
    "modified arguments of a prefill",
    entries=(PROMPT, CHUNKS),
    name="prefill_keeps_state",
    setups=(Setup(9), Setup(70), Setup(9, batch=3, padding="left"), Setup(9, batch=3, padding="right")),
    summary="No prefill modifies the state, the tokens or the mask that it receives.",
)(decode_keeps_state)


@check(
    "decoding",
    "relative error between tokens of shape [B, D] and [B, 1, D]",
    limit=lambda s: s.decode_tolerance,
    applies=lambda s: s.decodes,
)
def decode_shapes(subject: Subject) -> Measurements:
    """Tokens of shape [B, D] and [B, 1, D] give the same values, each in the shape of its token."""
    module, inputs = subject.case(3, batch=2)
    with torch.no_grad():
        flat_state, state = initial_state(module, inputs), initial_state(module, inputs)
        for t in range(3):
            flat, flat_state = module.step(inputs.query[:, t], flat_state)
            output, state = module.step(inputs.query[:, t : t + 1], state)
            if flat.shape != inputs.query[:, t].shape or output.shape != inputs.query[:, t : t + 1].shape:
                raise ValueError(f"step returned shapes {[*flat.shape]} and {[*output.shape]} for these tokens")
            yield difference(output[:, 0], flat), f"token {t}"


@relation(
    "branching",
    "state tensors without the batch as first dimension",
    entries=(STEPS, PROMPT),
    setups=(Setup(9, batch=5),),
    compares=False,
)
def state_has_rows(call: Call) -> Variants:
    """Every tensor of the decoding state has the batch as its first dimension, so that its rows can be reordered."""
    states: list[dict[str, Tensor]] = []
    call.but(carry=lambda state: states.append(state) or state).run()
    for t, state in enumerate(states):  # no other dimension is likely to have the size of the batch
        wrong = [name for name, x in state.items() if x.dim() == 0 or len(x) != len(call.inputs.query)]
        yield len(wrong), f"after {t} calls ({', '.join(wrong) or 'none'})"


@decoding("branching", "relative error of merged states", entries=(MERGED,), setups=(Setup(9, batch=3),))
def merged_states(call: Call) -> Variants:
    """After merging states of single rows, also of unequal age if their shapes agree, decoding continues correctly."""
    yield Variant("", call)
    module, ages = call.module, (2, 4, 6)
    rows = [call.inputs.rows([row]) for row in range(3)]
    with torch.no_grad():
        states = [
            read_chunks(module, row, [1] * age, initial_state(module, row))[1]
            for row, age in zip(rows, ages, strict=True)
        ]
        if len({tuple(x.shape for x in state.values()) for state in states}) > 1:
            return
        state = {name: torch.cat([state[name] for state in states]) for name in states[0]}
        tokens = torch.cat([row.query[:, age : age + 3] for row, age in zip(rows, ages, strict=True)])
        outputs, _ = read_chunks(module, Inputs(tokens), [1, 1, 1], state)
        expected = torch.cat([row.run(module)[:, age : age + 3] for row, age in zip(rows, ages, strict=True)])
    yield Variant("of unequal age", call, values={"outputs": outputs}, base={"outputs": expected})


@check("branching", "relative error of a branch", limit=lambda s: s.decode_tolerance, applies=lambda s: s.decodes)
def decode_branches(subject: Subject) -> Measurements:
    """Two branches that continue one state in turn, reusing the memory of tokens and outputs, are both correct."""
    for length in (3, 16, 64, 71):  # among them capacities of caches
        by_prompt = subject.prefills and length % 2 == 0
        module, inputs = subject.case(length + 5)
        other = torch.cat([inputs.query[:, :length], subject.draw(module, 5, seed=2).query], 1)
        branches = [inputs, replace(inputs, query=other)]
        with torch.no_grad():
            chunks = [length] if by_prompt else [1] * length
            _, state = read_chunks(module, inputs, chunks, initial_state(module, inputs))
            states, outputs = [state, state], torch.empty(2, *inputs.query[:, length:].shape, device=subject.device)
            for t, branch in itertools.product(range(5), range(2)):  # one token of each branch in turn
                token = branches[branch].query[:, length + t].clone()
                output, states[branch] = module.step(token, states[branch])
                outputs[branch, :, t] = output
                for received in (token, output):  # the caller may reuse both
                    received.fill_(torch.nan)
            for branch, x in enumerate(branches):
                error = difference(outputs[branch], x.run(module)[:, length:])
                yield error, f"{'prompt' if by_prompt else 'steps'} of {length}, branch {branch}"


@decoding(
    "branching",
    "relative error of decoding reordered rows",
    entries=(STEPS, PROMPT),
    setups=(Setup(19, batch=3), Setup(19, batch=3, padding="left"), Setup(19, batch=3, padding="right")),
)
def decode_reordered(call: Call) -> Variants:
    """After rows of the state are repeated, dropped and reordered (beam search), decoding continues correctly."""
    if call.setup.padding and not call.subject.decodes_padding(call.setup.padding):
        return
    order = torch.tensor([2, 0, 0, 1], device=call.subject.device)
    moved = call.but(inputs=call.inputs.rows(order))
    with torch.no_grad():
        _, state = read_chunks(
            call.module,
            call.inputs,
            [11] if call.entry is PROMPT else [1] * 11,
            initial_state(call.module, call.inputs),
        )
        later, _ = read_chunks(call.module, moved.inputs.targets(11), [1] * 8, reorder_state(state, order))
    values = {"outputs": moved.masked(torch.cat([moved.inputs.query[:, :11], later], 1))}
    yield Variant("after reordering rows", moved, lambda x: x[order, 11:], lambda x: x[:, 11:], values=values)
