"""How a run can end without a score, and the signals that ask it to stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from cab.records.record import Status

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Diverged(Exception):
    """The training loss stopped being a number."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the training loss is no number from step {step} on")
        self.step = step


class Preempted(BaseException):
    """The run was told to stop and has saved itself; the same command goes on from there.

    Like KeyboardInterrupt it is no error of the cell, and ends a whole sweep.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; the same command goes on from the last checkpoint")
        self.signal = number


def status_of(error: Exception) -> Status:
    """What the record of a run says that ended with ``error``."""
    if isinstance(error, Diverged):
        return Status.DIVERGED
    return Status.OOM if is_out_of_memory(error) else Status.FAILED


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a class for it; torch on a CPU raises RuntimeError with the allocator's words, the system an OSError."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, (RuntimeError, OSError)) and any(word in str(error).lower() for word in words)


class StopSignals:
    """SIGTERM, SIGUSR1 and SIGUSR2 ask a run to stop: at once, or while it trains after the step and its checkpoint."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.wait_for_step = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the signals inside the block, as far as this thread may."""
        before = {}
        with contextlib.suppress(ValueError):  # only the main thread can
            for number in STOP_SIGNALS:
                before[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting_for_step(self) -> Iterator[None]:
        """Inside the block a signal is only noted: who trains there asks for it between steps."""
        self.wait_for_step = True
        try:
            yield
        finally:
            self.wait_for_step = False

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        if not self.wait_for_step:
            raise Preempted(number)
