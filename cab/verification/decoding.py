"""Decoding checks: from any state, in any order, decoding reproduces the outputs of the parallel forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.attention import reorder_state
from cab.verification.check import Measurements, check
from cab.verification.compare import compared, difference, error_at
from cab.verification.entries import decode, initial_state, read_chunks
from cab.verification.inputs import LAYOUTS, Inputs, Module, copied, padding_masks, rows_alone
from cab.verification.subject import LONG, Subject

STEPS = 700
"""Number of tokens in the longest step-by-step run: more than a few cache blocks."""
LONGEST_STEPS = 2100
"""The corresponding number for a state of constant size, whose steps do not become slower."""


error_check = partial(
    check, limit=lambda s: s.decode_tolerance, applies=lambda s: s.decodes, declared_in="decode_tolerance"
)
"""A check of decoding errors, which a class with an approximate state may declare."""


@error_check("decoding", "relative error of step-by-step decoding")
def decode_steps(subject: Subject) -> Measurements:
    """Step-by-step decoding from an empty state reproduces the parallel forward pass, for inputs of scale 1 and 4."""
    cases = [(1, 4, 1.0), (2, 1, 1.0), (17, 4, 4.0), (37, 4, 1.0), (140, 1, 1.0)]
    if subject.long:
        is_constant = subject.has_constant_size_state or not subject.keeps_whole_contract
        cases.append((LONGEST_STEPS if is_constant else STEPS, 2, 1.0))
    for length, num_heads, scale in cases:
        module = subject.build(num_heads=num_heads) if length < STEPS else subject.build_for(LONG)
        inputs = subject.draw(module, length, scale=scale)
        yield from _compare(subject, module, inputs, [1] * length, f"n={length}, heads {num_heads}, inputs x{scale:g}")


@error_check("decoding", "relative error of decoding after prefill", applies=lambda s: s.prefills)
def decode_after_prefill(subject: Subject) -> Measurements:
    """After a prompt, read at once or in chunks of uneven size, decoding reproduces the parallel forward pass."""
    plans = [[16, 1, 1, 1], [1, 7, 2, 1, 23, 1, 1], [33], [290, 1, 1, 1, 1], [64, 65, 1, 129, 1]]
    plans += [[n - 1500, 1, 1, 1495, 1, 1, 1] for n in subject.long] + [[n - 3, 1, 1, 1] for n in subject.long]
    for chunks in plans:
        module, inputs = subject.case(sum(chunks))
        yield from _compare(subject, module, inputs, chunks, f"chunks {chunks}")


@check(
    "decoding",
    "relative error of decoding padded input",
    layouts=LAYOUTS,
    limit=lambda s: s.decode_tolerance,
    applies=Subject.decodes_padding,
)
def decode_padded(subject: Subject, layout: str) -> Measurements:
    """With padded targets and sources, decoding reproduces the parallel forward pass."""
    if subject.prompt_padding_layouts is not None:
        yield from _compare_padded_prompt(subject, layout)
        return
    plans = {"step by step": [1] * 19}
    if subject.prefills:
        plans |= {"in chunks": [12, 1, 1, 1, 3, 1], "in chunks with padding in each": [5, 4, 4, 6]}
    module, inputs = subject.case(19, batch=4, padding=layout)
    for plan, chunks in plans.items():
        yield from _compare(subject, module, inputs, chunks, f"n=19, {plan}")


@check("decoding", "modified arguments of a step", applies=lambda s: s.decodes)
def decode_keeps_state(subject: Subject) -> Measurements:
    """No step modifies the state, the source or the token it receives, so decoding can branch from any state."""
    for length in (1, 5, 70):
        module, inputs = subject.case(length + 1)
        with torch.no_grad():
            _, state = read_chunks(module, inputs, [1] * length, initial_state(module, inputs))
            arguments = copied(state | inputs.arguments())
            output, _ = module.step(inputs.query[:, length], state)
            yield from _modified(state | inputs.arguments(), arguments, f"token {length}")
            repeated, _ = module.step(inputs.query[:, length], state)
            yield difference(repeated, output), f"token {length}, repeated step"


def _modified(actual: dict[str, Tensor], originals: dict[str, Tensor], where: str) -> Measurements:
    """Yield 1 for every tensor that was added, removed or modified."""
    for name in actual | originals:
        is_same = name in actual and name in originals and torch.equal(actual[name], originals[name])
        finding = f"a call writes into `{name}`, which it received: return new tensors"
        yield float(not is_same), f"{where}, {name}", None, finding


@error_check("decoding", "relative error between tokens of shape [B, D] and [B, 1, D]")
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


def _compare(subject: Subject, module: Module, inputs: Inputs, chunks: Sequence[int], where: str) -> Measurements:
    measure = partial(decoding_errors, chunks=chunks, where=where)
    yield from compared(measure, module, inputs, limit=subject.decode_tolerance)


@torch.no_grad()
def decoding_errors(module: Module, inputs: Inputs, *, chunks: Sequence[int], where: str) -> dict[str, Tensor]:
    """Return the error of decoding in chunks at every real target."""
    decoded, trained = decode(module, inputs, chunks), inputs.run(module)
    if decoded.shape != trained.shape:
        raise ValueError(f"decoding returned shape {tuple(decoded.shape)}, forward {tuple(trained.shape)} ({where})")
    return {where: error_at(decoded[inputs.real], trained[inputs.real])}


def _compare_padded_prompt(subject: Subject, layout: str) -> Measurements:
    """Compare decoding after a padded prompt with every row without padding."""
    module, inputs = subject.case(20, batch=4)
    inputs = _padded(inputs, layout, 0, 17)
    prompts = ([17], [6, 5, 6]) if subject.prefills else ([1] * 17,)  # with padding in several chunks, too
    with torch.no_grad():
        for prompt in prompts:
            decoded = decode(module, inputs, [*prompt, 1, 1, 1])
            for row, alone in rows_alone(inputs):
                error = difference(decoded[row, inputs.real[row]], alone.run(module)[0])
                yield error, f"prompt in {len(prompt)} chunks of {max(prompt)}, 3 steps, row {row}"


@check("branching", "state tensors without the batch as first dimension", applies=lambda s: s.decodes)
def state_has_rows(subject: Subject) -> Measurements:
    """Every tensor of the decoding state has the batch as its first dimension, so that its rows can be reordered."""
    rows = 5  # no other dimension of a state is likely to have this size
    module, inputs = subject.case(9, batch=rows)
    with torch.no_grad():
        state = initial_state(module, inputs)
        for t in range(10):
            wrong = [name for name, x in state.items() if x.dim() == 0 or x.shape[0] != rows]
            yield len(wrong), f"after {t} tokens ({', '.join(wrong) or 'none'})"
            if t < 9:
                _, state = module.step(inputs.query[:, t], state)


@check("branching", "modified arguments of a prefill", applies=lambda s: s.prefills)
def prefill_keeps_state(subject: Subject) -> Measurements:
    """No prefill modifies the state, the tokens or the mask that it receives, and a repeated prefill is identical."""
    module = subject.build()
    for prefix in ([], [7], [64], [1] * 7):
        for layout in ("", *(layout for layout in ("left", "right") if subject.decodes_padding(layout))):
            inputs = _padded(subject.draw(module, sum(prefix) + 6, batch=3), layout, sum(prefix))
            where = f"after {sum(prefix)} tokens{f', padding {layout}' if layout else ''}"
            with torch.no_grad():
                _, state = read_chunks(module, inputs, prefix, initial_state(module, inputs))
                tokens = inputs.targets(sum(prefix))
                originals = copied(state | tokens.arguments())
                output, _ = read_chunks(module, tokens, [6], state)
                repeated, _ = read_chunks(module, tokens, [6], state)
            yield from _modified(state | tokens.arguments(), originals, where)
            yield difference(repeated, output), f"repeated prefill, {where}"


@error_check("branching", "relative error of a branch")
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


@error_check("branching", "relative error of decoding reordered rows")
def decode_reordered(subject: Subject) -> Measurements:
    """After rows of the state are repeated, dropped and reordered (beam search), decoding continues correctly."""
    plans: dict[str, tuple[Sequence[int], str]] = {"11 steps": ([1] * 11, "")}
    if subject.prefills:
        plans["a prompt of 11"] = [11], ""
        layouts = [layout for layout in ("left", "right") if subject.decodes_padding(layout)]
        plans |= {f"a prompt of 11 with padding {layout}": ([11], layout) for layout in layouts}
    module = subject.build()
    order = torch.tensor([2, 0, 0, 1], device=subject.device)
    for how, (chunks, layout) in plans.items():
        inputs = _padded(subject.draw(module, 19, batch=3), layout, 0, 11)
        moved = inputs.rows(order)
        with torch.no_grad():
            _, state = read_chunks(module, inputs, chunks, initial_state(module, inputs))
            outputs, _ = read_chunks(module, moved.targets(11), [1] * 8, reorder_state(state, order))
            for row, alone in rows_alone(moved):
                error = difference(outputs[row], alone.run(module)[0, -8:])
                yield error, f"n=19, rows 2 0 0 1 after {how}, row {row}"


def _padded(inputs: Inputs, layout: str, start: int, stop: int | None = None) -> Inputs:
    """Return ``inputs`` with padding of ``layout`` in the tokens from ``start`` to ``stop``."""
    if not layout:
        return inputs
    mask = torch.zeros_like(inputs.query[..., 0], dtype=torch.bool)
    mask[:, start:stop] = padding_masks(layout, inputs.query[:, start:stop])
    return replace(inputs, query_padding=mask)
