"""What gradients by hand buy over autograd of the same forward pass, written to results/efficiency/kernel_gains.csv.

Forward and backward in float32 on one thread of a CPU, 8 heads of width 64, and 16 features, slots or landmarks where
the name says nothing else; both forms in turn, the least processor time of three, which other programs disturb least,
and exact peaks of the memory. Gradients of both forms are compared first. A kernel whose gain depends on what its
reader keeps is measured in the whole attention, which its name tells.
``python scripts/kernel_gains.py [KERNEL...]`` measures these anew, or all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plain_sums
import plain_windows
import torch
from torch import Tensor

from cab.verification.memory import peak_bytes

TABLE = Path(__file__).parents[1] / "results" / "efficiency" / "kernel_gains.csv"
LENGTHS, ROUNDS = (512, 4096), 3
KERNELS = {**plain_windows.KERNELS, **plain_sums.KERNELS}

Call = Callable[[], tuple[Tensor, ...]]


def seconds(call: Call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, length: int) -> dict[str, object]:
    torch.manual_seed(0)
    forms = KERNELS[name](length)
    for by_hand, plain in zip(*(form() for form in forms), strict=True):
        assert (by_hand - plain).norm() <= 1e-3 * plain.norm(), f"{name}: the gradients differ"
    times = [[seconds(form) for form in forms] for _ in range(ROUNDS)]
    hand, plainly = (min(column) for column in zip(*times, strict=True))
    held, kept = (peak_bytes(form) for form in forms)
    row = {"kernel": name, "length": length, "seconds by hand": f"{hand:.4f}", "seconds plain": f"{plainly:.4f}"}
    return {**row, "bytes by hand": held, "bytes plain": kept}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in (name for name in KERNELS if not names or name.split()[0] in names):
        rows = pd.DataFrame([measure(name, length) for length in LENGTHS])
        print(rows.to_string(index=False), flush=True)
        if TABLE.exists():
            before = pd.read_csv(TABLE, dtype=str)
            rows = pd.concat([before[before["kernel"] != name], rows])
        rows.to_csv(TABLE, index=False)


if __name__ == "__main__":
    main(sys.argv[1:])
