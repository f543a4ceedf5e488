"""Log lines in a terminal: above the progress bar, and without what would steer the terminal."""

from __future__ import annotations

import logging
import sys

from cab.files.sanitize import sanitize_text


class TerminalHandler(logging.StreamHandler):
    """Writes to stderr; a progress bar there is taken away for the line, and drawn again below it."""

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
    """Send the log lines of every module there, from ``level`` on; ``force`` replaces who has them so far."""
    handler = TerminalHandler()
    handler.setFormatter(logging.Formatter(style))
    logging.basicConfig(level=level, handlers=[handler], force=force)
