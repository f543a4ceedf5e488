"""Logging to a terminal: above the progress bar, and without control characters."""

from __future__ import annotations

import logging
import sys

from cab.files.sanitize import sanitize_text


class TerminalHandler(logging.StreamHandler):
    """Handler that writes to stderr, and redraws a progress bar below the line."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

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
