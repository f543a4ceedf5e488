"""The table of relations of inputs: layouts in memory, rows of a batch, and padding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from cab.verification.compare import LEAK, ROUNDING
from cab.verification.entries import (
    DECODING,
    FORWARD,
    LONGEST,
    PACKED,
    STEPS,
    TRAINED_OUTPUTS,
    TRAINING,
    TRAINING_PACKED,
    Call,
    Setup,
    random_direction,
)
from cab.verification.inputs import LAYOUTS, Inputs, masked_inputs, rows_alone
from cab.verification.relation import MEMORY, Variant, Variants, plain_values, relation, rows_of

# --- layouts ---------------------------------------------------------------------------------------------------------


@relation(
    "contract",
    entries=(FORWARD, TRAINING, STEPS),
    setups=(Setup(5, batch=3), Setup(7, batch=3, padding="right")),
    limit=LEAK,
    says="depend on the layout in memory",
)
def strided_inputs(call: Call) -> Variants:
    """Give equal values for inputs, masks, gradients and states in any layout, such as transposed, all or one alone."""
    present = tuple(call.inputs.arguments())
    is_last = bool(call.setup.padding) or "right" not in call.subject.padding_layouts
    alone = [(name,) for name in present if call.entry is FORWARD and is_last and len(present) > 1]
    for (how, layout), names in product(MEMORY.items(), (present, *alone)):
        strided = call.but(view=partial(_laid_out, names, layout))
        if names == present:
            strided = strided.but(
                carry=lambda state, f=layout: {name: f(x) for name, x in state.items()},
                cotangent=lambda x, f=layout: f(random_direction(x)),
            )
        yield Variant(f"of {' and '.join(names) if names != present else 'inputs'} {how}", strided)
    if not call.setup.padding or call.inputs.key is not None:
        equal = call.but(inputs=call.inputs.rows([0, 0, 0]))
        yield Variant("of expanded rows", equal.but(view=_expanded), base=equal.run(), names="outputs".__eq__)


def _laid_out(names: Sequence[str], layout: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Return the inputs with these arguments in another layout; the mask of a self pattern is one argument."""
    return replace(inputs, **{name: layout(inputs.arguments()[name]) for name in names})


def _expanded(inputs: Inputs) -> Inputs:
    return replace(inputs, **{n: x[:1].expand(len(x), *x.shape[1:]) for n, x in inputs.arguments().items()})


@relation("contract", entries=(FORWARD, TRAINING, STEPS), limit=LEAK, applies=lambda s: s.pattern.is_cross)
def same_source(call: Call) -> Variants:
    """One tensor passed as key and value, or as query as well, gives the same output as equal tensors."""
    source, query = replace(call.inputs, value=call.inputs.key), call.inputs.query
    one = call.but(inputs=source)
    shared = one.but(view=lambda x: replace(x, value=x.key))
    names = ("outputs", "gradient of query")
    yield Variant("of one tensor for key and value", shared, base=one.run(), names=names.__contains__)
    one = call.but(inputs=replace(source, key=query, value=query))
    shared = one.but(view=lambda x: replace(x, key=x.query, value=x.query))
    yield Variant("of one tensor for query, key and value", shared, base=one.run(), names="outputs".__eq__)


# --- rows of a batch -------------------------------------------------------------------------------------------------

batches = partial(relation, "batches", limit=LEAK)


def _others(x: Tensor) -> Tensor:
    """Return all rows except row 1."""
    return torch.cat([x[:1], x[2:]])


def _with_row(call: Call, row: Inputs) -> Call:
    """Return the call with the first row of other inputs in row 1."""
    rows = {n: torch.cat([x[:1], row.tensors()[n][:1], x[2:]]) for n, x in call.inputs.tensors().items()}
    return call.but(inputs=replace(call.inputs, **rows))


def _other(factor: float, x: Tensor) -> Tensor:
    return factor * random_direction(x) * x.std()


LENGTHS = (Setup(1, batch=3), Setup(17, batch=3, scale=4.0), Setup(65, batch=3), Setup(130, batch=3))
LONG = Setup(LONGEST, batch=3)


@batches(entries=(FORWARD,), setups=(*LENGTHS, LONG), says="change the others")
def rows_independent(call: Call) -> Variants:
    """Rows are independent: replacing one row, even with values of 5 times the scale, leaves the others unchanged."""
    for factor in (1.0, 5.0):
        other = call.inputs.map(partial(_other, factor))
        yield Variant(f"with row 1 x{factor:g}", _with_row(call, other), _others, _others, names="outputs".__eq__)


batches(
    entries=(TRAINED_OUTPUTS,),
    setups=(Setup(batch=3), Setup(33, batch=9, has_dropout=True), LONG),
    name="rows_in_training",
    summary="In training mode with a fixed seed, no output of a row changes when another row is replaced.",
)(rows_independent)


@batches(entries=(FORWARD, TRAINING, PACKED), setups=(Setup(9, batch=3),), says="reach others")
def bad_row(call: Call) -> Variants:
    """No output and no gradient of a row changes when another row is NaN, inf or 1e7."""
    for value in (torch.nan, torch.inf, 1e7) if call.subject.long else (torch.nan, 1e7):
        bad = _with_row(call, call.inputs.map(partial(torch.full_like, fill_value=value)))
        with contextlib.suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # it refuses NaN
            yield Variant(f"with a row of {value:g}", bad, _others, _others, values=bad.run())


relation(
    "branching",
    entries=(STEPS,),
    setups=(Setup(9, batch=3),),
    limit=LEAK,
    says="reach others",
    name="decode_bad_row",
    summary="While decoding, no output of a row changes when another row is NaN, inf or 1e7.",
)(bad_row)


@relation("batches", entries=(FORWARD,), setups=(*LENGTHS, Setup(batch=7), LONG), limit=ROUNDING)
def batch_size(call: Call) -> Variants:
    """Every row gives the same output in a batch of one and of several."""
    for row in {0, 1, 2, len(call.inputs.query) - 1}:
        part = slice(row, row + 1)
        alone = call.but(inputs=call.inputs.rows(part))
        yield Variant(f"of row {row} alone", alone, rows_of(part))


parts = partial(relation, limit=lambda s: s.decode_tolerance, says="are not those of its parts")
FULL_PARTS = Setup(3, 520, padding="right", embed_dim=16, is_full=True)


@parts("batches", entries=(TRAINING, PACKED), setups=(Setup(2, 520, embed_dim=16), FULL_PARTS))
def many_rows(call: Call) -> Variants:
    """In a batch of 520 rows (40 in decoding), outputs and gradients are those of parts of 7 and the others."""
    query = call.inputs.query
    if not call.is_random:
        whole, apart = plain_values(call, call.entry), []
        for part in torch.arange(len(query)).split([7, len(query) - 7]):
            direction = random_direction(query)[part]
            rows = call.but(inputs=call.inputs.rows(part), cotangent=lambda _output, x=direction: x)
            apart.append(rows.run())
        parts = {name: [values[name] for values in apart] for name in whole}
        base = {n: torch.cat(x) if len(whole[n]) == len(query) else torch.stack(x).sum(0) for n, x in parts.items()}
        yield Variant("of a batch", call, values=whole, base=base)


parts(
    "branching",
    entries=DECODING,
    setups=(Setup(3, 40, embed_dim=16),),
    name="decode_many_rows",
    summary="In a batch of 40 rows, decoding gives what parts of 7 and 33 rows give.",
)(many_rows)


def zero_gradients(call: Call, chosen: Callable[[Tensor], Tensor], forbidden: Callable[[str], Any]) -> Variants:
    """Yield the gradients of ``chosen`` outputs with respect to the ``forbidden`` positions of each input."""
    values = call.but(sees_padding=True, cotangent=lambda x: random_direction(x) * chosen(x)).run()
    for name in call.inputs.tensors():
        if f"gradient of {name}" in values:
            yield values[f"gradient of {name}"][forbidden(name)].abs().max(), name


def _rows(x: Tensor, step: int) -> Tensor:
    """Return a mask of rows 1, 1 + step, 1 + 2 step, ..."""
    return (torch.arange(len(x), device=x.device) % step == 1)[:, None, None]


exact = partial(relation, entries=(TRAINING,), compares=False)


@exact(
    "batches",
    "gradient with respect to another row",
    setups=[Setup(n, rows, has_dropout=True) for n, rows in ((1, 3), (33, 3), (LONGEST, 2))],
)
def rows_gradient(call: Call) -> Variants:
    """In training mode, the gradient of a row's output with respect to every other row is exactly zero."""
    yield from zero_gradients(call, lambda x: _rows(x, 9), lambda _: [0, *range(2, len(call.inputs.query))])


@relation(
    "packed",
    "gradient with respect to a neighboring sequence",
    entries=(TRAINING_PACKED,),
    setups=(Setup(65, batch=5, padding="right", has_dropout=True),),
    compares=False,
)
def packed_borders(call: Call) -> Variants:
    """In training mode, the gradient of a sequence's output with respect to its neighbors is exactly zero."""
    yield from zero_gradients(call, lambda x: _rows(x, 2) * call.inputs.real[..., None], lambda _: slice(None, None, 2))


# --- padding ---------------------------------------------------------------------------------------------------------

padding = partial(relation, "padding", layouts=LAYOUTS, declared_in="padding_layouts")
content = partial(padding, applies=lambda s: not s.clears_padding)
"""A relation of the content of padding, which :class:`cab.Attention` sets to zero."""


@padding(
    layouts=(*LAYOUTS, "single_token"),
    limit=ROUNDING,
    entries=(FORWARD,),
    setups=(Setup(batch=5, num_heads=4), Setup(batch=5, num_heads=1, scale=4.0), Setup(70, batch=5, num_heads=4), LONG),
)
def padded(call: Call) -> Variants:
    """Rows with padding (also of the source), in a batch and by themselves, give the output without padding."""
    layout = call.setup.padding
    finding = f"padded keys or positions change the output (padding {layout})"
    for row, alone in rows_alone(call.inputs):
        part, real = slice(row, row + 1), call.inputs.real[row]
        together = rows_of((part, real))
        yield Variant(
            f"of row {row}", call.but(inputs=alone), together, names="outputs".__eq__, explain=lambda: finding
        )
        if call.entry is FORWARD and call.setup.length not in call.subject.long:
            single = call.but(inputs=call.inputs.rows(part))
            yield Variant(f"of row {row} as a batch of one", single, rows_of(part), explain=lambda: finding)
    if layout == "row" and call.setup.length == 17:
        yield from _of_empty_rows(call)


def _of_empty_rows(call: Call) -> Variants:
    """Count NaN and inf values of a training step with rows of padding alone."""
    advice = "mask weights with torch.finfo(dtype).min instead of -inf, or clamp the sum by which they are divided"
    for name, x in call.but(sees_padding=True).run(TRAINING).items():
        if name != "outputs" or call.inputs.key is not None:  # targets without a source token: undefined, but finite
            what = "outputs" if name == "outputs" else f"the {name}"
            finding = f"a sequence of padding alone makes {what} NaN or inf: {advice}"
            yield 0.0 if x.isfinite().all() else torch.inf, f"{name}, rows of padding alone", None, finding


@padding(
    limit=ROUNDING,
    entries=(TRAINED_OUTPUTS,),
    setups=(Setup(33, batch=3, drops_nothing=True), LONG._replace(padding="inside")),
)
def padded_in_training(call: Call) -> Variants:
    """In training mode, padded rows give the same output as without padding, whatever the content of the padding."""
    yield Variant("with other padding", call.but(inputs=call.inputs.filled(lambda x: 30.0 * random_direction(x))))
    if not call.is_random:
        yield from padded(call)


@content(
    "gradient with respect to padding", entries=(TRAINING,), setups=(Setup(33, 5, has_dropout=True),), compares=False
)
def padding_gradient(call: Call) -> Variants:
    """No real output has a gradient with respect to padded inputs."""
    masks = {name: mask for name, _, mask in masked_inputs(call.inputs)}
    yield from zero_gradients(call, lambda _: call.inputs.real[..., None], masks.__getitem__)


POISON = {"right": torch.nan, "left": torch.inf, "inside": torch.nan, "row": 1e10}
FINITE_POISON = 1e4
"""Value of the padding for modules of other packages, many of which multiply padding by zero."""


@content(limit=LEAK, entries=(FORWARD, TRAINING, STEPS), setups=(Setup(17, batch=5),))
def padding_poison(call: Call) -> Variants:
    """No real output or gradient changes with extreme padding (NaN, inf, 1e10; 1e4 in foreign modules)."""
    poison = POISON[call.setup.padding] if call.subject.keeps_whole_contract else FINITE_POISON
    filled = call.inputs.filled(lambda x: torch.full_like(x, poison))
    yield Variant(f"with padding of {poison:g}", call.but(inputs=filled))


@relation(
    "padding",
    limit=ROUNDING,
    entries=(FORWARD, STEPS),
    setups=(9,),
    applies=lambda s: bool(s.padding_layouts),
)
def padding_of_nothing(call: Call) -> Variants:
    """No output changes when an all-False mask is passed."""
    if call.entry.supports(call.subject, "right"):
        masks = {f"{name}_padding": mask for name, _, mask in masked_inputs(call.inputs) if name != "value"}
        yield Variant("with masks of nothing", call.but(inputs=replace(call.inputs, **masks)))


@relation(
    "padding",
    "relative error between one mask and both",
    entries=(FORWARD,),
    setups=(Setup(batch=5, padding="right"),),
    limit=LEAK,
    applies=lambda s: s.keeps_whole_contract and not s.pattern.is_cross,
)
def padding_either_mask(call: Call) -> Variants:
    """In self patterns, passing the query mask, the key mask or both gives the same output."""
    with torch.no_grad():
        for name in ("query_padding_mask", "key_padding_mask"):
            output = call.module(call.inputs.query, **{name: call.inputs.query_padding})
            yield Variant(f"with {name} alone", call, values={"outputs": call.masked(output)})


@relation(
    "padding",
    "output at a padded target",
    entries=(FORWARD,),
    setups=[Setup(batch=5, padding=layout) for layout in ("left", "row")],
    compares=False,
    applies=lambda s: s.keeps_whole_contract,
)
def padding_output(call: Call) -> Variants:
    """At padded targets, the output is zero."""
    yield call.but(sees_padding=True).run()["outputs"][~call.inputs.real].abs().max(), ""
