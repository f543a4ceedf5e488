"""Packed checks: sequences packed into one tensor give what each of them gives alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from cab.verification.compare import ROUNDING
from cab.verification.entries import (
    FORWARD,
    LONGEST,
    PACKED,
    TRAINING,
    TRAINING_PACKED,
    Call,
    Setup,
    cumulative,
    initial_state,
    pack,
)
from cab.verification.inputs import rows_alone
from cab.verification.relation import Variant, Variants, relation

LENGTHS = {
    7: ((64, 63, 1, 0, 65, 128, 2), (63, 1, 64, 5, 128, 65, 0)),
    5: ((600, 1, 0, 257, 64), (129, 64, 3, 1, 300)),
}
"""Numbers of targets and of source tokens of each of 7 or 5 sequences: lengths and borders (64, 127, 128) at the edges
of blocks, single tokens, no target, no source."""

PROMPTS, LONG_PROMPTS = ((0, 17, 1, 64), (5, 1, 0, 2)), ((64, 0, 128, 63), (65, 300, 1, 0))
"""Numbers of tokens of two consecutive prompts of each sequence."""


uneven = partial(
    relation,
    "packed",
    limit=ROUNDING,
    setups=(Setup(128, 7, source_length=128), Setup(600, 5, source_length=300, is_full=True)),
    compares=False,
)


def shortened(call: Call, *, shortest_source: int = 0) -> Call:
    """Return the call with as many targets and source tokens in each row as ``LENGTHS`` has, and padding after them."""
    targets, sources = map(torch.tensor, LENGTHS[len(call.inputs.query)])
    counts = {"query": targets, "key": sources.clamp(min=shortest_source)}
    masks = {n: torch.arange(x.shape[1]) >= counts[n][:, None] for n, x in call.inputs.tensors().items() if n in counts}
    padding = {f"{name}_padding": mask.to(call.inputs.query.device) for name, mask in masks.items()}
    return call.but(inputs=replace(call.inputs, **padding))


@uneven("relative error of a packed sequence", entries=(PACKED,))
def packed_outputs(call: Call) -> Variants:
    """Packed sequences, also empty ones, single tokens and edges of blocks, give the output of each sequence alone."""
    together = shortened(call)
    with torch.no_grad():
        output = pack(together.inputs, call.module)
    yield 0.0 if output.isfinite().all() else torch.inf, "NaN or inf"
    for row, inputs in rows_alone(together.inputs):
        real = together.inputs.real[row]
        alone, values = call.but(inputs=inputs).run(FORWARD), {"outputs": output[row : row + 1, real]}
        yield Variant(f"number {row} of {inputs.query.shape[1]} tokens", call, values=values, base=alone)


@relation(
    "packed",
    "relative error of packed sequences in training",
    entries=(TRAINING_PACKED,),
    against=TRAINING,
    limit=ROUNDING,
    setups=(
        Setup(65, batch=5, padding="right"),
        Setup(4, batch=5, padding="right"),
        Setup(LONGEST, batch=3, padding="right"),
    ),
)
def packed_gradients(call: Call) -> Variants:
    """Packed sequences give the outputs and gradients of a padded batch in training, if nothing is random."""
    if not call.subject.is_random_in_training:
        yield Variant("", call)


@uneven(
    "relative error of the auxiliary loss",
    entries=(TRAINING_PACKED,),
    applies=lambda s: hasattr(s.cls, "forward_packed") and s.adds_loss and not s.is_random_in_training,
)
def packed_loss(call: Call) -> Variants:
    """Packed sequences add the auxiliary loss of a padded batch, which is the mean over all targets."""
    together = shortened(call, shortest_source=1)  # without a source, the loss is undefined
    yield Variant("", together, base=together.run(TRAINING), names="auxiliary loss".__eq__)


@relation(
    "packed",
    "relative error of decoding after packed prompts",
    entries=(PACKED,),
    setups=(Setup(2, batch=4), Setup(2, batch=4, is_full=True)),
    limit=lambda s: s.decode_tolerance,
    applies=lambda s: s.decodes and hasattr(s.cls, "prefill_packed"),
    declared_in="decode_tolerance",
    compares=False,
)
def packed_prompts(call: Call) -> Variants:
    """Two packed prompts, empty for some sequences, and steps give what forward gives for each sequence alone."""
    module, inputs, prompts = call.module, call.inputs, LONG_PROMPTS if call.setup.is_full else PROMPTS
    texts = [call.subject.draw(module, sum(n), batch=1, seed=2).query[0].split(list(n)) for n in prompts]
    with torch.no_grad():
        state, outputs = initial_state(module, inputs), []
        for text, lengths in zip(texts, prompts, strict=True):
            ends = cumulative(lengths, inputs.query)
            output, state = module.prefill_packed(torch.cat(text), state, query_cu_seqlens=ends)
            outputs.append(output.split(list(lengths)))
        for t in range(2):
            output, state = module.step(inputs.query[:, t], state)
            outputs.append(output.split(1))
    for row, together in enumerate(zip(*outputs, strict=True)):
        tokens = torch.cat([text[row] for text in texts] + [inputs.query[row]])
        alone = call.but(inputs=replace(inputs.rows(slice(row, row + 1)), query=tokens[None])).run(FORWARD)
        how = f"after prompts of {' and '.join(str(lengths[row]) for lengths in prompts)} tokens"
        yield Variant(how, call, values={"outputs": torch.cat(together)[None]}, base=alone)
