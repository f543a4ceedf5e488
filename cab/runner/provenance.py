"""Where a number comes from: code, versions and machine."""

from __future__ import annotations

import functools
import gc
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cab.records.record import RunMetadata, now
from cab.records.verified import code_of, is_verified
from cab.registry.registries import ATTENTIONS
from cab.runner.gpu_share import num_gpu_sharers

if TYPE_CHECKING:
    from cab.runner.cell import Cell

PACKAGES = ("cab-benchmark", "torch", "fla-core", "hydra-core", "numpy", "pandas")


def about_run(cell: Cell, command: str, device: torch.device | None) -> RunMetadata:
    """What is known of a run before it trains; without a device, of one whose machine is not known."""
    code = attention_code(cell)
    return RunMetadata(
        hash=cell.hash,
        cell=cell.key,
        task_version=cell.task.version,
        config=dict(cell.config.resolved),
        engine=cell.config.engine,
        command=command,
        versions=versions(),
        revision=revision(),
        hardware=hardware(device) if device else {},
        data=cell.task.fingerprint() if device else {},
        started=now(),
        attention_code=code,
        verified=is_verified(code, str(cell.config.pattern)),
    )


def attention_code(cell: Cell) -> str:
    """The hash of the code of the attention under test."""
    return code_of(ATTENTIONS.get(cell.config.attention.name).cls)


@functools.cache
def revision() -> dict[str, Any]:
    """The commit this code is at and whether files differ from it; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return {"commit": "", "dirty": False}
    commit = _git(root, "rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}


def _git(root: Path, *arguments: str) -> str:
    try:
        run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine and the device of a run."""
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "driver": nvidia_driver()}
        if num_gpu_sharers() > 1:  # times are those of a part of it
            facts["gpu_shared_by"] = num_gpu_sharers()
    return facts


def nvidia_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The driver's version as its kernel module says; empty where there is none."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", path.read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


class ResourceUsage:
    """Processor time from here on, of this process and those it started, and how busy the machine is."""

    def __init__(self) -> None:
        self._seconds, self._load = _cpu_seconds(), _load()

    def read(self) -> dict[str, Any]:
        """``cpu_seconds`` and ``load`` of a :class:`cab.records.record.Cost`."""
        return {"cpu_seconds": _cpu_seconds() - self._seconds, "load": (self._load + _load()) / 2}


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _load() -> float:
    """Processes that had or wanted a core over the last minute, as a share of the cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class PeakMemory:
    """Peak memory of a run: the CUDA allocator's, or on a CPU the resident set of the process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            gc.collect()  # what the cell before left in cycles is not this one's
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_peak_resident()

    @property
    def kind(self) -> str:
        return "cuda allocator" if self.device.type == "cuda" else "resident set of the process"

    def read(self) -> int:
        """Bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _peak_resident()


def _reset_peak_resident() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not allowed: the peak is then the process's since its start
        return


def _peak_resident() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
