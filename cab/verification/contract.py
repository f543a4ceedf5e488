"""Contract checks: invalid calls, output types, model sizes, layer positions, limits, parameters and compilation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from cab.attention import Attention, LayerPosition
from cab.claims import NUM_TOKENS, Claims
from cab.patterns import Pattern
from cab.training import auxiliary_loss
from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import CHECKS, Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, distance
from cab.verification.entries import decode, initial_state
from cab.verification.inputs import LAYOUTS, Inputs, Module, rows_alone
from cab.verification.numerics import SLOPE, derivative_error
from cab.verification.subject import Subject, takes

refusal_check = partial(
    check, "contract", "invalid calls without a ValueError", applies=lambda s: s.keeps_whole_contract
)


@refusal_check()
def wrong_inputs(subject: Subject) -> Measurements:
    """Invalid calls raise ValueError: key in a self pattern, no key in a cross pattern, wrong masks or widths."""
    module = subject.build()
    x, source = (torch.randn(2, n, module.embed_dim, device=subject.device) for n in (5, 7))
    mask = torch.zeros(2, 5, dtype=torch.bool, device=subject.device)
    both = {"key": source, "value": source} if subject.pattern.is_cross else {}
    calls = {
        "a wrong width": lambda: module(x[..., :-1], **both),
        "a query without a batch dimension": lambda: module(x[0], **both),
        "an empty query": lambda: module(x[:, :0], **both),
        "a query mask of the wrong length": lambda: module(x, **both, query_padding_mask=mask[:, :-1]),
        "a query mask of type float": lambda: module(x, **both, query_padding_mask=mask.float()),
        "a key mask of the wrong length": lambda: module(x, **both, key_padding_mask=mask[:, :-1]),
        "a key mask of the wrong batch size": lambda: module(x, **both, key_padding_mask=mask[:1]),
        "a key mask of type float": lambda: module(x, **both, key_padding_mask=torch.zeros(2, 7 if both else 5)),
    }
    if subject.pattern.is_cross:
        calls |= {
            "no key": lambda: module(x),
            "a key without a value": lambda: module(x, source),
            "a value of another length than the key": lambda: module(x, source, source[:, :-1]),
            "a source of another batch size": lambda: module(x, source[:1], source[:1]),
        }
    else:
        calls["a key in a self pattern"] = lambda: module(x, x, x)
    return refusals(calls)


@refusal_check()
def wrong_options(subject: Subject) -> Measurements:
    """Invalid options raise ValueError: embed_dim not divisible by the heads, 0 heads, dropout 1, unknown pattern."""
    calls = {
        "embed_dim 32 with 5 heads": lambda: subject.build(num_heads=5),
        "0 heads": lambda: subject.build(num_heads=0),
        "dropout 1": lambda: subject.build(dropout=1.0),
        "pattern XS": lambda: subject.build(pattern="XS"),
    }
    return refusals(calls)


@refusal_check()
def decoding_refused(subject: Subject) -> Measurements:
    """init_state raises ValueError in noncausal patterns, without a source in CC, and with a source in CS."""
    module, source = subject.build(), {}
    if subject.pattern is Pattern.CS:
        source = dict.fromkeys(("key", "value"), torch.randn(2, 7, module.embed_dim, device=subject.device))
    mistake = {Pattern.CS: "with a source", Pattern.CC: "without a source"}.get(subject.pattern, "without causality")
    return refusals({f"init_state {mistake}": lambda: module.init_state(2, **source)})


def refusals(calls: Mapping[str, Callable[[], object]]) -> Measurements:
    """Yield 1 for every call, named by what is wrong with it, that does not raise ValueError."""
    for name, call in calls.items():
        reaction = "accepted"
        try:
            call()
        except Exception as error:
            reaction = "refused" if isinstance(error, ValueError) else f"raised {type(error).__name__}"
        yield float(reaction != "refused"), f"{name} ({reaction})"


@check("contract", "outputs with the wrong shape, dtype or device")
def output_type(subject: Subject) -> Measurements:
    """Every output has the shape, dtype and device of the query, in training, evaluation and decoding."""
    for length, batch in ((1, 1), (17, 3), (130, 7)):
        module, inputs = subject.case(length, batch=batch)
        with torch.no_grad():
            outputs = {mode: inputs.run(module.train(mode == "training")) for mode in ("training", "evaluation")}
            if subject.decodes:
                outputs["step"], _ = module.step(inputs.query[:, :1], initial_state(module, inputs))
        for mode, output in outputs.items():
            expected = inputs.query[:, :1] if mode == "step" else inputs.query
            actual, kind = ((x.dtype, x.device, tuple(x.shape)) for x in (output, expected))
            yield float(actual != kind), f"n={length}, {batch} rows, {mode} ({', '.join(map(str, actual))})"


SIZES = ((768, 12), (128, 1), (64, 16), (21, 3))
"""Widths and head counts: head dimensions of 64, 128, 4 and 7."""
OTHER_SIZES = ((96, 2), (80, 1), (192, 2), (192, 1))
"""The same for modules that refuse one of these sizes: head dimensions of 48, 80, 96 and 192."""

LENGTH = 70
CUTS = (0, 15, 34, 63, 68)
"""Positions after which all tokens are replaced."""


@check("sizes", "relative error", limit=ROUNDING)
def model_sizes(subject: Subject) -> Measurements:
    """At widths of 21 to 768 with 1 to 16 heads, batches, padding, causality, decoding and training mode are right."""
    for module, size in _modules(subject, SIZES if subject.long else SIZES[1:]):
        inputs = subject.draw(module, LENGTH, batch=3, padding="inside")
        with torch.no_grad():
            together = inputs.run(module)
            for row, alone in rows_alone(inputs):
                error = difference(together[row, inputs.real[row]], alone.run(module)[0])
                yield error, f"{size}, padded row {row} in a batch"
        _, unpadded = next(rows_alone(inputs))
        if subject.pattern.is_causal:
            yield from _causality(subject, module, unpadded, size)
        if not subject.is_random_in_training:
            with torch.no_grad():
                error = difference(unpadded.run(module.train())[0], together[0])
            yield error, f"{size}, training mode"
            auxiliary_loss(module)


@check(
    "sizes",
    "relative error between gradient and central differences",
    limit=SLOPE,
    applies=lambda s: s.claims.has_exact_gradient,
    declared_in="claims.has_exact_gradient",
)
def model_sizes_gradient(subject: Subject) -> Measurements:
    """At widths of 21 to 768 with 1 to 16 heads, gradients agree with central differences."""
    for module, size in _modules(subject, SIZES if subject.long else SIZES[2:]):
        inputs = subject.draw(module, LENGTH, batch=1)
        error, limit = derivative_error(module, inputs)
        yield error, size, limit


def _causality(subject: Subject, module: Module, inputs: Inputs, size: str) -> Measurements:
    """Compare one row with replaced tokens and with its decoding, and look at its gradients."""
    yield replacement_leak(module, inputs, torch.tensor(CUTS), 1.0, size, subject.rounded(LEAK))
    yield gradient_leak(module, inputs, torch.tensor(CUTS[:3]), f"{size}, gradient")
    if not subject.decodes:
        return
    prompt = LENGTH - 8 if subject.prefills else 0
    start = inputs if prompt else inputs.targets(0, 20)
    chunks = ([prompt] if prompt else []) + [1] * (start.query.shape[1] - prompt)
    with torch.no_grad():
        error = difference(decode(module, start, chunks), start.run(module))
    yield error, f"{size}, decoding", subject.decode_tolerance


def _modules(subject: Subject, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[tuple[Module, str]]:
    """Yield a module of every size.

    A class may refuse an odd head dimension with a ValueError. A module of another package may refuse any size; further
    sizes are then tested.
    """
    for embed_dim, num_heads in sizes:
        size = f"width {embed_dim}, heads {num_heads}"
        if subject.refuses(embed_dim, num_heads):
            continue
        try:
            module = subject.build(embed_dim=embed_dim, num_heads=num_heads)
        except ValueError:
            if embed_dim // num_heads % 2 == 0:
                raise
            subject.skipped.append(size)
            continue
        yield module, size
    if subject.is_foreign and subject.skipped and sizes is not OTHER_SIZES:
        yield from _modules(subject, OTHER_SIZES)


LAYER_POSITIONS = (LayerPosition(0, 4), LayerPosition(3, 4))
"""Positions in addition to the one used by all other checks, the only layer of one."""

LAYER_CHECKS = (
    *("lookahead_gradient", "decode_steps", *(f"decode_padded_{layout}" for layout in LAYOUTS)),
    *("padded_left", "batch_size", "gradient_is_derivative"),
)


@check(
    "layer_position",
    "error relative to its limit",
    limit=1.0,
    applies=lambda s: takes(s.cls, "layer_position"),
    is_quick=False,
)
def every_layer_position(subject: Subject) -> Measurements:
    """As first and as last of four layers, the attention passes the main checks of causality, decoding and padding."""
    for layer_position in LAYER_POSITIONS:
        options = {**subject.options, "layer_position": layer_position}
        deep = replace(subject, options=options, long=(), shared={})
        layer = f"layer {layer_position.index} of {layer_position.num_layers}"
        for main in (CHECKS[name] for name in LAYER_CHECKS):
            if main.applies(deep):
                worst = main.measure(deep)
                share = worst.value / worst.limit if worst.limit else float(worst.value > 0.0) * 2.0
                yield share, f"{layer}, {main.name}, {worst.where}"


LIMIT_LENGTH, SEEDS = 24, range(1, 9)


@check(
    "limits",
    "relative distance from softmax attention",
    limit=lambda s: s.claims.softmax_limit.tolerance,
    applies=lambda s: s.claims.softmax_limit is not None,
)
def softmax_limit(subject: Subject) -> Measurements:
    """Under the options of its limit, the method equals softmax attention; the error decreases at every step."""
    previous, limit = math.inf, subject.claims.softmax_limit
    assert limit is not None
    for claimed in limit.options:
        options = {name: LIMIT_LENGTH if value == NUM_TOKENS else value for name, value in claimed.items()}
        where = ", ".join([f"n={LIMIT_LENGTH}", *(f"{name}={value}" for name, value in options.items())])
        error = mean(_distance(subject, seed, options) for seed in (SEEDS if subject.long else SEEDS[:4]))
        yield error / previous if previous else error, f"{where}, relative to the previous step", 1.0
        previous = error
    yield error, where


@torch.no_grad()
def _distance(subject: Subject, seed: int, options: Mapping[str, Any]) -> float:
    plain = dict.fromkeys(subject.options.keys() & {"short_convolution"}, 0)  # no claim is about it
    module = subject.build(seed=seed, **{**plain, **options})
    inputs = subject.draw(module, LIMIT_LENGTH, LIMIT_LENGTH, seed=seed)
    return distance(inputs.run(module), softmax_attention(module, inputs, subject.pattern))


def softmax_attention(module: Module, inputs: Inputs, pattern: Pattern) -> Tensor:
    """Return softmax(q k^T / sqrt(E)) v with the projections of ``module``."""
    q, k, v = Attention.project(module, *(inputs.tensors().values() if pattern.is_cross else [inputs.query] * 3))
    logits = q @ k.transpose(-2, -1) / module.head_dim**0.5
    if pattern is Pattern.CS:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return module.out_proj(module.merge_heads(logits.softmax(dim=-1) @ v))


BACKBONE = 122_319_360
"""Number of parameters of GPT-2 with softmax attention (12 layers, width 768), as counted in CAB, Table 17."""

BUDGET = Claims.parameter_budget


@check(
    "parameters",
    "share of GPT-2's parameters added",
    limit=lambda s: s.claims.parameter_budget,
    applies=lambda s: takes(s.cls, "embed_dim") and not s.is_foreign,
    declared_in="claims.parameter_budget",
)
def parameter_budget(subject: Subject) -> Measurements:
    """In every layer of GPT-2, the attention adds at most 10% of the parameters, or its class's declared budget.

    GPT-2 is the paper's language model. Methods published with more parameters (S4D, LongShort) declare
    ``claims.parameter_budget``; ``cab paper params`` reports the share for other backbones.
    """
    module = subject.build(embed_dim=768, num_heads=12)
    budget = subject.claims.parameter_budget
    width, count = module.embed_dim, sum(parameter.numel() for parameter in module.parameters())
    added = 12 * (count - 4 * width * (width + 1)) / BACKBONE
    declared = f", {budget:.0%} declared by the class, {BUDGET:.0%} in the paper" if budget != BUDGET else ""
    yield max(added, 0.0), f"width {width}, {count:,} parameters per layer{declared}"


@check("compile", "graph breaks", is_quick=False)
def compile_graph_breaks(subject: Subject) -> Measurements:
    """torch.compile captures the call in a single graph, in evaluation and in training mode."""
    import torch._dynamo  # takes seconds

    for training in (False, True):
        module, inputs = subject.case(600, training=training, requires_grad=True)
        torch._dynamo.reset()
        explained = torch._dynamo.explain(lambda *tensors, module=module: module(*tensors))(*inputs.tensors().values())
        reasons = "; ".join(str(reason.reason).splitlines()[0] for reason in explained.break_reasons)
        mode = "training" if training else "evaluation"
        yield explained.graph_break_count, f"n=600, {mode}{f' ({reasons})' if reasons else ''}"
