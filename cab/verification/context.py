"""Context checks: the output depends on the other tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, difference, rms
from cab.verification.inputs import Inputs, Module, gradient_to
from cab.verification.subject import Subject

LENGTH, DRAWS = 258, 8

LEAST_CHANGE, LEAST_LONG_CHANGE = 1e-3, 1e-5
"""Smallest relative change of the output when inputs are replaced, and the same on thousands of tokens."""


@check(
    "context",
    "share of the output's change caused by its own token",
    limit=lambda s: s.claims.max_self_contribution,
    applies=lambda s: s.reads_others,
    declared_in="claims.max_self_contribution",
)
def context_is_used(subject: Subject) -> Measurements:
    """Every output depends on other tokens: earlier ones in CS, the source in cross patterns.

    At initialization, on 258 random tokens, the share of its own token is 0.59 for softmax attention, 0.09 for ABC, and
    0.86 for S4D, which adds a multiple of the token itself. ABC's released causal code, whose cumulative sum has a
    single term, reaches 0.98 and approaches 1 with increasing length.
    """
    for seed in (1, 2):
        module = subject.build(seed=seed)
        inputs, fresh = (subject.draw(module, LENGTH, batch=DRAWS, seed=n) for n in (seed, seed + 100))
        last = torch.arange(LENGTH, device=inputs.query.device)[:, None] == LENGTH - 1
        moved_self = replace(inputs, query=torch.where(last, fresh.query, inputs.query))
        if subject.pattern.is_cross:
            moved_others = replace(fresh, query=inputs.query)
        else:
            moved_others = replace(inputs, query=torch.where(last, inputs.query, fresh.query))
        with torch.no_grad():
            expected, *outputs = (x.run(module)[:, -1] for x in (inputs, moved_self, moved_others))
        by_self, by_others = (rms(output.double() - expected) for output in outputs)
        where = f"n={LENGTH}, position {LENGTH - 1}, seed {seed}"
        if by_others:
            yield by_self / (by_self + by_others), where
        else:
            others = f"the source (m={LENGTH // 2 + 3})" if subject.pattern.is_cross else "any other token"
            yield 1.0, where, 0.0, f"output {LENGTH - 1} of n={LENGTH} does not depend on {others}", ""


@check(
    "context",
    "required change of the output, relative to the measured change,",
    limit=1.0,
    applies=lambda s: s.reads_source,
    declared_in="claims.uses_key",
)
def each_input_is_used(subject: Subject) -> Measurements:
    """In cross patterns, the output depends on the query, on the key and on the value separately.

    The key is exempt for classes that declare ``Claims(uses_key=False)``.
    """
    # Means over thousands of random keys hardly differ: on long sequences, any change beyond rounding is sufficient.
    for length, least in ((33, LEAST_CHANGE), *((length, LEAST_LONG_CHANGE) for length in subject.long)):
        module = subject.build_for(length)
        inputs, fresh = (subject.draw(module, length, seed=seed) for seed in (1, 2))
        for name, x in fresh.tensors().items():
            if name != "key" or subject.claims.uses_key:
                yield _needed(module, inputs, replace(inputs, **{name: x}), least), f"n={length}, {name}"


def _needed(module: Module, inputs: Inputs, changed: Inputs, least: float) -> float:
    """Return the change of the output that is needed, relative to the one that ``changed`` inputs cause."""
    with torch.no_grad():
        expected = inputs.run(module)
        change = rms(changed.run(module).double() - expected) / max(rms(expected), 1e-30)
    return least / change if change else torch.inf


@check(
    "context",
    "relative dependence on tokens beyond the declared distance",
    limit=LEAK,
    applies=lambda s: not s.pattern.is_cross and s.max_token_distance is not None,
    declared_in="max_token_distance",
)
def token_distance(subject: Subject) -> Measurements:
    """No output depends on a token beyond ``max_token_distance``, if declared; one at that distance is read."""
    farthest = subject.max_token_distance
    assert farthest is not None
    module = subject.build()
    length = 2 * farthest + 40
    inputs = subject.draw(module, length, batch=1)
    outputs = torch.linspace(0, length - 1, 40).long().unique().to(inputs.query.device)
    away = (torch.arange(length, device=outputs.device) - outputs[:, None]).abs()
    rows = inputs.repeated(len(outputs)).requiring_grad()
    output = rows.run(module)[torch.arange(len(outputs)), outputs]
    gradient = gradient_to(rows.query, (output * torch.randn_like(output)).sum()).norm(dim=-1)
    share = gradient / gradient.amax(dim=1, keepdim=True).clamp_min(1e-30)
    beyond = share.where(away > farthest, 0.0)
    row, token = divmod(int(beyond.nan_to_num(nan=torch.inf).argmax()), length)
    finding = f"output {outputs[row].item()} depends on token {token}, beyond the declared distance {farthest}"
    yield beyond[row, token], f"n={length}, gradient, output {outputs[row].item()}, token {token}", None, finding
    fresh = subject.draw(module, length, batch=1, seed=2).repeated(len(outputs))
    with torch.no_grad():
        changed = torch.where((away > farthest)[..., None], fresh.query, rows.query)
        moved = replace(inputs, query=changed).run(module)[torch.arange(len(outputs)), outputs]
        yield difference(moved, output), f"n={length}, tokens beyond {farthest} replaced"
    unread = float(not bool(gradient[away == farthest].any()))
    yield unread, f"n={length}, no output depends on a token at distance {farthest}", 0.0


SHORT, MIDDLE = 66, 600
LEAST_READ = 0.7
"""Smallest share of tokens read, relative to the share at the shortest length."""
DECAYED = 0.5
"""Mean gradient to tokens 24 to 32 before an output, relative to the nearest 8, below which a method decays."""
NOT_DECAYED = 0.05
"""Mean gradient to the first 32 of 600 tokens, relative to the nearest 8, below which 4,133 tokens are not all read."""


def reads_all(subject: Subject) -> bool:
    """Return whether the outputs of a self pattern are expected to read all tokens that they may attend to."""
    if subject.pattern.is_cross or not subject.reads_others or subject.max_token_distance is not None:
        return False
    return not subject.selects_tokens


@check("context", "share of tokens not read", applies=reads_all, declared_in="selects_tokens")
def context_map(subject: Subject) -> Measurements:
    """At 600 and 4,133 tokens, outputs read the predecessor, the token 512 before, the first token and most others."""
    usual = _gradient_sizes(subject, SHORT).gt(0.0).double().sum() / _visible(subject, SHORT)
    sizes = _gradient_sizes(subject, MIDDLE)
    near, far = (sizes[:, MIDDLE - last : MIDDLE - first].mean() for first, last in ((8, 16), (31, 39)))
    decays = 0.0 < float(far) < DECAYED * float(near)  # with the distance of the token
    reaches_start = bool(sizes[:, :32].mean() > NOT_DECAYED * near)
    for length in (MIDDLE, *subject.long):
        sizes = sizes if length == MIDDLE else _gradient_sizes(subject, length)
        outputs = _outputs(length)
        targets = {"predecessor": outputs - 1}
        if not decays:
            targets["token 512 before"] = outputs - 512
        if not decays and (length == MIDDLE or reaches_start):
            targets["first token"] = torch.zeros_like(outputs)
            share = float(sizes.gt(0.0).double().sum() / _visible(subject, length) / usual)
            finding = f"outputs read {share:.0%} of the share of tokens that they read at n={SHORT}"
            yield 1.0 - min(share, 1.0), f"n={length}, all tokens", 1.0 - LEAST_READ, finding
        for name, tokens in targets.items():
            unread = 1.0 - (sizes[torch.arange(len(outputs)), tokens] > 0.0).double().mean()
            yield unread, f"n={length}, {name}", 0.5, f"at n={length}, most outputs do not read the {name}"


@check(
    "context",
    "required change of the output, relative to the measured change,",
    limit=1.0,
    applies=lambda s: s.reads_source and not s.selects_tokens,
    declared_in="selects_tokens",
)
def source_map(subject: Subject) -> Measurements:
    """With far more source than target tokens, the output depends on every quarter of the source."""
    for count in (600, *subject.long):
        module = subject.build_for(count)
        inputs, fresh = (subject.draw(module, 5, count, batch=1, seed=seed) for seed in (1, 2))
        others = fresh.tensors()
        for quarter in range(4):
            at = (torch.arange(count, device=subject.device) * 4 // count == quarter)[:, None]
            source = {name: torch.where(at, others[name], inputs.tensors()[name]) for name in ("key", "value")}
            needed = _needed(module, inputs, replace(inputs, **source), LEAST_LONG_CHANGE)
            finding = f"outputs do not depend on quarter {quarter + 1} of {count} source tokens"
            yield needed, f"n=5, m={count}, quarter {quarter + 1}", None, finding


def _outputs(length: int) -> Tensor:
    """Return the outputs whose context is measured, most of them near the end."""
    return torch.tensor([length - 1, length - 2, length - 21] if length > MIDDLE else [*range(length - 8, length)])


def _visible(subject: Subject, length: int) -> int:
    """Return the number of pairs of an output of :func:`_outputs` and a token that it may attend to."""
    outputs = _outputs(length)
    return int((outputs + 1).sum()) if subject.pattern.is_causal else len(outputs) * length


def _gradient_sizes(subject: Subject, length: int) -> Tensor:
    """Return the gradient of each output of :func:`_outputs` to each token, relative to the largest, [outputs, N].

    The module computes in float64 if it can. Values that rounding can cause are zero.
    """
    module = subject.build(embed_dim=16, num_heads=2)
    inputs = subject.draw(module, length, batch=1)
    try:
        row = inputs.map(Tensor.double).requiring_grad()
        output = row.run(module.double())
    except Exception:  # float64 is optional
        row = inputs.requiring_grad()
        output = row.run(module.float())
    direction = torch.linspace(0.5, 1.5, output.shape[-1]).to(output)
    sums = [output[0, i] @ direction for i in _outputs(length)]
    sizes = torch.stack([gradient_to(row.query, x, retain_graph=True)[0] for x in sums]).norm(dim=-1)
    sizes = (sizes / sizes.amax(1, keepdim=True).clamp_min(1e-300)).cpu()
    return sizes.where(sizes > torch.finfo(sizes.dtype).eps ** 0.7, 0.0)
