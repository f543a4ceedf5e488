"""Roofline model: the machine's peak rates and the share of them that a method reaches (Williams et al. 2009).

A call with F operations that reads and writes at least B bytes takes at least the larger of F / (rate of matrix
products) and B / bandwidth. The rate is that of one large matrix product, the bandwidth that of a copy larger than the
caches, in the same precision and with the same number of threads. Both are timed in every round, so that other load
slows them down equally. A method far below its roofline uses operators slower than matrix products or moves more data
than needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cab.efficiency.cost import Cost
from cab.efficiency.setting import Setting
from cab.efficiency.timing import seconds
from cab.runner.failures import is_out_of_memory

PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**30}
CALLS = {"cpu": 1, "cuda": 5}


class Machine:
    """The machine's matrix product and copy, timed in rounds."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.products: list[float] = []
        self.copies: list[float] = []

    def sample(self) -> None:
        """Time one round of both, with random numbers (GPUs multiply equal numbers faster), and release the memory.

        A round without enough memory is left out.
        """
        try:
            self._time()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise

    def _time(self) -> None:
        device, kind = self.setting.device, self.setting.torch_dtype
        size, calls = PRODUCT_SIZE[device], CALLS[device]
        left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
        source = torch.ones(COPIED_BYTES[device] // kind.itemsize, device=device, dtype=kind)
        product, target = torch.zeros_like(left), torch.zeros_like(source)
        self.products.append(seconds(lambda: torch.mm(left, right, out=product), calls, device) / calls)
        self.copies.append(seconds(lambda: target.copy_(source), calls, device) / calls)

    def rates(self) -> dict[str, float]:
        """Return FLOP/s of the product and bytes/s read and written by the copy, medians over rounds.

        Empty if no round had enough memory.
        """
        if not self.copies:
            return {}
        size, device = PRODUCT_SIZE[self.setting.device], self.setting.device
        return {
            "matmul_rate": 2 * size**3 / float(np.median(self.products)),
            "bandwidth": 2 * COPIED_BYTES[device] / float(np.median(self.copies)),
        }


def under_roof(cost: Cost, rates: dict[str, float]) -> dict[str, Any]:
    """Return the rates and, if operations were counted, the limiting resource and the share of it."""
    if not rates or cost.flops is None or cost.least_bytes is None or not cost.seconds:
        return dict(rates)
    least = {"compute": cost.flops / rates["matmul_rate"], "memory": cost.least_bytes / rates["bandwidth"]}
    nearer = max(least, key=least.__getitem__)
    return rates | {"roof": nearer, "roof_share": least[nearer] / cost.seconds}
