"""Decoding checks: from any state, in any order, decoding reproduces the outputs of the parallel forward pass."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.verification.check import Measurements
from cab.verification.compare import difference
from cab.verification.entries import (
    ALL_PROMPT,
    ALL_STEPS,
    CHUNKS,
    FORWARD,
    LONGEST,
    PADDED_PROMPT,
    PROMPT,
    STEPS,
    TRAINING,
    TRAINING_PROMPT,
    TRAINING_STEPS,
    Call,
    Setup,
    decode,
    initial_state,
)
from cab.verification.inputs import LAYOUTS, padding_masks, rows_alone
from cab.verification.relation import Variant, Variants, first, is_computed, relation
from cab.verification.relations import inputs_untouched

LONGEST_STEPS = 700
"""Number of tokens in the longest step-by-step run with a cache: more than a few of its blocks."""
CONSTANT_STEPS = 2100
"""Number with a state of constant size, whose steps do not become slower."""

decoding = partial(
    relation,
    limit=lambda s: s.decode_tolerance,
    against=FORWARD,
    declared_in="decode_tolerance",
    says="disagree with the parallel forward pass",
)
"""A relation between decoding and the forward pass."""

TWO_HEADS: dict[str, Any] = {"num_heads": 2, "embed_dim": 16}


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
        Setup(140, num_heads=1, opens_gates=True),
        Setup(LONGEST_STEPS, is_full=True, **TWO_HEADS),
        Setup(CONSTANT_STEPS, is_full=True, **TWO_HEADS),
    ),
)
def decode_steps(call: Call) -> Variants:
    """Step-by-step decoding from an empty state reproduces the parallel forward pass, for inputs of scale 1 and 4."""
    subject = call.subject
    if call.setup.length < CONSTANT_STEPS or subject.has_constant_size_state or not subject.keeps_whole_contract:
        yield Variant("", call)


SHORT = ((16, 1, 1, 1), (1, 7, 2, 1, 23, 1, 1), (33,))
LONG = ((64, 65, 1, 129, 1), (290, 1, 1, 1, 1), (128, 1, 1), (256, 1, 1), (5, 256, 1))
PAIRS = ((1, 64), (2, 33), (3, 2), (7, 1), (15, 17), (16, 16), (31, 66), (63, 2), (65, 3))
"""Numbers of tokens in the chunks that are read; a chunk of one token is a step, but in pairs a prompt."""


@decoding(
    "decoding",
    "relative error of decoding after prefill",
    entries=(ALL_PROMPT,),
    setups=(
        300,
        Setup(300, opens_gates=True, **TWO_HEADS),
        Setup(130, 4, padding="left"),
        *(Setup(130, 4, padding=x, is_full=True) for x in ("right", "inside")),
        LONGEST,
    ),
)
def decode_after_prefill(call: Call) -> Variants:
    """After a prompt, read at once or in chunks of any size, decoding reproduces the parallel forward pass."""
    n = call.setup.length
    short = () if call.setup.opens_gates else SHORT
    plans = ((n - 1500, 1, 1, 1495, 1, 1, 1),) if n > 1500 else (*short, *LONG, *PAIRS) if n == 300 else PAIRS
    for chunks in plans:
        count = sum(chunks)
        start = call.but(inputs=call.inputs.targets(0, count))
        with torch.no_grad():
            outputs = decode(call.module, start.inputs, chunks, steps=chunks not in PAIRS)
        values = {"outputs": start.masked(outputs)}
        yield Variant(f"read in {', '.join(map(str, chunks))} tokens", call, first(count), values=values)


@decoding(
    "decoding",
    "relative error of decoding padded input",
    layouts=LAYOUTS,
    setups=(Setup(19, batch=4),),
    entries=(ALL_STEPS, CHUNKS, ALL_PROMPT, PADDED_PROMPT),
)
def decode_padded(call: Call) -> Variants:
    """With padded targets and sources, decoding reproduces the parallel forward pass."""
    if call.entry is PADDED_PROMPT:
        yield from _padded_prompt(call)
    else:
        yield Variant(f"with padding {call.setup.padding}", call)


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
                where = f"prompt in {len(prompt)} chunks of {max(prompt)}, 3 steps, row {row}"
                finding = f"decoding after a prompt with padding {call.setup.padding} is not that of each row alone"
                yield error, where, None, finding


@decoding(
    "decoding",
    "relative error of decoding in training mode",
    entries=(TRAINING_STEPS, TRAINING_PROMPT),
    against=TRAINING,
    setups=(9, Setup(9, drops_nothing=True)),
)
def decode_in_training(call: Call) -> Variants:
    """In training mode without dropout, decoding reproduces the parallel forward pass (attentions: also gradients)."""
    if not call.subject.is_random_in_training:
        yield Variant("", call, names=is_computed if call.subject.keeps_whole_contract else "outputs".__eq__)


relation(
    "decoding",
    "modified arguments of a step",
    entries=(STEPS,),
    setups=(2, 9, Setup(9, batch=3, padding="left")),
    compares=False,
    name="decode_keeps_state",
    summary="No step modifies the state, the source or the token it receives, so decoding can branch from any state.",
)(inputs_untouched)
relation(
    "branching",
    "modified arguments of a prefill",
    entries=(ALL_PROMPT, CHUNKS),
    setups=(9, 70, *(Setup(9, batch=3, padding=layout) for layout in ("left", "right"))),
    compares=False,
    name="prefill_keeps_state",
    summary="No prefill modifies the state, the tokens or the mask that it receives.",
)(inputs_untouched)


@relation(
    "decoding",
    "relative error between tokens of shape [B, D] and [B, 1, D]",
    limit=lambda s: s.decode_tolerance,
    entries=(STEPS,),
    setups=(3,),
)
def decode_shapes(call: Call) -> Variants:
    """Tokens of shape [B, D] and [B, 1, D] give the same values, each in the shape of its token."""
    outputs, state = [], initial_state(call.module, call.inputs)
    with torch.no_grad():
        for token in call.inputs.query.unbind(1):
            output, state = call.module.step(token, state)
            if output.shape != token.shape:
                raise ValueError(f"step returned shape {[*output.shape]} for a token {[*token.shape]}")
            outputs.append(output)
    yield Variant("of shape [B, D]", call, values={"outputs": torch.stack(outputs, 1)})


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

    def remember(state: dict[str, Tensor]) -> dict[str, Tensor]:
        states.append(state)
        return state

    call.but(carry=remember).run()
    for t, state in enumerate(states):  # no other dimension is likely to have the size of the batch
        wrong = [name for name, x in state.items() if x.dim() == 0 or len(x) != len(call.inputs.query)]
        yield len(wrong), f"after {t} calls ({', '.join(wrong) or 'none'})"
