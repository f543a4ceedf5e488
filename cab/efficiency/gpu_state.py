"""What else a GPU does and how fast it runs, as `nvidia-smi` tells it: whether a time measured there means anything."""

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
"""Bits of the driver's reasons for lower clocks that make a measurement slower than the GPU is."""

FIELDS = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")
ACTIVE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""What drivers call the reasons, newer and older ones."""


@dataclass(frozen=True)
class Clocks:
    """MHz of the multiprocessors (now, and at most) and of the memory; degrees; watts; why they are lower."""

    sm: int
    sm_most: int
    memory: int
    temperature: int
    power: float
    reasons: int

    @property
    def throttled(self) -> str:
        """The reasons in words, empty for none."""
        return ", ".join(words for bit, words in REASONS.items() if self.reasons & bit)


def query(*arguments: str) -> list[list[str]]:
    """The rows that nvidia-smi answers with; none where it is missing or does not know what is asked."""
    command = ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(process.stdout)) if row]


def this_gpu() -> list[str]:
    """The option that asks about the first GPU that torch may use; it does not start CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return ["-i", visible or "0"]


def read_clocks() -> Clocks | None:
    """None where the driver does not tell."""
    for active in ACTIVE:
        rows = query(f"--query-gpu={','.join((*FIELDS, active))}", *this_gpu())
        if rows and len(rows[0]) == len(FIELDS) + 1:
            *numbers, reasons = rows[0]
            sm, sm_most, memory, temperature, power = map(_number, numbers)
            return Clocks(int(sm), int(sm_most), int(memory), int(temperature), power, _bits(reasons))
    return None


def clock_facts() -> dict[str, Any]:
    """The columns of a cost that say how fast the GPU ran just now."""
    clocks = read_clocks()
    if clocks is None:
        return {}
    facts = {"clock": clocks.sm, "clock_most": clocks.sm_most, "temperature": clocks.temperature}
    return facts | {"throttled": clocks.throttled}


def refuse_when_shared() -> None:
    """UserError that names the processes that use the GPU; asked before this one does.

    Processes are not told apart by number: in a container the driver's numbers are others than ours.
    """
    rows = query("--query-compute-apps=pid,process_name,used_memory", *this_gpu())
    if rows:
        found = ", ".join(f"{name} ({pid}, {memory} MiB)" for pid, name, memory in rows)
        raise UserError(
            f"the GPU is not free, so no time measured there would mean anything: {found}; wait for them, choose "
            "another with CUDA_VISIBLE_DEVICES, or measure all the same with --shared-gpu"
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
