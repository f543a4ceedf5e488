"""Worker process of the local pool.

It reads cells from stdin, one line of JSON per cell, and writes results, and optionally its progress, to stdout. It
exits at the end of stdin. torch is imported once for all cells.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from cab.errors import Preempted, UserError
from cab.runner.progress import report_progress

PROGRESS_ENV = "CAB_LIVE_LINES"
"""Environment variable that is set if the pool shows the progress of the worker."""


class Unwatched(io.TextIOWrapper):
    """A stderr that is not reported as a terminal, so that no library shows a progress bar there."""

    def isatty(self) -> bool:
        return False


class RunFormatter(logging.Formatter):
    """Formatter that puts the name of the run, if the record has one, before the message."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.run}: {text}" if hasattr(record, "run") else text


class ToPool(logging.Handler):
    """Handler that sends warnings and errors to the pool."""

    def __init__(self, answers: TextIO) -> None:
        super().__init__(logging.WARNING)
        self.answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        send(self.answers, {"level": record.levelno, "log": self.format(record)})


def send(answers: TextIO, message: Mapping[str, Any]) -> None:
    """Write a message to the pool."""
    print(json.dumps(message), file=answers, flush=True)


def main() -> int:
    """Run cells until stdin ends, and return the exit status; 128 plus the signal number after a signal."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout: redirect them to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C
    handlers: list[logging.Handler] = [ToPool(answers)]  # the pool shows equal warnings of its workers once
    if PROGRESS_ENV not in os.environ:
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(RunFormatter("%(message)s"))
        lines.addFilter(lambda record: record.levelno < logging.WARNING)
        handlers.append(lines)
    else:
        sys.stderr = Unwatched(os.fdopen(os.dup(2), "wb", 0), line_buffering=True)
        report_progress(lambda title, step, total: send(answers, {"title": title, "step": step, "total": total}))
    logging.basicConfig(level=logging.INFO, handlers=handlers, format="%(message)s")
    from cab.runner.run import run_cell

    for line in sys.stdin:
        answer = {"error": "", "outcome": ""}
        try:
            answer["outcome"] = run_cell(**json.loads(line)).kind
        except Preempted as stop:
            return 128 + stop.signal
        except UserError as error:
            answer["error"] = str(error)
        except Exception as error:
            logging.getLogger("cab").exception("internal error")
            answer["error"] = f"{type(error).__name__}: {error}"
        send(answers, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
