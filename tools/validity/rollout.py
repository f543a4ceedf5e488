"""Rollout ledger: how much decoding, batching and packing change the outputs of each attention in pattern CS.

One sequence of random tokens is read in one call (the row), token by token, in chunks of odd sizes, as one row of a
batch of eight, and packed between two other sequences. The unit of every distance is the error of rounding the exact
output once, the output of the same weights in float64.

    python -m tools.validity.rollout --out results/rollout/cpu.csv [NAME...]

A NAME is one of `cab verify`, such as hf:mamba2. Models of transformers compute parts in float32, so their exact
outputs are those in float32, and they have rows of bfloat16 alone. Rows that the file already has are kept;
``results/rollout/README.md`` explains the columns.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification.compare import distance
from cab.verification.entries import cumulative, decode
from cab.verification.foreign import subject_class
from cab.verification.foreign.hugging_face import HuggingFaceModel
from cab.verification.inputs import Inputs, Module, seed_torch
from cab.verification.suite import runs_in_float32, subject_of
from tools.gpu.supervisor import Row, text_of, write_table

WIDTH, HEADS, WORDS = 64, 4, 32
"""Sizes of the attention, and number of classes of the random linear map whose softmax outputs are compared."""

SHARPNESS = 3.0
"""Standard deviation of the logits."""

SIZES = (1, 3, 37, 129, 257, 61)
"""Numbers of tokens in the chunks, in turn."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@torch.no_grad()
def ledger(name: str, dtype: str, *, seed: int, length: int, device: str) -> Row:
    """Return the row of one attention: distances of each path from the outputs of one call, and their growth."""
    subject = subject_of(subject_class(name) if ":" in name else name, Pattern.CS, options={}, device=device)
    module: Module = subject.build(embed_dim=WIDTH, num_heads=HEADS, seed=seed).to(DTYPES[dtype])
    x, *others = subject.draw(module, length, batch=10, seed=seed).query.to(DTYPES[dtype]).split(1)
    row = _seeded(lambda: module(x), device)
    wide = torch.float32 if isinstance(module, HuggingFaceModel) else torch.float64
    exact = _seeded(lambda: copy.deepcopy(module).to(wide)(x.to(wide)), device)
    unit = distance(exact.to(x.dtype), exact) or math.nan
    paths: dict[str, Callable[[], Tensor]] = {
        "steps": lambda: decode(module, Inputs(x), [1] * length),
        "chunks": lambda: decode(module, Inputs(x), chunks_of(length)),
        "batch": lambda: module(torch.cat([*others[:3], x, *others[3:7]]))[3:4],
        "packed": lambda: _packed(module, [others[7][0, :201], x[0], others[8][0, :333]]),
    }
    if not hasattr(module, "forward_packed"):
        del paths["packed"]
    outputs = {path: _seeded(run, device) for path, run in paths.items()}
    steps = outputs["steps"]
    early, late = slice(length // 8, length // 4), slice(length - length // 4, length)
    start, end = (distance(steps[:, part], row[:, part]) for part in (early, late))
    divergence = _divergence(x, row, steps)
    return {
        "attention": name,
        "dtype": dtype,
        "seed": seed,
        "length": length,
        "unit": unit,
        "row_error": distance(row, exact) / unit,
        "steps_error": distance(steps, exact) / unit,
        **{path: distance(output, row) / unit for path, output in outputs.items()},
        **{f"{path}_equal": float((output == row).double().mean()) for path, output in outputs.items()},
        "growth": end / start if start else None,
        "kl": float(divergence.mean()),
        "kl_max": float(divergence.max()),
    }


def _seeded(path: Callable[[], Tensor], device: str) -> Tensor:
    """Return the outputs of a path; one that draws random numbers draws the same in each path."""
    seed_torch(0, device)
    return path()


def chunks_of(length: int) -> list[int]:
    """Return the numbers of tokens in the chunks of a sequence."""
    sizes, repeated = list[int](), cycle(SIZES)
    while rest := length - sum(sizes):
        sizes.append(min(next(repeated), rest))
    return sizes


def _packed(module: Module, sequences: Sequence[Tensor]) -> Tensor:
    """Return the outputs of the second of some sequences [N, D], packed in one tensor."""
    lengths = [len(x) for x in sequences]
    output = module.forward_packed(torch.cat([*sequences]), query_cu_seqlens=cumulative(lengths, sequences[0]))
    return output.split(lengths)[1][None]


def _divergence(x: Tensor, row: Tensor, steps: Tensor) -> Tensor:
    """Return KL(row || steps) per token, of the softmax of a random linear map of LayerNorm(x + output)."""
    weights = torch.randn(WIDTH, WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / WIDTH**0.5
    p, q = (
        (SHARPNESS * F.layer_norm((x + y).double(), (WIDTH,)) @ weights.to(x.device)).log_softmax(-1)
        for y in (row, steps)
    )
    return (p.exp() * (p - q)).sum(-1)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the rows that the file lacks, and write each as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="CSV", help="table, one per device")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--length", type=int, default=2048, metavar="N", help="number of tokens (default: 2048)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = list[Row](read_csv(args.out) if args.out.exists() else [])
    entries = [entry for entry in ATTENTIONS.load() if entry.name != "none" and Pattern.CS in entry.patterns]
    names = args.names or [entry.name for entry in entries if runs_in_float32(entry.cls, args.device)]
    done = {tuple(str(row[name]) for name in ("attention", "dtype", "seed", "length")) for row in rows}
    for seed in args.seeds:
        for name in names:
            for dtype in list(DTYPES)[name.startswith("hf:") :]:
                if (name, dtype, str(seed), str(args.length)) not in done:
                    found = ledger(name, dtype, seed=seed, length=args.length, device=args.device)
                    rows.append({column: text_of(value) for column, value in found.items()})
                    write_table(args.out, rows)
                    print(*rows[-1].values(), flush=True)


if __name__ == "__main__":
    main()
