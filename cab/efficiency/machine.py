"""The machine: the time of calls, and the rates of the roofline model.

Roofline model (Williams et al. 2009): a call with F operations that reads and writes at least B bytes takes at least
the larger of F / (rate of matrix products) and B / bandwidth. The rate is that of one large matrix product, the
bandwidth that of a copy larger than the caches, in the same precision and with the same number of threads. Both are
timed in every round, so that other load slows them down equally. A method far below its roofline uses operators slower
than matrix products or moves more data than needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event

from cab.efficiency.cost import Cost
from cab.efficiency.setting import Setting
from cab.errors import is_out_of_memory

# --- time -------------------------------------------------------------------------------------------------------------


def seconds(call: Callable[[], object], calls: int, device: str) -> float:
    """Return the total time of ``calls`` consecutive calls in seconds: wall clock, or device time on CUDA."""
    if device == "cuda":
        return cuda_seconds(call, calls)
    begin = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - begin


def cuda_seconds(call: Callable[[], object], calls: int) -> float:
    """Return the device time between two events around each call, summed, in seconds.

    The L2 cache is overwritten before each call, outside the measured interval. This also keeps the device busy while
    the call is prepared, so that launch overhead does not dominate short kernels.
    """
    events = [[Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    torch.cuda.synchronize()
    for start, end in events:
        second_level_cache().zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sum(start.elapsed_time(end) for start, end in events) / 1e3


def launch_seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return the wall clock of one call on an idle GPU: until all kernels are queued, and until they have ended."""
    torch.cuda.synchronize()
    begin = perf_counter()
    call()
    queued = perf_counter()
    torch.cuda.synchronize()
    return queued - begin, perf_counter() - begin


@functools.cache
def second_level_cache() -> Tensor:
    """Return a buffer twice as large as the L2 cache; writing it evicts the cache."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.int8, device="cuda")


# --- roofline ---------------------------------------------------------------------------------------------------------

PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}  # rows and columns of a matrix
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**30}
CALLS = {"cpu": 1, "cuda": 5}
POSSIBLE = 0.9
"""Part of the roofline's least time that every call needs, as rates depend on sizes and clocks."""


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

    def rates(self, statistic: Callable[[list[float]], Any] = np.median) -> dict[str, float]:
        """Return FLOP/s of the product and bytes/s of the copy, by default medians over rounds; empty without any."""
        if not self.copies:
            return {}
        operations, moved = 2 * PRODUCT_SIZE[self.setting.device] ** 3, 2 * COPIED_BYTES[self.setting.device]
        product, copy = float(statistic(self.products)), float(statistic(self.copies))
        return {"matmul_rate": operations / product, "bandwidth": moved / copy}

    def least_seconds(self, flops: float, moved: float) -> tuple[str, float]:
        """Return the limiting resource on CUDA, and the least seconds: those of the fastest round, times `POSSIBLE`.

        Bytes that fit into the L2 cache are not counted.
        """
        rates = self.rates(min)
        if not rates:
            return "", 0.0
        roof, least = _limit(flops, max(0.0, moved - second_level_cache().numel() / 2), rates)
        return roof, least * POSSIBLE


def under_roof(cost: Cost, rates: dict[str, float]) -> dict[str, Any]:
    """Return the rates and, if operations were counted, the limiting resource and the share of it."""
    if not rates or cost.flops is None or cost.least_bytes is None or not cost.seconds:
        return dict(rates)
    roof, least = _limit(cost.flops, cost.least_bytes, rates)
    return rates | {"roof": roof, "roof_share": least / cost.seconds}


def _limit(flops: float, moved: float, rates: dict[str, float]) -> tuple[str, float]:
    """Return the limiting resource, and the least seconds."""
    least = {"compute": flops / rates["matmul_rate"], "memory": moved / rates["bandwidth"]}
    roof = max(least, key=least.__getitem__)
    return roof, least[roof]
