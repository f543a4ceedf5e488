"""Contract checks: invalid calls, output types, model sizes, layer positions, limits, parameters and compilation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from statistics import mean
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from cab.attention import Attention, LayerPosition
from cab.claims import NUM_TOKENS
from cab.patterns import Pattern
from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import CHECKS, Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, distance, rounding
from cab.verification.entries import FORWARD, TRAINING, Call, Setup, build, decode, initial_state
from cab.verification.inputs import LAYOUTS, rows_alone
from cab.verification.numerics import SLOPE, derivative_error
from cab.verification.relation import Variant, Variants, is_computed, relation, rows_of
from cab.verification.subject import WHOLE, Subject, takes

Calls = Mapping[str, Callable[[], object]]
"""Functions that make a call, named by what is wrong with it."""


def refused(calls: Callable[[Subject], Calls]) -> Callable[[Subject], Measurements]:
    """Register a check that each of the decorated function's calls raises ValueError."""

    @check("contract", "invalid calls without a ValueError", applies=lambda s: s.keeps_whole_contract)
    @wraps(calls)
    def measurements(subject: Subject) -> Measurements:
        for name, call in calls(subject).items():
            reaction = "accepted"
            try:
                call()
            except Exception as error:
                reaction = "refused" if isinstance(error, ValueError) else f"raised {type(error).__name__}"
            yield float(reaction != "refused"), f"{name} ({reaction})"

    return measurements


@refused
def wrong_inputs(subject: Subject) -> Calls:
    """Invalid calls raise ValueError: key in a self pattern, no key in a cross pattern, wrong masks or widths."""
    module = subject.build()
    x, source = (torch.randn(2, n, module.embed_dim, device=subject.device) for n in (5, 7))
    mask = torch.zeros(2, 5, dtype=torch.bool, device=subject.device)
    both = {"key": source, "value": source} if subject.pattern.is_cross else {}
    calls: dict[str, Callable[[], object]] = {
        "a wrong width": lambda: module(x[..., :-1], **both),
        "a query without a batch dimension": lambda: module(x[0], **both),
        "an empty query": lambda: module(x[:, :0], **both),
        "a query mask of the wrong length": lambda: module(x, **both, query_padding_mask=mask[:, :-1]),
        "a query mask of type float": lambda: module(x, **both, query_padding_mask=mask.float()),
        "a key mask of the wrong length": lambda: module(x, **both, key_padding_mask=mask[:, :-1]),
        "a key mask of the wrong batch size": lambda: module(x, **both, key_padding_mask=mask[:1]),
        "a key mask of type float": lambda: module(x, **both, key_padding_mask=torch.zeros(2, 7 if both else 5)),
    }
    if not both:
        return calls | {"a key in a self pattern": lambda: module(x, x, x)}
    return calls | {
        "no key": lambda: module(x),
        "a key without a value": lambda: module(x, source),
        "a value of another length than the key": lambda: module(x, source, source[:, :-1]),
        "a source of another batch size": lambda: module(x, source[:1], source[:1]),
    }


@refused
def wrong_options(subject: Subject) -> Calls:
    """Invalid options raise ValueError: embed_dim not divisible by the heads, 0 heads, dropout 1, unknown pattern."""
    return {
        "embed_dim 32 with 5 heads": partial(subject.build, num_heads=5),
        "0 heads": partial(subject.build, num_heads=0),
        "dropout 1": partial(subject.build, dropout=1.0),
        "pattern XS": partial(subject.build, pattern="XS"),
    }


@refused
def decoding_refused(subject: Subject) -> Calls:
    """init_state raises ValueError in noncausal patterns, without a source in CC, and with a source in CS."""
    module = subject.build()
    x = torch.randn(2, 7, module.embed_dim, device=subject.device)
    source = {"key": x, "value": x} if subject.pattern is Pattern.CS else {}
    mistake = {Pattern.CS: "with a source", Pattern.CC: "without a source"}.get(subject.pattern, "without causality")
    return {f"init_state {mistake}": partial(module.init_state, 2, **source)}


@relation(
    "contract",
    "outputs with the wrong shape, dtype or device",
    entries=(FORWARD,),
    setups=(Setup(1, batch=1), Setup(17, batch=3), Setup(130, batch=7)),
    compares=False,
)
def output_type(call: Call) -> Variants:
    """Every output has the shape, dtype and device of the query, in training, evaluation and decoding."""
    module, inputs = call.module, call.inputs
    with torch.no_grad():
        outputs = {mode: inputs.run(module.train(mode == "training")) for mode in ("training", "evaluation")}
        if call.subject.decodes:
            outputs["a step"], _ = module.step(inputs.query[:, :1], initial_state(module, inputs))
    for mode, output in outputs.items():
        expected = inputs.query[:, :1] if mode == "a step" else inputs.query
        actual, kind = ((x.dtype, x.device, tuple(x.shape)) for x in (output, expected))
        yield float(actual != kind), f"{mode} ({', '.join(map(str, actual))})"


@check("contract", "machine epsilon", limit=lambda s: s.epsilon, declared_in="internal_dtype")
def float32_kept(subject: Subject) -> Measurements:
    """Compute a float32 call in float32, or in the coarser dtype that the class declares."""
    module = subject.build()
    epsilon = rounding(module, subject.draw(module, WHOLE, batch=1))
    finding = "a float32 call computes in 16 bits, perhaps as autocast is enabled inside"
    yield epsilon, "the coarsest operation", None, finding


SIZES = ((768, 12), (128, 1), (64, 16), (21, 3))
"""Widths and head counts: head dimensions of 64 (in the full suite alone), 128, 4 and 7."""
OTHER_SIZES = ((96, 2), (80, 1), (192, 2), (192, 1))
"""The same for modules of other packages that refuse one of these sizes: head dimensions of 48, 80, 96 and 192."""


def _sizes(subject: Subject, *, first: int = 1) -> Iterator[Setup]:
    """Yield a setup of every size. A class may refuse an odd head dimension with a ValueError, and is then skipped."""
    sizes = SIZES if subject.long else SIZES[first:]
    others = OTHER_SIZES if any(subject.refuses(*size) for size in sizes) else ()
    for embed_dim, num_heads in (*sizes, *others):
        setup = Setup(70, batch=3, padding="inside", embed_dim=embed_dim, num_heads=num_heads)
        try:
            if not subject.refuses(embed_dim, num_heads):
                if embed_dim // num_heads % 2:
                    build(subject, setup)
                yield setup
        except ValueError:
            subject.skipped.append(f"width {embed_dim}, heads {num_heads}")


@relation("sizes", entries=(FORWARD,), setups=_sizes, limit=ROUNDING, compares=False)
def model_sizes(call: Call) -> Variants:
    """At widths of 21 to 768 with 1 to 16 heads, batches, padding, causality, decoding and training mode are right."""
    subject, module, real, together = call.subject, call.module, call.inputs.real, call.run()
    rows = dict(rows_alone(call.inputs))
    for row, alone in rows.items():
        part = rows_of((slice(row, row + 1), real[row]))
        yield Variant(f"of padded row {row} alone", call.but(inputs=alone), part, base=together)
    unpadded, output = rows[0], together["outputs"][:1]
    if subject.pattern.is_causal:
        cuts = torch.tensor([0, 15, 34, 63, 68])
        yield replacement_leak(module, unpadded, cuts, 1.0, "tokens replaced", subject.rounded(LEAK))
        yield gradient_leak(module, unpadded, cuts[:3], "gradient")
    if subject.decodes:
        chunks = [62, *[1] * 8] if subject.prefills else [1] * 20
        with torch.no_grad():
            decoded = decode(module, unpadded, chunks)
        yield difference(decoded, output[:, : sum(chunks)]), "decoding", subject.decode_tolerance
    if not subject.is_random_in_training:
        with torch.no_grad():
            trained = unpadded.run(call.in_mode(training=True))
        yield difference(trained, output), "training mode"


@relation(
    "sizes",
    "relative error between gradient and central differences",
    entries=(FORWARD,),
    setups=partial(_sizes, first=2),
    limit=SLOPE,
    compares=False,
    applies=lambda s: s.claims.has_exact_gradient,
)
def model_sizes_gradient(call: Call) -> Variants:
    """At widths of 21 to 768 with 1 to 16 heads, gradients agree with central differences."""
    error, limit = derivative_error(call.module, dict(rows_alone(call.inputs))[0])
    yield error, "", limit


LAYER_CHECKS = (
    *("lookahead_gradient", "decode_steps", *(f"decode_padded_{layout}" for layout in LAYOUTS)),
    *("padded_left", "batch_size", "gradient_is_derivative"),
)


@check("layer_position", "error", applies=lambda s: takes(s.cls, "layer_position"), is_quick=False)
def every_layer_position(subject: Subject) -> Measurements:
    """As first and as last of four layers, the attention passes the main checks of causality, decoding and padding."""
    for index in (0, 3):
        options = {**subject.options, "layer_position": LayerPosition(index, 4)}
        deep = replace(subject, options=options, long=(), shared={})
        for main in (CHECKS[name] for name in LAYER_CHECKS):
            if main.applies(deep):
                worst = main.measure(deep)
                yield worst.value, f"layer {index} of 4, {main.name}, {worst.where}", worst.limit, worst.finding


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
    """Return the distance of outputs from softmax(q k^T / sqrt(E)) v with the same projections."""
    common = Attention.common_options().items()  # no claim is about them
    plain = {name: value for name, value in common if name in subject.options}
    module = subject.build(seed=seed, **{**plain, **options})
    inputs = subject.draw(module, LIMIT_LENGTH, LIMIT_LENGTH, seed=seed)
    q, k, v = Attention.project(module, *(inputs.tensors().values() if inputs.key is not None else [inputs.query] * 3))
    heads = scaled_dot_product_attention(q, k, v, is_causal=subject.pattern is Pattern.CS, scale=module.head_dim**-0.5)
    return distance(inputs.run(module), module.out_proj(module.merge_heads(heads)))


BACKBONE = 122_319_360
"""Number of parameters of GPT-2 with softmax attention (12 layers, width 768), as counted in CAB, Table 17."""


@check(
    "parameters",
    "share of GPT-2's parameters added",
    limit=lambda s: s.claims.parameter_budget,
    applies=lambda s: takes(s.cls, "embed_dim") and s.keeps_whole_contract,
    declared_in="claims.parameter_budget",
)
def parameter_budget(subject: Subject) -> Measurements:
    """In every layer of GPT-2, the attention adds at most 10% of the parameters, or its class's declared budget."""
    module = subject.build(embed_dim=768, num_heads=12)
    width, count = module.embed_dim, sum(parameter.numel() for parameter in module.parameters())
    added = 12 * (count - 4 * width * (width + 1)) / BACKBONE
    yield max(added, 0.0), f"width {width}, {count:,} parameters per layer"


@relation("compile", "graph breaks", entries=(FORWARD, TRAINING), setups=(600,), compares=False, is_quick=False)
def compile_graph_breaks(call: Call) -> Variants:
    """torch.compile captures the call in a single graph, in evaluation and in training mode."""
    import torch._dynamo  # takes seconds

    torch._dynamo.reset()
    module, inputs = call.in_mode(training=call.entry is TRAINING), call.inputs.requiring_grad()
    explained = torch._dynamo.explain(lambda *tensors: module(*tensors))(*inputs.tensors().values())
    yield explained.graph_break_count, "; ".join(str(x.reason).splitlines()[0] for x in explained.break_reasons)


@relation(
    "compile",
    entries=(FORWARD, TRAINING),
    setups=(33, Setup(33, batch=3, padding="left")),
    limit=ROUNDING,
    is_quick=False,
)
def compiled_values(call: Call) -> Variants:
    """After torch.compile, also with masks, values in evaluation and in training mode are the same."""
    import torch._functorch.config  # takes seconds

    compiled = copy.deepcopy(call.module)
    compiled.compile(backend="aot_eager")  # in place, so parameters keep their names
    with torch._functorch.config.patch(donated_buffer=False):  # the graph is kept for several backward passes
        yield Variant("after torch.compile", call.but(module=compiled), names=is_computed)
