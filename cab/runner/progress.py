"""Progress of a command: a bar in a terminal, and a log line while a part of the set-up takes long."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

FIRST_REPORT, LATER_REPORTS = 10.0, 30.0
"""Seconds until a part of the set-up is reported, and between the reports after that."""


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


def with_progress(title: str, start: int, total: int) -> Iterable[int]:
    """Return the steps from ``start`` to ``total``, with a progress bar in a terminal."""
    steps = range(start, total)
    if not sys.stderr.isatty():
        return steps
    from tqdm import tqdm

    return tqdm(steps, desc=title, initial=start, total=total, smoothing=0, leave=False, dynamic_ncols=True)
