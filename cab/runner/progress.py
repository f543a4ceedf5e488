"""Progress of a running cell: a progress bar in a terminal, or messages to the pool of workers."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

ProgressListener = Callable[[str, int, int], None]
"""Function of the title of a cell, the completed steps and the total steps."""
PAUSE = 0.2
"""Seconds between two messages."""

FIRST_REPORT, LATER_REPORTS = 10.0, 30.0
"""Seconds until a part of the set-up is reported, and between the reports after that."""

_listener: ProgressListener | None = None


@contextlib.contextmanager
def report_waiting(part: str) -> Iterator[None]:
    """Log at intervals that ``part`` of the set-up is still running inside the block; nothing if it is fast."""
    started, ended = time.monotonic(), threading.Event()

    def watch() -> None:
        pause = FIRST_REPORT
        while not ended.wait(pause):
            log.info("%s: %.0f s so far", part, time.monotonic() - started)
            pause = LATER_REPORTS

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
