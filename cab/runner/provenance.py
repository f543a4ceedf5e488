"""Provenance and cost of a run: code, versions, machine, CPU time and memory."""

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

from cab.data.check import unpublished_files
from cab.data.sources import data_sets
from cab.records.record import RunMetadata, now
from cab.records.verified import code_of, is_verified
from cab.registry.registries import ATTENTIONS
from cab.runner.gpu_share import num_gpu_sharers

if TYPE_CHECKING:
    from cab.runner.cell import Cell

PACKAGES = ("cab-benchmark", "torch", "fla-core", "hydra-core", "numpy", "pandas")


def about_run(cell: Cell, command: str, device: torch.device | None) -> RunMetadata:
    """Return the metadata of a run before it trains; without a device, hardware and data are left empty."""
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
        initial_weights=cell.task.initial_weights_id,
        unpublished_files=unpublished_files_of(cell) if device else [],
    )


def unpublished_files_of(cell: Cell) -> list[str]:
    """Return the files of the cell's data set whose checksum is not the published one."""
    data_set, root = data_sets().get(cell.config.dataset), cell.config.data_root
    return [] if data_set is None or root is None else unpublished_files(data_set, root)


def attention_code(cell: Cell) -> str:
    """Return the hash of the code of the attention under test."""
    return code_of(ATTENTIONS.get(cell.config.attention.name).cls)


@functools.cache
def revision() -> dict[str, Any]:
    """Return the commit of the working tree and whether it has changes; empty outside a checkout."""
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
    """Return the versions of Python and of the packages that can change results."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """Return a description of the machine and the device."""
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "driver": nvidia_driver()}
        if num_gpu_sharers() > 1:  # affects the times
            facts["gpu_shared_by"] = num_gpu_sharers()
    return facts


def nvidia_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version of the NVIDIA kernel module; empty if there is none."""
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
    """CPU time of this process and its children since the object was created, and load of the machine."""

    def __init__(self) -> None:
        self._seconds, self._load = _cpu_seconds(), _load()

    def read(self) -> dict[str, Any]:
        """Return ``cpu_seconds`` and ``load`` of a :class:`cab.records.record.Cost`."""
        return {"cpu_seconds": _cpu_seconds() - self._seconds, "load": (self._load + _load()) / 2}


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _load() -> float:
    """Return the load average of the last minute as a fraction of the cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class PeakMemory:
    """Peak memory of a run: of the CUDA allocator, or of the resident set of the process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            gc.collect()  # free reference cycles of the previous cell
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_peak_resident()

    @property
    def kind(self) -> str:
        """What is measured, as in records."""
        return "cuda allocator" if self.device.type == "cuda" else "resident set of the process"

    def read(self) -> int:
        """Return the peak memory in bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _peak_resident()


def _reset_peak_resident() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or no permission: the peak is then measured since the start of the process
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
