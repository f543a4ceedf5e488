"""Progress of a running cell: a progress bar in a terminal, or messages to the pool of workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator

ProgressListener = Callable[[str, int, int], None]
"""Function of the title of a cell, the completed steps and the total steps."""
PAUSE = 0.2
"""Seconds between two messages."""

_listener: ProgressListener | None = None


def report_progress(listener: ProgressListener | None) -> None:
    """Pass the progress of this process to ``listener`` instead of showing a progress bar."""
    global _listener
    _listener = listener


def with_progress(title: str, start: int, total: int) -> Iterable[int]:
    """Return the steps from ``start`` to ``total``, with a progress bar in a terminal."""
    steps = range(start, total)
    if _listener is not None:
        return _reported(title, steps, _listener)
    if not sys.stderr.isatty():
        return steps
    from tqdm import tqdm

    return tqdm(
        steps,
        desc=title,
        initial=start,
        total=total,
        smoothing=0,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )


def _reported(title: str, steps: range, listener: ProgressListener) -> Iterator[int]:
    last = 0.0
    for step in steps:
        now = time.monotonic()
        if now - last >= PAUSE:
            listener(title, step, steps.stop)
            last = now
        yield step
