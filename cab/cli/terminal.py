"""Output to a terminal: above the progress bar, and without control characters; the message for an unknown flag."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from cab.errors import UserError, nearest_name
from cab.files.disk import sanitize_text


def print_note(text: str) -> None:
    """Print a line to stderr."""
    print(sanitize_text(text), file=sys.stderr, flush=True)


def unknown_flag(flag: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown flag, with the nearest known one; the hyphens that all share are not compared."""
    words = {name.lstrip("-"): name for name in known}
    near = nearest_name(flag.lstrip("-"), words)
    hint = f": did you mean '{words[near]}'? Known:" if near else "; known:"
    return UserError(f"unknown flag '{flag}'{hint} {', '.join(sorted(words.values()))}")


class TerminalHandler(logging.StreamHandler):
    """Handler that writes to stderr above a progress bar, and each warning once per command."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.warnings: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message unless it is a repeated warning."""
        from tqdm import tqdm

        message = record.getMessage()
        if record.levelno == logging.WARNING:
            if message in self.warnings:
                return
            self.warnings.add(message)
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
