"""Context checks: the output depends on the other tokens."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, distance
from cab.verification.entries import FORWARD, LONGEST, Call, Setup, random_direction
from cab.verification.inputs import Inputs, Module, gradient_to, masked_inputs
from cab.verification.relation import Variant, Variants, relation, rows_of
from cab.verification.subject import Subject

# --- replaced tokens -------------------------------------------------------------------------------------------------

context = partial(relation, "context", entries=(FORWARD,), compares=False)
needed = partial(context, "required change of the output, relative to the measured change,", limit=1.0)

LEAST_CHANGE, LEAST_LONG_CHANGE = 1e-3, 1e-5
"""Smallest relative change of the output when inputs are replaced, and the same on hundreds or thousands of tokens."""


def _replaced(call: Call, **tokens: Tensor | bool) -> Call:
    """Return the call with other values in these tokens of each named input."""
    inputs = call.inputs.tensors()
    at = {name: torch.as_tensor(where, device=call.subject.device) for name, where in tokens.items()}
    moved = {name: torch.where(where, random_direction(inputs[name]), inputs[name]) for name, where in at.items()}
    return call.but(inputs=replace(call.inputs, **moved))


def _changes(call: Call, *tokens: dict[str, Any], part: Any = slice(None)) -> list[float]:
    """Return the relative change of a part of the outputs when each of these ``tokens`` is replaced."""
    expected, *outputs = (x.run()["outputs"][:, part] for x in (call, *(_replaced(call, **at) for at in tokens)))
    changes = [distance(output, expected) for output in outputs]
    return [change if change < torch.inf else torch.nan for change in changes]


@relation(
    "padding",
    "required change of the output, relative to the measured change,",
    limit=1.0,
    entries=(FORWARD,),
    setups=[Setup(33, batch=3, padding=layout) for layout in ("right", "left")],
    applies=lambda s: s.reads_others and bool(s.padding_layouts),
    compares=False,
)
def padding_keeps_context(call: Call) -> Variants:
    """With a mask, outputs depend on the other real tokens, or those of the source, if they do without one."""
    names = ("query",) if call.inputs.key is None else ("key", "value")
    others = {n: ~mask[..., None] for n, _, mask in masked_inputs(call.inputs) if n in names}
    if "query" in others:
        others["query"] &= ~_last_real(call.inputs.real)[..., None]
    last = _last_real(call.inputs.real)
    unpadded = call.but(inputs=replace(call.inputs, query_padding=None, key_padding=None))
    masked, plain = (
        distance(_replaced(x, **others).run()["outputs"][last], x.run()["outputs"][last]) for x in (call, unpadded)
    )
    if plain > LEAST_CHANGE:
        what = "any other token" if call.inputs.key is None else "the source"
        yield LEAST_LONG_CHANGE / max(masked, 1e-30), "", None, f"with a mask, outputs do not depend on {what}"


def _last_real(real: Tensor) -> Tensor:
    """Return a mask [B, N] of the last real token of each row."""
    return real & (real.flip(1).cumsum(1).flip(1) == 1)


@context(
    "share of the output's change caused by its own token",
    setups=[Setup(258, batch=8, seed=seed) for seed in (1, 2)],
    limit=lambda s: s.claims.max_self_contribution,
    applies=lambda s: s.reads_others,
    declared_in="claims.max_self_contribution",
)
def context_is_used(call: Call) -> Variants:
    """Every output depends on other tokens: earlier ones in CS, the source in cross patterns."""
    # At initialization, the share is 0.59 for softmax attention, 0.09 for ABC, and 0.86 for S4D, which adds a multiple
    # of the token itself. ABC's released causal code, whose cumulative sum has a single term, reaches 0.98.
    last, source = call.setup.length - 1, call.inputs.key
    own = torch.arange(last + 1)[:, None] == last
    others = {"query": ~own} if source is None else {"key": True, "value": True}
    by_self, by_others = _changes(call, {"query": own}, others, part=-1)
    if by_others:
        yield by_self / (by_self + by_others), f"position {last}"
    else:
        other = "any other token" if source is None else f"the source (m={source.shape[1]})"
        yield 1.0, f"position {last}", 0.0, f"output {last} of n={last + 1} does not depend on {other}", ""


@needed(setups=(33, LONGEST), applies=lambda s: s.reads_source, declared_in="claims.uses_key")
def each_input_is_used(call: Call) -> Variants:
    """In cross patterns, the output depends on query, key (unless ``Claims(uses_key=False)``) and value separately."""
    # Means over thousands of random keys hardly differ: on long sequences, any change beyond rounding is sufficient.
    least = LEAST_CHANGE if call.setup.length == 33 else LEAST_LONG_CHANGE
    names = ["query", *["key"] * call.subject.claims.uses_key, "value"]
    for name, change in zip(names, _changes(call, *({name: True} for name in names)), strict=True):
        yield least / max(change, 1e-30), name


@needed(
    setups=lambda s: [Setup(5, 1, source_length=n, embed_dim=16, num_heads=2) for n in (600, *s.long)],
    applies=lambda s: s.reads_source and not s.selects_tokens,
    declared_in="selects_tokens",
)
def source_map(call: Call) -> Variants:
    """With far more source than target tokens, the output depends on every quarter of the source."""
    count = call.setup.source_length or 0
    quarters = [(torch.arange(count) * 4 // count == quarter)[:, None] for quarter in range(4)]
    changes = _changes(call, *({"key": at, "value": at} for at in quarters))
    is_single = sum(change < LEAST_LONG_CHANGE for change in changes) == 1  # which is lost, not left out by a selection
    declared = "" if is_single else "selects_tokens"
    for quarter, change in enumerate(changes, start=1):
        finding = f"outputs do not depend on quarter {quarter} of {count} source tokens"
        yield LEAST_LONG_CHANGE / max(change, 1e-30), f"quarter {quarter}", None, finding, declared


# --- gradients -------------------------------------------------------------------------------------------------------


@context(
    "relative dependence on tokens beyond the declared distance",
    setups=lambda s: [Setup(2 * (s.max_token_distance or 0) + 40, batch=1)],
    limit=LEAK,
    applies=lambda s: not s.pattern.is_cross and s.max_token_distance is not None,
    declared_in="max_token_distance",
)
def token_distance(call: Call) -> Variants:
    """No output depends on a token beyond ``max_token_distance``, if declared; one at that distance is read."""
    farthest, length = call.subject.max_token_distance or 0, call.setup.length
    outputs = torch.linspace(0, length - 1, 40).long().unique()
    away = (torch.arange(length) - outputs[:, None]).abs()
    rows, own = call.but(inputs=call.inputs.repeated(len(outputs))), rows_of((range(len(outputs)), outputs))
    moved = _replaced(rows, query=(away > farthest)[..., None])
    yield Variant(f"with tokens beyond {farthest} replaced", moved, own, own, base=rows.run())
    sizes = _gradient_sizes(call.module, call.inputs, outputs)
    beyond = sizes.where(away > farthest, 0.0)
    row, token = divmod(int(beyond.argmax()), length)
    finding = f"output {outputs[row]} depends on token {token}, beyond the declared distance {farthest}"
    yield beyond[row, token], "gradient", None, finding
    yield float(not sizes[away == farthest].any()), f"no output depends on a token at distance {farthest}", 0.0


def _gradient_sizes(module: Module, inputs: Inputs, outputs: Tensor) -> Tensor:
    """Return the gradient of each output to each token, relative to the largest, [outputs, N].

    The module computes in float64 if it can. Values that rounding can cause are zero.
    """
    try:
        row = inputs.map(Tensor.double).requiring_grad()
        output = row.run(module.double())
    except Exception:  # float64 is optional
        row = inputs.requiring_grad()
        output = row.run(module.float())
    direction = torch.linspace(0.5, 1.5, output.shape[-1]).to(output)
    sums = [output[0, i] @ direction for i in outputs]
    sizes = torch.stack([gradient_to(row.query, x, retain_graph=True)[0] for x in sums]).norm(dim=-1)
    sizes = (sizes / sizes.amax(1, keepdim=True).clamp_min(1e-300)).cpu()
    return sizes.masked_fill(sizes <= torch.finfo(sizes.dtype).eps ** 0.7, 0.0)


SHORT, MIDDLE = 66, 600
MOST = 0.5
"""Share of tokens above which outputs select none."""


@check(
    "context",
    "share of tokens not read",
    applies=lambda s: (
        not s.pattern.is_cross and s.reads_others and s.max_token_distance is None and not s.selects_tokens
    ),
)
def context_map(subject: Subject) -> Measurements:
    """At 600 and 4,133 tokens, outputs read the predecessor, the token 512 before, the first token and most others."""
    decays = yield from _reads(subject)
    if subject.opens_gates:
        decays = yield from _reads(subject, opens_gates=True)
    if decays:
        subject.skipped.append("memory not tested, as the module forgets and no gate opens")


def _reads(subject: Subject, *, opens_gates: bool = False) -> Generator[tuple[Any, ...], None, bool]:
    """Measure which tokens are read, perhaps with open gates; returns whether outputs forget distant tokens."""
    read, how = partial(_tokens_read, subject, opens_gates=opens_gates), ", gates open" if opens_gates else ""
    _, _, usual = read(SHORT)
    outputs, sizes, share = read(MIDDLE)
    near, far = (sizes[:, MIDDLE - last : MIDDLE - first].mean() for first, last in ((8, 16), (31, 39)))
    # With the distance of the token; the gates of a module of this project are known to be open.
    decays = 0.0 < float(far) < 0.5 * float(near) and not (opens_gates and subject.keeps_whole_contract)
    reaches_start = bool(sizes[:, :32].mean() > 0.05 * near)  # otherwise 4,133 tokens are not all read
    for length in (MIDDLE, *(() if opens_gates else subject.long)):
        if length != MIDDLE:
            outputs, sizes, share = read(length)
        # One token that is missing among most others, and forgetting behind open gates, are not intended.
        declared = "" if opens_gates or share > MOST else "selects_tokens"
        targets = {"predecessor": outputs - 1}
        if not decays:
            targets["token 512 before"] = outputs - 512
        if not decays and (length == MIDDLE or reaches_start):
            targets["first token"] = torch.zeros_like(outputs)
            part = float(share / usual)
            finding = f"outputs read {part:.0%} of the share of tokens that they read at n={SHORT}{how}"
            yield 1.0 - min(part, 1.0), f"n={length}, all tokens{how}", 0.3, finding, declared
        for name, tokens in targets.items():
            unread = 1.0 - (sizes[torch.arange(len(outputs)), tokens] > 0.0).double().mean()
            finding = f"at n={length}, most outputs do not read the {name}{how}"
            yield unread, f"n={length}, {name}{how}", 0.5, finding, declared
    return decays


def _tokens_read(subject: Subject, length: int, *, opens_gates: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return some outputs, most near the end, their gradients by token, and the share of visible tokens read."""
    outputs = torch.tensor([length - 1, length - 2, length - 21] if length > MIDDLE else [*range(length - 8, length)])
    module = subject.build(embed_dim=16, num_heads=2, opens_gates=opens_gates)
    sizes = _gradient_sizes(module, subject.draw(module, length, batch=1), outputs)
    visible = int((outputs + 1).sum()) if subject.pattern.is_causal else len(outputs) * length
    return outputs, sizes, (sizes > 0.0).double().sum() / visible
