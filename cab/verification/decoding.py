"""Decoding checks: step-by-step decoding and prefill reproduce the outputs of the parallel forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.verification.check import Worst, check, check_layouts, decodes, supports
from cab.verification.compare import difference, error_at, limit_for
from cab.verification.inputs import Inputs, Module, padding_masks, row_alone
from cab.verification.near_ties import largest_errors
from cab.verification.subject import LONG, Subject, rounding

STEPS = 700
"""Number of tokens in the longest step-by-step run: more than a few cache blocks."""
LONGEST_STEPS = 2100
"""The corresponding number for a state of constant size, whose steps do not become slower."""


def prefills(subject: Subject) -> bool:
    """Return whether the subject implements ``prefill``."""
    return subject.decodes and (subject.keeps_whole_contract or hasattr(subject.cls, "prefill"))


def decodes_padding(subject: Subject, layout: str) -> bool:
    """Return whether decoding with a padding layout has to be verified."""
    prompts = subject.prompt_padding_layouts
    return subject.decodes and supports(subject, layout) and (prompts is None or layout in prompts)


@check("decoding", applies=decodes, declared_in="decode_tolerance")
def decode_steps(subject: Subject) -> Worst:
    """Step-by-step decoding from an empty state reproduces the parallel forward pass, for inputs of scale 1 and 4."""
    worst = Worst("relative error of step-by-step decoding", limit=subject.decode_tolerance)
    cases = [(1, 4, 1.0), (2, 1, 1.0), (17, 4, 4.0), (37, 4, 1.0), (140, 1, 1.0)]
    if subject.long:
        is_constant = getattr(subject.cls, "has_constant_size_state", not subject.keeps_whole_contract)
        cases.append((LONGEST_STEPS if is_constant else STEPS, 2, 1.0))
    for length, num_heads, scale in cases:
        module = subject.build(num_heads=num_heads) if length < STEPS else subject.build_for(LONG)
        inputs = subject.draw(module, length, scale=scale)
        _compare(worst, subject, module, inputs, [1] * length, f"n={length}, heads {num_heads}, inputs x{scale:g}")
    return worst


@check("decoding", applies=prefills, declared_in="decode_tolerance")
def decode_after_prefill(subject: Subject) -> Worst:
    """After a prompt, read at once or in chunks of uneven size, decoding reproduces the parallel forward pass."""
    worst = Worst("relative error of decoding after prefill", limit=subject.decode_tolerance)
    plans = [[16, 1, 1, 1], [1, 7, 2, 1, 23, 1, 1], [33], [290, 1, 1, 1, 1], [64, 65, 1, 129, 1]]
    plans += [[n - 1500, 1, 1, 1495, 1, 1, 1] for n in subject.long] + [[n - 3, 1, 1, 1] for n in subject.long]
    for chunks in plans:
        module = subject.build_for(sum(chunks))
        inputs = subject.draw(module, sum(chunks), batch=1 if sum(chunks) in subject.long else 2)
        _compare(worst, subject, module, inputs, chunks, f"chunks {chunks}")
    return worst


@check_layouts("decoding", applies=decodes_padding)
def decode_padded(subject: Subject, layout: str) -> Worst:
    """With padded targets and sources, decoding reproduces the parallel forward pass."""
    worst = Worst("relative error of decoding padded input", limit=subject.decode_tolerance)
    if subject.prompt_padding_layouts is not None:
        _compare_padded_prompt(worst, subject, layout)
        return worst
    plans = {"step by step": [1] * 19}
    if prefills(subject):
        plans |= {"in chunks": [12, 1, 1, 1, 3, 1], "in chunks with padding in each": [5, 4, 4, 6]}
    module = subject.build()
    inputs = subject.draw(module, 19, batch=4)
    inputs = replace(inputs, query_padding=padding_masks(layout, inputs.query))
    if inputs.key is not None:
        inputs = replace(inputs, key_padding=padding_masks(layout, inputs.key).roll(1, 0))
    for plan, chunks in plans.items():
        _compare(worst, subject, module, inputs, chunks, f"n=19, {plan}")
    return worst


@check("decoding", applies=decodes)
def decode_keeps_state(subject: Subject) -> Worst:
    """No step modifies the state, the source or the token it receives, so decoding can branch from any state."""
    worst = Worst("modified arguments of a step", limit=0.0)
    for length in (1, 5, 70):
        module = subject.build()
        inputs = subject.draw(module, length + 1)
        with torch.no_grad():
            state = initial_state(module, inputs)
            for t in range(length):
                _, state = module.step(inputs.query[:, t], state)
            names, kept = set(state), {name: x.clone() for name, x in (state | inputs.given()).items()}
            first, _ = module.step(inputs.query[:, length], state)
            worst.add(len(set(state) ^ names), f"token {length}, keys of the state")
            for name, x in (state | inputs.given()).items():
                is_same = name in kept and x.shape == kept[name].shape and torch.equal(x, kept[name])
                worst.add(float(not is_same), f"token {length}, {name}")
            again, _ = module.step(inputs.query[:, length], state)
            worst.add(difference(again, first), f"token {length}, repeated step")
    return worst


@check("decoding", applies=decodes, declared_in="decode_tolerance")
def decode_shapes(subject: Subject) -> Worst:
    """Tokens of shape [B, D] and [B, 1, D] give the same values, each in the shape of its token."""
    worst = Worst("relative error between tokens of shape [B, D] and [B, 1, D]", limit=subject.decode_tolerance)
    module = subject.build()
    inputs = subject.draw(module, 3, batch=2)
    with torch.no_grad():
        flat_state, state = initial_state(module, inputs), initial_state(module, inputs)
        for t in range(3):
            flat, flat_state = module.step(inputs.query[:, t], flat_state)
            output, state = module.step(inputs.query[:, t : t + 1], state)
            shapes = (tuple(flat.shape), tuple(output.shape))
            expected = (tuple(inputs.query[:, t].shape), tuple(inputs.query[:, t : t + 1].shape))
            if shapes != expected:
                raise ValueError(f"step returned shapes {shapes} for tokens of shapes {expected}")
            worst.add(difference(output[:, 0], flat), f"token {t}")
    return worst


def initial_state(module: Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the decoding state of ``module`` for the batch, and for the source in cross patterns."""
    batch_size = inputs.query.shape[0]
    if inputs.key is None:
        return module.init_state(batch_size)
    return module.init_state(batch_size, key=inputs.key, value=inputs.value, key_padding_mask=inputs.key_padding)


def decode(module: Module, inputs: Inputs, chunks: Sequence[int]) -> Tensor:
    """Return the outputs [B, N, D] of reading the targets in chunks, by ``step`` (one token) or ``prefill``."""
    return read_chunks(module, inputs, chunks, initial_state(module, inputs))[0]


def read_chunks(
    module: Module, inputs: Inputs, chunks: Sequence[int], state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs [B, N, D] of reading the first targets in chunks from ``state``, and the new state."""
    start, outputs = 0, [inputs.query[:, :0]]
    for size in chunks:
        tokens = inputs.query[:, start : start + size]
        mask = {}
        if inputs.query_padding is not None:
            mask = {"query_padding_mask": inputs.query_padding[:, start : start + size]}
        read = module.step if size == 1 else module.prefill
        output, state = read(tokens, state, **mask)
        outputs.append(output)
        start += size
    return torch.cat(outputs, dim=1), state


def _compare(worst: Worst, subject: Subject, module: Module, inputs: Inputs, chunks: Sequence[int], where: str) -> None:
    limit = limit_for(rounding(module, inputs), subject.decode_tolerance)
    measure = partial(decoding_errors, chunks=chunks, where=where)
    for part, error in largest_errors(measure, module, inputs, limit=limit).items():
        worst.add(error, part, limit=limit)


@torch.no_grad()
def decoding_errors(module: Module, inputs: Inputs, *, chunks: Sequence[int], where: str) -> dict[str, Tensor]:
    """Return the error of decoding in chunks at every real target."""
    decoded, trained = decode(module, inputs, chunks), inputs.run(module)
    if decoded.shape != trained.shape:
        raise ValueError(f"decoding returned shape {tuple(decoded.shape)}, forward {tuple(trained.shape)} ({where})")
    return {where: error_at(decoded[inputs.real], trained[inputs.real])}


PROMPT = 17
"""Number of tokens of a padded prompt."""
PROMPTS = ([17], [6, 5, 6])
"""Chunks of a padded prompt; in the second form, padding extends over several chunks."""


def _compare_padded_prompt(worst: Worst, subject: Subject, layout: str) -> None:
    """Compare decoding after a padded prompt with every row without padding."""
    module = subject.build()
    inputs = subject.draw(module, PROMPT + 3, batch=4)
    mask = padding_masks(layout, inputs.query[:, :PROMPT])
    inputs = replace(inputs, query_padding=torch.cat([mask, mask.new_zeros(len(mask), 3)], 1))
    limit = limit_for(rounding(module, inputs), subject.decode_tolerance)
    with torch.no_grad():
        for prompt in PROMPTS if prefills(subject) else ([1] * PROMPT,):
            decoded = decode(module, inputs, [*prompt, 1, 1, 1])
            for row, real in enumerate(inputs.real):
                alone = row_alone(inputs, row)
                assert alone is not None, "the last tokens are real"
                error = difference(decoded[row, real], alone.run(module)[0])
                where = f"prompt in {len(prompt)} chunks of {max(prompt)}, 3 steps, row {row}"
                worst.add(error, where, limit=limit)
