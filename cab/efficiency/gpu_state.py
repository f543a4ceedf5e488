"""GPU load and clocks from `nvidia-smi`, which determine whether measured times are meaningful."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from dataclasses import dataclass
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

FIELDS = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")
ACTIVE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Names of the throttling reasons in newer and older drivers."""


@dataclass(frozen=True)
class Clocks:
    """GPU state.

    Attributes:
        sm: current clock of the multiprocessors, MHz.
        sm_most: maximum clock of the multiprocessors, MHz.
        memory: memory clock, MHz.
        temperature: degrees Celsius.
        power: watts.
        reasons: bits of throttling reasons.
    """

    sm: int
    sm_most: int
    memory: int
    temperature: int
    power: float
    reasons: int

    @property
    def throttled(self) -> str:
        """Throttling reasons as text, empty if there are none."""
        return ", ".join(words for bit, words in REASONS.items() if self.reasons & bit)


def query(*arguments: str) -> list[list[str]]:
    """Return the rows that nvidia-smi prints; empty if it is missing or does not support the query."""
    command = ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(process.stdout)) if row]


def this_gpu() -> list[str]:
    """Return the option that selects the first GPU available to torch, without initializing CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return ["-i", visible or "0"]


def read_clocks() -> Clocks | None:
    """Return the GPU state, or None if the driver does not report it."""
    for active in ACTIVE:
        rows = query(f"--query-gpu={','.join((*FIELDS, active))}", *this_gpu())
        if rows and len(rows[0]) == len(FIELDS) + 1:
            *numbers, reasons = rows[0]
            sm, sm_most, memory, temperature, power = map(_number, numbers)
            return Clocks(int(sm), int(sm_most), int(memory), int(temperature), power, _bits(reasons))
    return None


def clock_facts() -> dict[str, Any]:
    """Return the columns of a cost that describe the GPU state."""
    clocks = read_clocks()
    if clocks is None:
        return {}
    facts = {"clock": clocks.sm, "clock_most": clocks.sm_most, "temperature": clocks.temperature}
    return facts | {"throttled": clocks.throttled}


def refuse_when_shared() -> None:
    """Reject a GPU that other processes use; called before this process uses it.

    Process IDs are not compared, because in a container they differ from those of the driver.

    Raises:
        UserError: names the processes.
    """
    rows = query("--query-compute-apps=pid,process_name,used_memory", *this_gpu())
    if rows:
        found = ", ".join(f"{name} ({pid}, {memory} MiB)" for pid, name, memory in rows)
        raise UserError(
            f"other processes use the GPU, which invalidates timings: {found}; wait until they finish, choose another "
            "GPU with CUDA_VISIBLE_DEVICES, or pass --shared-gpu"
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return 0.0


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
