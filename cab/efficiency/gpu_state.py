"""GPU load and clocks from `nvidia-smi`, which determine whether measured times are meaningful."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from cab.errors import UserError

REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Bits of the driver's throttling reasons that invalidate a measurement."""

FIELDS = "clocks.sm,clocks.max.sm,temperature.gpu"
ACTIVE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Names of the throttling reasons in newer and older drivers."""


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
    for active in ACTIVE:
        for row in query(f"--query-gpu={FIELDS},{active}"):
            clock, clock_most, temperature, bits = map(_number, row)
            throttled = ", ".join(words for bit, words in REASONS.items() if bits & bit)
            return {"clock": clock, "clock_most": clock_most, "temperature": temperature, "throttled": throttled}
    return {}


def refuse_when_shared() -> None:
    """Reject a GPU that other processes use; called before this process uses it.

    Process IDs are not compared, because in a container they differ from those of the driver.

    Raises:
        UserError: names the processes.
    """
    rows = query("--query-compute-apps=pid,process_name,used_memory")
    if rows:
        processes = ", ".join(f"{name} ({pid}, {memory} MiB)" for pid, name, memory in rows)
        raise UserError(
            f"other processes use the GPU, which invalidates timings: {processes}; wait until they finish, choose "
            "another GPU with CUDA_VISIBLE_DEVICES, or pass --shared-gpu"
        )


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:  # "[N/A]"
        return 0
