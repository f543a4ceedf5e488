"""Relations of lengths and scales: any length, with padding on either side, any earlier length, and finite values."""

from __future__ import annotations

import torch
from torch import Tensor

from cab.verification.check import Measurements
from cab.verification.compare import ROUNDING
from cab.verification.entries import FORWARD, LONGEST, METHODS, TRAINING, Call, Setup
from cab.verification.inputs import Inputs
from cab.verification.relation import Variant, Variants, plain_values, relation

ANY = (2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 192, 257)
ANY_QUICK = (2, 5, 16, 17, 33, 64, 65, 100, 128, 129, 257)
BEYOND = (385, 700, 1025, 2049, 3001)
PAIRS = ((1, 1), (1, 17), (17, 1), (1, 130), (130, 1), (5, 64), (64, 5), (33, 33), (129, 65))
TURNS = ((130, 3), (17, 3), (257, 2), (1, 4), (33, 3))
"""Lengths and batch sizes of consecutive calls of one module."""


def _sized(number: int, length: int, source_length: int) -> Setup:
    """Return setups of varying width and rows."""
    embed_dim, num_heads = ((32, 4), (24, 3), (8, 1))[number % 3 if length <= max(ANY) else 2]
    return Setup(length, 1 + number % 2, embed_dim=embed_dim, num_heads=num_heads, source_length=source_length)


def finite(call: Call, what: str = "") -> Measurements:
    """Count the NaN and inf values of a call."""
    for name, x in call.but(cotangent=torch.ones_like).run().items():
        finding = f"{call.entry.name} {what} have NaN or inf values in {name}".replace("  ", " ")
        yield int((~x.isfinite()).sum()), f"{name} {what}".rstrip(), None, finding


@relation(
    "lengths",
    "NaN or inf values and gradients",
    entries=(TRAINING,),
    setups=(_sized(0, 1, 1), _sized(0, 1, 2)),
    compares=False,
)
def length_one(call: Call) -> Variants:
    """One target token, also with one source token, gives finite outputs and gradients."""
    yield from finite(call)


@relation(
    "lengths",
    "NaN or inf values and gradients",
    entries=(TRAINING,),
    setups=(
        *(_sized(number, n, n)._replace(is_full=n not in ANY_QUICK) for number, n in enumerate(ANY)),
        *(_sized(number, n, m)._replace(is_full=number % 2 == 1) for number, (n, m) in enumerate(PAIRS)),
        *(_sized(2, n, n)._replace(is_full=True) for n in BEYOND),
        Setup(LONGEST, batch=1),
    ),
    compares=False,
)
def any_length(call: Call) -> Variants:
    """Every length gives finite outputs and gradients in the shape of the input, for any window or block size."""
    if call.subject.pattern.is_cross or call.setup.source_length in (None, call.setup.length):
        yield from finite(call)


@relation(
    "lengths",
    "relative error between a length in a batch and alone",
    limit=ROUNDING,
    entries=(FORWARD,),
    setups=[
        Setup(n, 1, 1.0, "", heads, width, n, is_full=n > 66) for n in (66, 130) for heads, width in ((1, 8), (3, 18))
    ],
    applies=lambda s: bool(s.padding_layouts),
    declared_in="padding_layouts",
)
def every_length(call: Call) -> Variants:
    """Rows of all lengths to 66 (in full: 130) in one batch, padded on either side, give what each gives alone."""
    sizes = {name: x.shape[1] for name, x in call.inputs.tensors().items()}
    numbers = torch.arange(sizes["query"], device=call.subject.device) + 1
    counts = {name: numbers if name == "query" else 1 + 37 * numbers % n for name, n in sizes.items()}
    masks = {name: torch.arange(n, device=numbers.device) >= counts[name][:, None] for name, n in sizes.items()}
    outputs = {}
    for side in (side for side in ("right", "left") if side in call.subject.padding_layouts):
        before = {name: (n - counts[name]) * (side == "left") for name, n in sizes.items()}
        rows = {
            name: _rolled(x.expand(len(numbers), -1, -1), before[name]) for name, x in call.inputs.tensors().items()
        }
        hidden = {f"{name}_padding": _rolled(mask, before[name]) for name, mask in masks.items() if name != "value"}
        output = _rolled(call.but(inputs=Inputs(**rows, **hidden)).run()["outputs"], -before["query"])
        outputs[side] = {"outputs": output.masked_fill(masks["query"][..., None], 0.0)}
    if len(outputs) == 2:
        yield Variant("padded left instead of right", call, values=outputs["left"], base=outputs["right"])
    side, together = next(iter(outputs.items()))
    # The other lengths are compared between both sides only.
    step = (1 if call.subject.long else 2) if call.setup.num_heads == 1 else 5 if call.subject.long else 13
    for number in numbers.tolist()[::step]:
        cut = {name: x[:, : counts[name][number - 1]] for name, x in call.inputs.tensors().items()}
        alone = call.but(inputs=Inputs(**cut)).run()
        one = {"outputs": together["outputs"][number - 1 : number, :number]}
        source = f" and source length {counts['key'][number - 1]}" if "key" in counts else ""
        yield Variant(f"of length {number}{source} padded {side}", call, values=one, base=alone)


def _rolled(x: Tensor, places: Tensor) -> Tensor:
    """Return ``x`` [B, N, ...] with row i rolled by ``places[i]`` along N."""
    index = (torch.arange(x.shape[1], device=x.device) - places[:, None]) % x.shape[1]
    return x[torch.arange(len(x), device=x.device)[:, None], index]


@relation("lengths", "relative error compared with a new module", entries=(FORWARD, TRAINING), compares=False)
def lengths_in_turn(call: Call) -> Variants:
    """No output depends on the lengths of earlier calls."""
    for turn, (length, batch) in enumerate(TURNS):
        setup = Setup(length, batch, padding="left" if turn % 2 else "")
        plain = Call.of(call.subject, setup, call.entry)
        earlier = ", ".join(str(n) for n, _ in TURNS[:turn]) or "no call"
        base = plain_values(plain, call.entry)
        yield Variant(f"of n={length} after {earlier}", plain.but(module=call.module), base=base)


@relation("numerics", "NaN or inf values", entries=METHODS, setups=(9,), compares=False)
def zero_tokens(call: Call) -> Variants:
    """As initialized by the constructor, zero biases included, a module gives finite values for tokens of zeros."""
    zeros = call.inputs.map(torch.zeros_like)
    yield from finite(call.but(inputs=zeros, module=call.new_module(keeps_zeros=True)), "for tokens of zeros")


@relation(
    "numerics",
    "NaN or inf values in outputs and gradients",
    entries=(TRAINING,),
    setups=(
        *(Setup(n, scale=scale) for scale, n in ((0.0, 17), (1.0, 33), (10.0, 1), (10.0, 33), (10.0, 257))),
        Setup(LONGEST, scale=10.0),
    ),
    compares=False,
)
def finite_gradients(call: Call) -> Variants:
    """For inputs of scale 0, 1 and 10, and for identical tokens, outputs and gradients are finite."""
    equal = call.but(inputs=call.inputs.map(lambda x: x[:, :1].expand_as(x)))
    for how, changed in (("", call), ("for equal tokens", equal)):
        yield from finite(changed.but(cotangent=None), how)
