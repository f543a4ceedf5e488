"""Measure what hand-written gradients gain over autograd, and write results/efficiency/kernel_gains.csv.

Each kernel runs in three forms: with its hand-written gradient, with plain autograd of the same forward pass, and with
autograd of checkpointed blocks. All run forward and backward in float32 on one thread of a CPU, with 8 heads of width
64, and 16 features, slots or landmarks unless the name says otherwise. The gradients of all forms are compared first.

Times are processor seconds. The three forms take turns, and a ratio is the median of the ratios within one turn, so
that other programs on the machine disturb it little. Bytes are exact peaks of what tensors hold.

    python -m tools.benchmarks.kernel_gains [--lengths N ...] [--rounds R] [--table FILE] [KERNEL ...]

measures the named kernels (default: all) and replaces their rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import pandas as pd
import torch

from cab.verification.growth import peak_bytes
from tools.benchmarks import sum_kernels, window_kernels
from tools.benchmarks.sum_kernels import Call

TABLE = Path(__file__).parents[2] / "results" / "efficiency" / "kernel_gains.csv"
KERNELS = window_kernels.KERNELS | sum_kernels.KERNELS
FORMS = ("hand_written", "plain", "checkpointed")


def seconds(call: Call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, length: int, rounds: int) -> dict[str, object]:
    torch.manual_seed(0)
    forms = KERNELS[name](length)
    for gradients in zip(*(form() for form in forms), strict=True):
        for other in gradients[1:]:
            assert (gradients[0] - other).norm() <= 1e-3 * other.norm(), f"{name}: the gradients differ"
    times = [[seconds(form) for form in forms] for _ in range(rounds)]
    held = [peak_bytes(form) for form in forms]
    row: dict[str, object] = {"kernel": name, "length": length}
    row |= {
        f"seconds_{form}": f"{statistics.median(x):.4f}"
        for form, x in zip(FORMS, zip(*times, strict=True), strict=True)
    }
    row |= {f"bytes_{form}": x for form, x in zip(FORMS, held, strict=True)}
    for number, other in enumerate(FORMS[1:], start=1):
        row[f"time_vs_{other}"] = f"{statistics.median(x[0] / x[number] for x in times):.2f}"
        row[f"memory_vs_{other}"] = f"{held[0] / held[number]:.2f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="first words of names (default: all kernels)")
    parser.add_argument("--lengths", nargs="+", type=int, default=[4096, 8192])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    known = {name.split()[0] for name in KERNELS}
    if unknown := [name for name in args.kernels if name not in known]:
        parser.error(f"unknown kernel {unknown[0]!r} (known: {', '.join(sorted(known))})")
    torch.set_num_threads(1)
    for name in (name for name in KERNELS if not args.kernels or name.split()[0] in args.kernels):
        rows = pd.DataFrame([measure(name, length, args.rounds) for length in args.lengths])
        print(rows.to_string(index=False), flush=True)
        if args.table.exists():
            before = pd.read_csv(args.table, dtype=str)
            rows = pd.concat([before[(before["kernel"] != name) & before["kernel"].isin(list(KERNELS))], rows])
        rows.to_csv(args.table, index=False)


if __name__ == "__main__":
    main()
