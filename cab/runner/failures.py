"""Errors that end a run without a score, and signals that stop it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from cab.errors import Preempted
from cab.records.record import Status

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class DivergedError(Exception):
    """The training loss is NaN or infinite."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the training loss is NaN or infinite from step {step}")
        self.step = step


class LostProcessError(Exception):
    """The process of a run ended without a record."""


def status_of(error: Exception) -> Status:
    """Return the status of a run that ended with ``error``."""
    if isinstance(error, DivergedError):
        return Status.DIVERGED
    return Status.OOM if is_out_of_memory(error) else Status.FAILED


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: torch's CUDA error, a RuntimeError of its CPU allocator, or an OSError."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, (RuntimeError, OSError)) and any(word in str(error).lower() for word in words)


class StopSignals:
    """Handler of SIGTERM, SIGUSR1 and SIGUSR2.

    Training stops after the current step and a checkpoint; everything else stops at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waits_for_step = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the signals inside the block, if this is the main thread."""
        handlers: dict[signal.Signals, Any] = {}
        with contextlib.suppress(ValueError):  # only the main thread can
            for number in STOP_SIGNALS:
                handlers[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting_for_step(self) -> Iterator[None]:
        """Only store signals inside the block; the training loop reads ``received`` between steps."""
        self._waits_for_step = True
        try:
            yield
        finally:
            self._waits_for_step = False

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        if not self._waits_for_step:
            raise Preempted(number)
