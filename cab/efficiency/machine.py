"""The machine: the time of calls, the rates of the roofline model, and the state of the GPU.

Roofline model (Williams et al. 2009): a call with F operations that reads and writes at least B bytes takes at least
the larger of F / (rate of matrix products) and B / bandwidth. The rate is that of one large matrix product, the
bandwidth that of a copy larger than the caches, in the same precision and with the same number of threads. Both are
timed in every round, so that other load slows them down equally. A method far below its roofline uses operators slower
than matrix products or moves more data than needed.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event

from cab.efficiency.cost import Cost
from cab.efficiency.setting import Setting
from cab.errors import UserError, is_out_of_memory

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


@functools.cache
def second_level_cache() -> Tensor:
    """Return a buffer twice as large as the L2 cache; writing it evicts the cache."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.int8, device="cuda")


# --- roofline ---------------------------------------------------------------------------------------------------------

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
        """Return FLOP/s of the product and bytes/s of the copy, medians over rounds; empty without any round."""
        if not self.copies:
            return {}
        operations, moved = 2 * PRODUCT_SIZE[self.setting.device] ** 3, 2 * COPIED_BYTES[self.setting.device]
        product, copy = float(np.median(self.products)), float(np.median(self.copies))
        return {"matmul_rate": operations / product, "bandwidth": moved / copy}


def under_roof(cost: Cost, rates: dict[str, float]) -> dict[str, Any]:
    """Return the rates and, if operations were counted, the limiting resource and the share of it."""
    if not rates or cost.flops is None or cost.least_bytes is None or not cost.seconds:
        return dict(rates)
    least = {"compute": cost.flops / rates["matmul_rate"], "memory": cost.least_bytes / rates["bandwidth"]}
    roof = max(least, key=least.__getitem__)
    return rates | {"roof": roof, "roof_share": least[roof] / cost.seconds}


# --- state of the GPU, from nvidia-smi --------------------------------------------------------------------------------

REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Bits of the driver's throttling reasons that invalidate a measurement."""


def query(argument: str) -> list[list[str]]:
    """Return the rows that nvidia-smi prints for the first GPU available to torch, without initializing CUDA.

    Empty if the program is missing or does not support the query.
    """
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    command = ["nvidia-smi", argument, "-i", gpu, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in process.stdout.splitlines() if line.strip()]


def clock_facts() -> dict[str, Any]:
    """Return the columns of a cost that describe the GPU state; empty if the driver does not report it."""
    rows = query("--query-gpu=clocks.sm,clocks.max.sm,temperature.gpu,clocks_event_reasons.active")
    if not rows:
        return {}
    clock, clock_most, temperature, bits = (0 if "N/A" in cell else int(cell, 0) for cell in rows[0])
    throttled = ", ".join(reason for bit, reason in REASONS.items() if bits & bit)
    return {"clock": clock, "clock_most": clock_most, "temperature": temperature, "throttled": throttled}


def refuse_when_shared() -> None:
    """Raise UserError if other processes, which it names, use the GPU; called before this process uses it.

    Process IDs are not compared, because in a container they differ from those of the driver.
    """
    rows = query("--query-compute-apps=pid,process_name,used_memory")
    if rows:
        processes = ", ".join(f"{name} ({pid}, {memory} MiB)" for pid, name, memory in rows)
        raise UserError(
            f"other processes use the GPU, which invalidates timings: {processes}; wait until they finish, choose "
            "another GPU with CUDA_VISIBLE_DEVICES, or pass --shared-gpu"
        )
