"""Relations of inputs: layouts, rows, padding, lengths, gradients and decoding."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.compare import LEAK, ROUNDING
from cab.verification.entries import (
    FORWARD,
    GRADIENT,
    LONGEST,
    PACKED,
    PROMPT,
    STEPS,
    TRAINING,
    Call,
    Setup,
    random_direction,
)
from cab.verification.inputs import LAYOUTS, Inputs, masked_inputs, rows_alone
from cab.verification.relation import Variant, Variants, relation

# --- layouts ---------------------------------------------------------------------------------------------------------


@relation(
    "contract",
    "relative error between contiguous and non-contiguous inputs",
    setups=(Setup(5, batch=3), Setup(7, batch=3, padding="right")),
    limit=LEAK,
    says="depend on the layout in memory",
)
def strided_inputs(call: Call) -> Variants:
    """Give equal values for contiguous and for other inputs, masks and states, such as transposed or expanded ones."""
    for how, layout in {"transposed": _transposed, "cut out of a larger tensor": _cut}.items():
        strided = call.but(
            view=lambda x, f=layout: replace(x, **{name: f(t) for name, t in x.arguments().items()}),
            carry=lambda state, f=layout: {name: f(x) for name, x in state.items()},
        )
        yield Variant(f"of inputs {how}", strided)
    equal = call.but(inputs=call.inputs.rows([0, 0, 0]))
    yield Variant("of expanded rows", equal.but(view=_expanded), base=equal.run(), names="outputs".__eq__)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x


def _cut(x: Tensor) -> Tensor:
    """Return a part of a larger tensor, which begins elsewhere."""
    return torch.cat([x, x, x])[len(x) : 2 * len(x)]


def _expanded(inputs: Inputs) -> Inputs:
    return replace(inputs, **{n: x[:1].expand(len(x), *x.shape[1:]) for n, x in inputs.arguments().items()})


@relation(
    "contract",
    "relative error between a shared and a copied source",
    entries=(FORWARD, TRAINING, STEPS),
    limit=LEAK,
    applies=lambda s: s.pattern.is_cross,
)
def same_source(call: Call) -> Variants:
    """One tensor passed as both key and value gives the same output as two equal tensors."""
    copied = call.but(inputs=replace(call.inputs, value=call.inputs.key))
    shared = copied.but(view=lambda x: replace(x, value=x.key))
    names = ("outputs", "gradient of query")
    yield Variant("of one tensor for key and value", shared, base=copied.run(), names=names.__contains__)


# --- rows of a batch -------------------------------------------------------------------------------------------------

LENGTHS = (Setup(1, batch=3), Setup(17, batch=3, scale=4.0), Setup(65, batch=3), Setup(130, batch=3))


def _others(x: Tensor) -> Tensor:
    """Return all rows except row 1."""
    return torch.cat([x[:1], x[2:]])


def _replaced(call: Call, row: Inputs) -> Call:
    """Return the call with the first row of other inputs in row 1."""
    is_other = torch.arange(len(call.inputs.query), device=call.inputs.query.device) != 1
    first = row.tensors()
    rows = {n: torch.where(is_other[:, None, None], x, first[n][:1]) for n, x in call.inputs.tensors().items()}
    return call.but(inputs=replace(call.inputs, **rows))


@relation(
    "batches",
    "relative change of the other rows",
    entries=(FORWARD,),
    limit=LEAK,
    setups=(*LENGTHS, Setup(LONGEST, batch=3)),
)
def rows_independent(call: Call) -> Variants:
    """Rows are independent: replacing one row, even with values of 5 times the scale, leaves the others unchanged."""
    for factor in (1.0, 5.0):
        other = call.subject.draw(
            call.module, call.setup.length, call.setup.source_length, scale=factor * call.setup.scale, seed=2
        )
        yield Variant(
            f"with another row 1 x{factor:g}", _replaced(call, other), _others, _others, names="outputs".__eq__
        )


relation(
    "batches",
    "relative change of the other rows",
    entries=(TRAINING,),
    limit=LEAK,
    name="rows_in_training",
    setups=(Setup(batch=3), Setup(33, batch=9, has_dropout=True), Setup(LONGEST, batch=3)),
)(rows_independent)


@relation(
    "batches",
    "relative change of the other rows",
    entries=(FORWARD, GRADIENT, TRAINING, STEPS, PROMPT, PACKED),
    limit=LEAK,
    setups=(Setup(9, batch=3),),
    says="reach other rows",
)
def bad_row(call: Call) -> Variants:
    """No output and no gradient of a row changes when another row is NaN, inf or 1e7."""
    for value in (torch.nan, torch.inf, 1e7):
        bad = call.inputs.rows([1]).map(lambda x, value=value: torch.full_like(x, value))
        yield Variant(f"with a row of {value:g}", _replaced(call, bad), _others, _others)


@relation(
    "batches",
    "gradient with respect to another row",
    entries=(TRAINING,),
    setups=tuple(Setup(n, batch=3, has_dropout=True) for n in (1, 33, LONGEST)),
    compares=False,
)
def rows_gradient(call: Call) -> Variants:
    """In training mode, the gradient of a row's output with respect to every other row is exactly zero."""
    values = call.but(cotangent=lambda x: random_direction(x) * (torch.arange(len(x)) == 1).to(x)[:, None, None]).run()
    for name in call.inputs.tensors():
        gradient = values.get(f"gradient of {name}")
        yield 0.0 if gradient is None else _others(gradient).abs().max(), name


@relation(
    "batches",
    "relative error between a single row and the same row in a batch",
    limit=ROUNDING,
    entries=(FORWARD,),
    setups=(*LENGTHS, Setup(batch=7), Setup(LONGEST, batch=3)),
)
def batch_size(call: Call) -> Variants:
    """Every row gives the same output in a batch of one and of several."""
    batch, shape = len(call.inputs.query), call.inputs.query
    for row in sorted({0, 1, 2, 31, 32, 255, 256, 512, batch - 1} & set(range(batch))):
        part = slice(row, row + 1)
        alone = call.but(inputs=call.inputs.rows(part), cotangent=lambda _, part=part: random_direction(shape)[part])
        yield Variant(f"of row {row} alone", alone, lambda x, part=part: x[part])


@relation(
    "batches",
    "relative error between a single row and the same row in a batch",
    limit=lambda s: s.decode_tolerance,
    entries=(FORWARD, TRAINING, PACKED, STEPS, PROMPT),
    setups=(Setup(3, batch=600), Setup(3, batch=40)),
    says="depend on the number of rows",
)
def many_rows(call: Call) -> Variants:
    """Every row gives the same values in a batch of one, and of 40 (decoding) or 600, in all entries."""
    if (call.setup.batch == 40) == (call.entry in (STEPS, PROMPT)) and not _is_random(call):
        yield from batch_size(call)


def _is_random(call: Call) -> bool:
    """Return whether the entry draws random numbers, which depend on the shapes."""
    return call.entry is TRAINING and call.subject.is_random_in_training


# --- padding ---------------------------------------------------------------------------------------------------------


@relation(
    "padding",
    "relative error of a padded row",
    layouts=LAYOUTS,
    limit=ROUNDING,
    entries=(FORWARD,),
    setups=(
        Setup(batch=5, num_heads=4),
        Setup(batch=5, num_heads=1, scale=4.0),
        Setup(70, batch=5, num_heads=4),
        Setup(LONGEST, batch=3, num_heads=2),
    ),
    says="",
    declared_in="padding_layouts",
)
def padded(call: Call) -> Variants:
    """Rows with padding (also of the source), in a batch and by themselves, give the output without padding."""
    finding = f"padded keys or positions change the output (padding {call.setup.padding})"
    for row, alone in rows_alone(call.inputs):
        part, real = slice(row, row + 1), call.inputs.real[row]
        together = lambda x, part=part, real=real: x[part, real]  # noqa: E731
        yield Variant(
            f"of row {row}", call.but(inputs=alone), together, names="outputs".__eq__, explain=lambda: finding
        )
        if call.setup.length not in call.subject.long and call.entry is FORWARD:
            single = call.but(inputs=call.inputs.rows(part))
            yield Variant(
                f"of row {row} as a batch of one", single, lambda x, part=part: x[part], explain=lambda: finding
            )
    if call.setup.padding == "row" and call.setup.length == 17:
        yield from _of_empty_rows(call)


def _of_empty_rows(call: Call) -> Variants:
    """Count NaN and inf values of a training step with rows of padding alone."""
    advice = "mask weights with torch.finfo(dtype).min instead of -inf, or clamp the sum by which they are divided"
    for name, x in call.but(sees_padding=True).run(TRAINING).items():
        if name != "outputs" or call.inputs.key is not None:  # targets without a source token: undefined, but finite
            what = "outputs" if name == "outputs" else f"the {name}"
            finding = f"a sequence of padding alone makes {what} NaN or inf: {advice}"
            yield 0.0 if x.isfinite().all() else torch.inf, f"{name}, rows of padding alone", None, finding


@relation(
    "padding",
    "relative error of a padded row in training",
    layouts=LAYOUTS,
    limit=ROUNDING,
    entries=(TRAINING,),
    setups=(Setup(33, batch=3), Setup(LONGEST, batch=3)),
    declared_in="padding_layouts",
)
def padded_in_training(call: Call) -> Variants:
    """In training mode, padded rows give the same output as without padding, whatever the content of the padding."""
    filled = call.inputs.filled(lambda x: 30.0 * random_direction(x))
    yield Variant("with other values in the padding", call.but(inputs=filled))
    if not _is_random(call):
        yield from padded(call)


@relation(
    "padding",
    "gradient with respect to padding",
    layouts=LAYOUTS,
    entries=(TRAINING,),
    setups=(Setup(33, batch=5, has_dropout=True),),
    declared_in="padding_layouts",
    compares=False,
)
def padding_gradient(call: Call) -> Variants:
    """No real output has a gradient with respect to padded inputs."""
    values = call.but(sees_padding=True, cotangent=lambda x: random_direction(x) * call.inputs.real.unsqueeze(-1)).run()
    for name, _, mask in masked_inputs(call.inputs):
        gradient = values.get(f"gradient of {name}")
        yield 0.0 if gradient is None else gradient[mask].abs().max(), name


POISON = {"right": torch.nan, "left": torch.inf, "inside": torch.nan, "row": 1e10}
FINITE_POISON = 1e4
"""Value of the padding for modules of other packages, many of which multiply padding by zero."""


@relation(
    "padding",
    "relative change of outputs or gradients",
    layouts=LAYOUTS,
    limit=LEAK,
    entries=(GRADIENT, TRAINING, STEPS, PROMPT),
    setups=(Setup(33, batch=5),),
    declared_in="padding_layouts",
)
def padding_poison(call: Call) -> Variants:
    """Extreme values in the padding (NaN, inf, 1e10; 1e4 in foreign modules) change no real output or gradient."""
    if call.entry in (STEPS, PROMPT) and not call.subject.decodes_padding(call.setup.padding):
        return
    poison = FINITE_POISON if call.subject.is_foreign else POISON[call.setup.padding]
    filled = call.inputs.filled(lambda x: torch.full_like(x, poison))
    yield Variant(f"with padding of {poison:g}", call.but(inputs=filled))


@relation(
    "padding",
    "relative change caused by an all-False mask",
    limit=ROUNDING,
    entries=(FORWARD, GRADIENT, STEPS, PROMPT),
    setups=(Setup(1), Setup(), Setup(33)),
    applies=lambda s: bool(s.padding_layouts),
)
def padding_of_nothing(call: Call) -> Variants:
    """No output changes when an all-False mask is passed."""
    if call.entry in (STEPS, PROMPT) and not call.subject.decodes_padding("right"):
        return
    masks = {f"{name}_padding": mask for name, _, mask in masked_inputs(call.inputs) if name != "value"}
    yield Variant("with masks of nothing", call.but(inputs=replace(call.inputs, **masks)))
