"""The state of the GPU, as its driver reports it: clocks, throttling, power and other processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import torch

from cab.errors import UserError
from cab.runner.provenance import visible_gpus

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
    gpu = next(iter(visible_gpus()), "0")
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


POWER_SECONDS = 0.3
"""Time between the first and the last reading of the energy counter, which changes about every 100 ms."""


def energy_counter() -> Callable[[], float] | None:
    """Return a function of the joules that the GPU has used; None without nvidia-ml-py or support of the driver."""
    if find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def power_and_energy(call: Callable[[], object], calls: int) -> tuple[float, float] | None:
    """Return the watts of the GPU in repeated calls, and the joules per call; None if the driver reports neither.

    The counter is read after each ``calls`` calls, and only readings at which it changes are used. Without a counter,
    nvidia-smi reports the power while calls are queued.
    """
    counter = energy_counter()
    changes: list[tuple[float, float, int]] = []
    before, begin, done = counter() if counter else 0.0, perf_counter(), 0
    while perf_counter() - begin < 4 * POWER_SECONDS:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        now, done = perf_counter(), done + calls
        if counter is None or (used := counter()) != before:
            before = 0.0 if counter is None else used
            changes.append((before, now, done))
        if changes and now - changes[0][1] >= POWER_SECONDS:
            break
    if len(changes) < 2:
        return None
    (first, start, skipped), (last, end, done) = changes[0], changes[-1]
    if counter is not None:
        return (last - first) / (end - start), (last - first) / (done - skipped)
    for _ in range(calls):
        call()
    rows = query("--query-gpu=power.draw")
    torch.cuda.synchronize()
    watts = float(rows[0][0]) if rows and "N/A" not in rows[0][0] else None
    return None if watts is None else (watts, watts * (end - start) / (done - skipped))


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
