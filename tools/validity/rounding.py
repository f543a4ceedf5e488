"""Rounding of the decoding state after each token: error of the outputs, and scores of a trained network.

The formats are bfloat16, and fp8 (e4m3) and int8 with a scale: the largest magnitude per sequence and index of the
second dimension of a state tensor, which is the head in most methods, or per sequence for tensors [B, N].

    python -m tools.validity.rounding --out DIR               # outputs of untrained attentions, states of constant size
    python -m tools.validity.rounding --out DIR RECORD.json   # scores of a trained network in pattern CS
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import Tensor

from cab.analysis.subject import AnalyzedNetwork, subject_of as network_of
from cab.attention import Attention
from cab.padding import union
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.runner.evaluation import DeviceBatches
from cab.verification.suite import subject_of

UNROUNDED = "float32"
BITS = {"bfloat16": 16, "fp8": 8, "int8": 8}
"""Bits per number of each format."""

LARGEST = {"fp8": 448.0, "int8": 127.0}
POSITIONS = (64, 512, 2048, 8192)
"""Numbers of tokens read at which errors are measured."""

WINDOW = 16
"""Number of tokens, up to the position, over which an error is measured."""

LIMIT = 0.05
"""Largest relative error of a sufficient format."""


def rounded(x: Tensor, number_format: str) -> Tensor:
    """Return ``x`` rounded to a format, in its own dtype; integers and values that are not finite stay unchanged."""
    if number_format == UNROUNDED or not x.is_floating_point() or not x.numel():
        return x
    if number_format == "bfloat16":
        return x.to(torch.bfloat16).to(x.dtype)
    finite = x.isfinite()
    magnitude = x.abs().where(finite, 0.0)
    scale = magnitude.amax(tuple(range(min(2, x.dim() - 1), x.dim())), keepdim=True) / LARGEST[number_format]
    scaled = x / scale.clamp_min(torch.finfo(x.dtype).tiny)
    values = scaled.round() if number_format == "int8" else scaled.to(torch.float8_e4m3fn).to(x.dtype)
    return (values * scale).where(finite, x)


def untrained(name: str) -> Attention:
    """Return an attention of width 64 with 4 heads in pattern CS; parameters that are initialized to 0 are random."""
    module: Attention = subject_of(name, Pattern.CS, options={}).build(embed_dim=64, num_heads=4)
    return module


@torch.no_grad()
def rounding_errors(attention: Attention, *, rows: int, steps: int) -> dict[str, dict[int, float]]:
    """Return the relative error of the outputs for standard normal tokens (root mean square) by format and position.

    The decoding state has a constant size.
    """
    formats = (UNROUNDED, *BITS)
    positions = [position for position in POSITIONS if position <= steps]
    tokens = torch.randn(rows, positions[-1], attention.embed_dim, generator=torch.Generator().manual_seed(0))
    outputs = torch.stack([*_steps(attention, tokens.repeat(len(formats), 1, 1), formats)], 1).double()
    errors: dict[str, dict[int, float]] = {name: {} for name in BITS}
    for position in positions:
        exact, *others = outputs[:, position - WINDOW : position].chunk(len(formats))
        for name, output in zip(BITS, others, strict=True):
            errors[name][position] = float((output - exact).norm() / exact.norm())
    return errors


def _steps(
    attention: Attention, tokens: Tensor, formats: Sequence[str], mask: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the output of each token; then the state of each of equal parts of the batch is rounded to its format."""
    state = attention.init_state(len(tokens))
    for t in range(tokens.shape[1]):
        padding = None if mask is None else mask[:, t]
        output, state = attention.step(tokens[:, t], state, query_padding_mask=padding)
        parts = {name: zip(x.chunk(len(formats)), formats, strict=True) for name, x in state.items()}
        state = {name: torch.cat([rounded(rows, form) for rows, form in pairs]) for name, pairs in parts.items()}
        yield output


def bits_needed(errors: dict[str, dict[int, float]]) -> int:
    """Return the bits of the smallest format whose errors are at most ``LIMIT`` at all positions, otherwise 32."""
    return min((BITS[name] for name, by_position in errors.items() if max(by_position.values()) <= LIMIT), default=32)


def rounded_scores(subject: AnalyzedNetwork) -> dict[str, dict[str, float]]:
    """Return the scores of a network of pattern CS by format, when its attentions decode token by token."""
    batches: Any = DeviceBatches(torch.device("cpu"))
    scores = {}
    for number_format in (UNROUNDED, *BITS):
        with torch.no_grad(), contextlib.ExitStack() as replaced:
            for _, layer in subject.attention_layers():
                decode = partial(_decode, layer, number_format)
                replaced.enter_context(mock.patch.object(layer, "forward", decode))
            scores[number_format] = subject.cell.task.evaluate(subject.network.eval(), batches)
    return scores


def _decode(
    attention: Attention,
    number_format: str,
    query: Tensor,
    *,
    query_padding_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    mask = union(query_padding_mask, key_padding_mask)
    return torch.stack([*_steps(attention, query, [number_format], mask)], 1)


def main() -> None:
    """Print the table, and write it to ``rounding.csv``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", metavar="RECORD.json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for network in (network_of([record]) for record in args.records):
        name = network.cell.config.attention.name
        rows += [{"attention": name, "format": form, **own} for form, own in rounded_scores(network).items()]
    causal = [entry for entry in ATTENTIONS.load() if entry.name != "none" and Pattern.CS in entry.patterns]
    constant = [entry.name for entry in causal if getattr(entry.cls, "has_constant_size_state", False)]
    for name in () if args.records else constant:
        errors = rounding_errors(untrained(name), rows=1, steps=POSITIONS[-1])
        for form, by_position in errors.items():
            columns = {f"error_{position}": error for position, error in by_position.items()}
            rows.append({"attention": name, "format": form, **columns, "state_bits": bits_needed(errors)})
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.3g}".format))
    args.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out / "rounding.csv", index=False)


if __name__ == "__main__":
    main()
