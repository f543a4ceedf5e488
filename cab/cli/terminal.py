"""Output to a terminal: above the progress bar, without control characters, and also if a stream is closed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TextIO

from cab.files.disk import sanitize_text


def open_missing_streams() -> None:
    """Open the standard streams that the shell has closed (``2>&-``) on the null device.

    Without them, Python has no stream to write to, and the next file that is opened gets the number of a stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)  # worker processes use it too
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that Python does not write the rest of the output at its exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # not a file, as in a notebook
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def print_note(text: str) -> None:
    """Print a line to stderr; a stream that was closed or is full does not end the command."""
    try:
        print(sanitize_text(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        discard_output(sys.stderr)


class OnceFilter(logging.Filter):
    """Filter that passes each warning once per command."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        text = record.getMessage()
        is_new = text not in self.seen
        self.seen.add(text)
        return is_new


class TerminalHandler(logging.StreamHandler):
    """Handler that writes to stderr, and redraws a progress bar below the line."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.addFilter(OnceFilter())

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        try:
            lines = self.format(record).split("\n")  # of a traceback
            tqdm.write("\n".join(map(sanitize_text, lines)), file=self.stream)
        except Exception:
            self.handleError(record)


def log_to_terminal(level: int, style: str, *, force: bool = False) -> None:
    """Log messages of all modules from ``level`` to stderr; ``force`` replaces existing handlers."""
    handler = TerminalHandler()
    handler.setFormatter(logging.Formatter(style))
    logging.basicConfig(level=level, handlers=[handler], force=force)
