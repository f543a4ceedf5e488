"""The live line of a running cell: drawn in a terminal, or told to the pool that draws those of all its workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator

ProgressListener = Callable[[str, int, int], None]
"""Is given the title of a cell, the steps that are done, and all steps."""
PAUSE = 0.2
"""Seconds between two words to the pool."""

_told: ProgressListener | None = None


def report_progress(told: ProgressListener | None) -> None:
    """From now on ``told`` is given the progress of this process, in the place of a line of its own."""
    global _told
    _told = told


def with_progress(title: str, start: int, total: int) -> Iterable[int]:
    """The steps from ``start`` to ``total``, with a live line while they are gone through, where somebody looks."""
    steps = range(start, total)
    if _told is not None:
        return _reported(title, steps, _told)
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


def _reported(title: str, steps: range, told: ProgressListener) -> Iterator[int]:
    last = 0.0
    for step in steps:
        now = time.monotonic()
        if now - last >= PAUSE:
            told(title, step, steps.stop)
            last = now
        yield step
