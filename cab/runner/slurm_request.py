"""What a cell requests from Slurm: its own options, and for others values from its expected hours."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from cab.config.run_config import SlurmConfig
from cab.files.text_table import ABSENT, counted
from cab.runner.cell import Cell

T = TypeVar("T")
DAY = 1440
"""Longest time limit in minutes of a job that is not set."""
LEAST = 60
"""Shortest one: the hours of small presets are measured on other hardware."""
TIME_MARGIN = 1.5  # factor of the expected hours, which differ between machines
MOST_GPUS = 8  # requested on a node if the user sets no number


def request_of(cell: Cell, options: SlurmConfig) -> SlurmConfig:
    """Return the options with time, GPUs and memory set; expected hours are divided among the GPUs."""
    hours, _ = cell.expected_hours() or (math.inf, "")
    gpus = options.gpus
    if gpus is None:
        gpus, most = 1, (options.time or DAY) / 60 * (1 + options.max_requeues)
        while hours < math.inf and hours / (gpus * max(1, options.nodes)) > most and gpus < MOST_GPUS:
            gpus *= 2
    minutes = 60 * TIME_MARGIN * hours / max(1, gpus * options.nodes)
    time = options.time
    if time is None:
        time = DAY if minutes >= DAY else max(LEAST, math.ceil(minutes))
    memory = options.memory
    if memory is None:
        memory = 0 if memory_options(options) else 64 if cell.config.preset == "paper" else 16
    return dataclasses.replace(options, time=time, gpus=gpus, memory=memory)


def memory_options(options: SlurmConfig) -> list[str]:
    """Return the names of the user's own options of memory, such as ``mem-per-cpu``; ``mem-bind`` requests none."""
    return sorted(name for name in options.extra if re.fullmatch(r"mem([-_]per[-_].*)?", name))


def by_request(
    items: Iterable[T], cell_of: Callable[[T], Cell], options: SlurmConfig
) -> list[tuple[SlurmConfig, list[T]]]:
    """Return the items with equal requests in groups, in the order of their first ones."""
    groups: list[tuple[SlurmConfig, list[T]]] = []
    for item in items:
        request = request_of(cell_of(item), options)
        for other, group in groups:
            if other == request:
                group.append(item)
                break
        else:
            groups.append((request, [item]))
    return groups


def request_row(request: SlurmConfig, cells: list[Cell]) -> list[Any]:
    """Return tasks, number of jobs, machines, GPUs, minutes and memory in GB; ``-``: not in the script."""
    tasks = " ".join(dict.fromkeys(cell.config.task.name for cell in cells))
    numbers = (len(cells), request.nodes, request.gpus, request.time, request.memory)
    return [tasks, *(str(value or ABSENT) for value in numbers)]


REQUEST_COLUMNS = ("tasks", "jobs", "nodes", "gpus", "minutes", "memory_gb")


def time_warnings(cells: Iterable[Cell], options: SlurmConfig) -> Iterator[str]:
    """Yield a warning for each task whose expected hours exceed the time limits of all requeues."""
    warnings = {}
    for cell in cells:
        hours, hardware = cell.expected_hours() or (0.0, "")
        request = request_of(cell, options)
        assert request.time is not None
        assert request.gpus is not None
        count, times = max(1, request.gpus * request.nodes), 1 + request.max_requeues
        if request.time and hours / count > request.time / 60 * times:
            needed = 60 * math.ceil(hours / count / times)
            warnings[cell.config.task.name] = (
                f"warning: {cell.config.task.name} takes {hours / count:,.0f} hours on {count} {hardware}; Slurm stops "
                f"it after {request.time / 60 * times:,.0f} (cluster.time={request.time} minutes, "
                f"{counted(times, 'time')}): set cluster.time={needed} or cluster.gpus"
            )
    yield from warnings.values()
