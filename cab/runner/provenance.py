"""Provenance and cost of a run: code, versions, machine, CPU time and memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import platform
import re
import resource
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cab.records.identity import Identity, Program
from cab.records.record import RunMetadata, now
from cab.records.verified import is_verified
from cab.registry.names import is_generated
from cab.registry.program import LIBRARY, engine_module, foreign_files, is_of_cab, libraries, modules_of
from cab.runner.processes import num_gpu_sharers

if TYPE_CHECKING:
    from cab.runner.cell import Cell

PACKAGES = (
    "cab-benchmark", "torch", "triton", "fla-core", "numpy", "scipy", "pandas", "tokenizers", "datasets",
    "scikit-image", "pillow", "librosa", "soundfile", "rouge-score",
)  # fmt: skip
"""Packages that can change results."""
PROJECT_ROOTS = ("cab.runner.run", "cab.construction", "cab.recipe")
"""Modules of ``cab`` that train and evaluate a cell; the program has what they import."""


def about_run(cell: Cell, command: str, device: torch.device | None, started: str = "") -> RunMetadata:
    """Return the metadata of a run before it trains; without a device, hardware and data are left empty.

    ``started`` is the start of an interrupted run that resumes.
    """
    code = cell.attention_code
    return RunMetadata(
        hash=cell.hash,
        cell=cell.key,
        task_version=cell.task.version,
        config=cell.config.resolved_on(device) if device else dict(cell.config.resolved),
        changed=cell.changed,
        program=program_of(cell),
        engine=cell.config.engine,
        command=command,
        versions=versions(),
        revision=revision(),
        hardware=hardware(device) if device else {},
        data=cell.task.fingerprint() if device else {},
        started=started or now(),
        attention_code=code,
        verified=is_verified(code, str(cell.config.pattern)),
        initial_weights=cell.task.initial_weights_id,
        unpublished_files=unpublished_files_of(cell) if device else [],
    )


def program_of(cell: Cell, *, is_planned: bool = False) -> Program:
    """Return the modules of a run that this process has executed so far, and those of its attention.

    A planned run, which is compared with a record, has the modules of its classes, without those that these import from
    packages: their digests are compared, and with them what they import. Other foreign modules, which could patch this
    attention, do not count, because it may run in another process, nor do libraries.
    """
    attention = modules_of([cell.classes["attention"]], follows_packages=not is_planned)
    attention = {name: digest for name, digest in attention.items() if not is_of_cab(name)}
    foreign = [] if is_planned else foreign_files()
    roots: list[type | str | Path] = [*cell.classes.values(), *cell.other_classes, *PROJECT_ROOTS, *foreign]
    project = modules_of([*roots, engine_module(cell.config.engine)], is_running=True, follows_packages=not is_planned)
    if not is_planned:
        known = {f"{LIBRARY}{package}" for package in PACKAGES}
        project |= {name: version for name, version in libraries().items() if name not in known}
    return Program(attention, {name: digest for name, digest in project.items() if name not in attention})


def identity_of(cell: Cell, data: Mapping[str, Any], device: torch.device | None = None) -> Identity:
    """Return the identity of a run now; one without a device is planned. Empty ``data`` have not been read yet."""
    config = cell.config.resolved if device is None else cell.config.resolved_on(device)
    return Identity.of(config, program_of(cell, is_planned=device is None), data, versions(), cell.renamed)


def unpublished_files_of(cell: Cell) -> list[str]:
    """Return the files of the cell's data set whose checksum is not the published one."""
    if cell.config.data_root is None or is_generated(cell.config.dataset):
        return []
    from cab.data.check import unpublished_files
    from cab.data.sources import data_sets

    data_set = data_sets().get(cell.config.dataset)
    return [] if data_set is None else unpublished_files(data_set, cell.config.data_root)


@functools.cache
def revision() -> dict[str, Any]:
    """Return the commit of the working tree and whether it has changes; empty outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    described = ""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if (root / ".git").exists():
            described = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    commit, _, mark = described.partition("-")
    return {"commit": commit, "dirty": bool(mark)}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the :data:`PACKAGES` that are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def hardware(device: torch.device) -> dict[str, Any]:
    """Return a description of the machine and the device."""
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu": _first_match(Path("/proc/cpuinfo"), r"^model name\s*: (.*\S)") or platform.processor(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "driver": nvidia_driver()}
        if num_gpu_sharers() > 1:  # affects the times
            facts["gpu_shared_by"] = num_gpu_sharers()
    return facts


def device_lists() -> list[str]:
    """Return the variables with the list of GPUs of a process: those that are set, or else the one of this torch."""
    names = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] if torch.version.hip else ["CUDA_VISIBLE_DEVICES"]
    return [name for name in names if name in os.environ] or names[:1]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process can use, with their names in the variable that lists them.

    A driver reads the list up to the first name that it does not know, such as -1. Of several MIG devices, it shows
    only one to a process.
    """
    count, named = torch.cuda.device_count(), os.environ.get(device_lists()[0])
    names = [str(index) for index in range(count)] if named is None else [name.strip() for name in named.split(",")]
    are_parts = bool(count) and all(name.startswith("MIG-") for name in names)
    return names if are_parts else names[:count]


def nvidia_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version of the NVIDIA kernel module; empty if there is none."""
    return _first_match(path, r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)")


def _first_match(path: Path, pattern: str) -> str:
    """Return the first group of a pattern in a file; empty without the file or a match."""
    try:
        match = re.search(pattern, path.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match[1] if match else ""


class ResourceUsage:
    """CPU time, load of the machine and peak memory since the object was created.

    The CPU time includes child processes. The memory is that of the CUDA allocator, or the resident set of the process
    on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._device = device.type == "cuda", device
        self._seconds, self._load = sum(os.times()[:4]), load_per_core()
        if self._on_gpu:
            gc.collect()  # free reference cycles of the previous cell
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            return
        with contextlib.suppress(OSError):  # not Linux, or no permission: the peak is that of the process so far
            Path("/proc/self/clear_refs").write_text("5")

    def cpu(self) -> dict[str, Any]:
        """Return ``cpu_seconds`` and ``load`` of a :class:`cab.records.record.RunCost`."""
        return {"cpu_seconds": sum(os.times()[:4]) - self._seconds, "load": (self._load + load_per_core()) / 2}

    def memory(self) -> dict[str, Any]:
        """Return ``peak_memory_bytes`` and ``peak_memory_kind`` of a cost."""
        kind = "cuda allocator" if self._on_gpu else "resident set of the process"
        return {"peak_memory_bytes": peak_memory(self._device), "peak_memory_kind": kind}


def peak_memory(device: torch.device) -> int:
    """Return the peak of the CUDA allocator, or of the resident set of the process on a CPU, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    kilobytes = _first_match(Path("/proc/self/status"), r"^VmHWM:\s+(\d+) kB")
    return 1024 * int(kilobytes or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def load_per_core() -> float:
    """Return the load average of the last minute as a fraction of the cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
