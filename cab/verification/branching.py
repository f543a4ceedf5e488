"""Branching checks: decoding continues correctly from any state, in any order of rows and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cab.attention import reorder_state
from cab.verification.check import Worst, check, decodes
from cab.verification.compare import difference, limit_for
from cab.verification.decoding import decodes_padding, initial_state, prefills, read_chunks
from cab.verification.inputs import Inputs, padding_masks, row_alone
from cab.verification.subject import Subject, rounding

ROWS = 5
"""Batch size that no other dimension of a state is likely to have."""

PREFIXES = (3, 16, 64, 71)
"""Numbers of tokens before a branch, among them capacities of caches."""

BRANCH = 5
ORDER = (2, 0, 0, 1)


@check("branching", applies=decodes)
def state_has_rows(subject: Subject) -> Worst:
    """Every tensor of the decoding state has the batch as its first dimension, so that its rows can be reordered."""
    worst = Worst("state tensors without the batch as first dimension", limit=0.0)
    module = subject.build()
    inputs = subject.draw(module, 9, batch=ROWS)
    with torch.no_grad():
        state = initial_state(module, inputs)
        for t in range(10):
            wrong = [name for name, x in state.items() if x.dim() == 0 or x.shape[0] != ROWS]
            worst.add(len(wrong), f"after {t} tokens ({', '.join(wrong) or 'none'})")
            if t < 9:
                _, state = module.step(inputs.query[:, t], state)
    return worst


@check("branching", applies=prefills)
def prefill_keeps_state(subject: Subject) -> Worst:
    """No prefill modifies the state, the tokens or the mask that it receives, and a repeated prefill is identical."""
    worst = Worst("modified arguments of a prefill", limit=0.0)
    module = subject.build()
    for before in ([], [7], [64], [1] * 7):
        for layout in ("", *(layout for layout in ("left", "right") if decodes_padding(subject, layout))):
            inputs = _padded(subject.draw(module, sum(before) + 6, batch=3), layout, sum(before))
            with torch.no_grad():
                state = initial_state(module, inputs)
                _, state = read_chunks(module, inputs, before, state)
                tokens = _after(inputs, sum(before))
                given = state | tokens.given()
                kept = {name: x.clone() for name, x in given.items()}
                first, _ = read_chunks(module, tokens, [6], state)
                again, _ = read_chunks(module, tokens, [6], state)
            where = f"after {sum(before)} tokens{f', padding {layout}' if layout else ''}"
            for name, x in (state | tokens.given()).items():
                is_same = name in kept and x.shape == kept[name].shape and torch.equal(x, kept[name])
                worst.add(float(not is_same), f"{name}, {where}")
            worst.add(difference(again, first), f"repeated prefill, {where}")
    return worst


@check("branching", applies=decodes, declared_in="decode_tolerance")
def decode_branches(subject: Subject) -> Worst:
    """Two branches that continue one state in turn, reusing the memory of tokens and outputs, are both correct."""
    worst = Worst("relative error of a branch", limit=subject.decode_tolerance)
    for length in PREFIXES:
        by_prompt = prefills(subject) and length % 2 == 0
        module = subject.build()
        inputs = subject.draw(module, length + BRANCH, seed=1)
        other = replace(inputs, query=subject.draw(module, length + BRANCH, seed=2).query.clone())
        other.query[:, :length] = inputs.query[:, :length]
        limit = limit_for(rounding(module, inputs), subject.decode_tolerance)
        with torch.no_grad():
            state = initial_state(module, inputs)
            _, state = read_chunks(module, inputs, [length] if by_prompt else [1] * length, state)
            states = [state, state]
            outputs: tuple[list[Tensor], list[Tensor]] = [], []
            for t in range(length, length + BRANCH):  # one token of each branch in turn
                for branch, x in enumerate((inputs, other)):
                    token = x.query[:, t].clone()
                    output, states[branch] = module.step(token, states[branch])
                    outputs[branch].append(output.clone())
                    for received in (token, output):  # the caller may reuse both
                        received.fill_(torch.nan)
            for branch, x in enumerate((inputs, other)):
                error = difference(torch.stack(outputs[branch], 1), x.run(module)[:, length:])
                worst.add(error, f"{'prompt' if by_prompt else 'steps'} of {length}, branch {branch}", limit=limit)
    return worst


@check("branching", applies=decodes, declared_in="decode_tolerance")
def decode_reordered(subject: Subject) -> Worst:
    """After rows of the state are repeated, dropped and reordered (beam search), decoding continues correctly."""
    worst = Worst("relative error of decoding reordered rows", limit=subject.decode_tolerance)
    plans: dict[str, tuple[Sequence[int], str]] = {"11 steps": ([1] * 11, "")}
    if prefills(subject):
        plans["a prompt of 11"] = [11], ""
        layouts = [layout for layout in ("left", "right") if decodes_padding(subject, layout)]
        plans |= {f"a prompt of 11 with padding {layout}": ([11], layout) for layout in layouts}
    module = subject.build()
    order = torch.tensor(ORDER, device=subject.device)
    for how, (chunks, layout) in plans.items():
        inputs = _padded(subject.draw(module, 19, batch=3), layout, 0, 11)
        moved = inputs.rows(order)
        limit = limit_for(rounding(module, inputs), subject.decode_tolerance)
        with torch.no_grad():
            _, state = read_chunks(module, inputs, chunks, initial_state(module, inputs))
            outputs, _ = read_chunks(module, _after(moved, 11), [1] * 8, reorder_state(state, order))
            for row in range(len(ORDER)):
                alone = row_alone(moved, row)
                assert alone is not None, "the last tokens are real"
                error = difference(outputs[row], alone.run(module)[0, -8:])
                worst.add(error, f"n=19, rows {' '.join(map(str, ORDER))} after {how}, row {row}", limit=limit)
    return worst


def _padded(inputs: Inputs, layout: str, start: int, stop: int | None = None) -> Inputs:
    """Return ``inputs`` with padding of ``layout`` in the tokens from ``start`` to ``stop``."""
    if not layout:
        return inputs
    mask = torch.zeros_like(inputs.query[..., 0], dtype=torch.bool)
    mask[:, start:stop] = padding_masks(layout, inputs.query[:, start:stop])
    return replace(inputs, query_padding=mask)


def _after(inputs: Inputs, start: int) -> Inputs:
    """Return the targets from ``start`` on, with the whole source."""
    mask = inputs.query_padding
    return replace(inputs, query=inputs.query[:, start:], query_padding=None if mask is None else mask[:, start:])
