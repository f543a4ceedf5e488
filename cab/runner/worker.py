"""A worker of the local pool: runs the cells that arrive on stdin, a line of JSON each, and answers on stdout.

Where the pool draws live lines, it says there too how far it is.

It imports torch once for all its cells. When its stdin ends, so does it.
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

from cab.errors import UserError
from cab.runner.failures import Preempted
from cab.runner.progress import report_progress

PROGRESS_ENV = "CAB_LIVE_LINES"
"""In the environment of a worker whose pool draws its live line."""


class Unwatched(io.TextIOWrapper):
    """A stderr that shows itself to be no terminal, so that nothing draws a line of its own there."""

    def isatty(self) -> bool:
        return False


class ToPool(logging.Handler):
    """Hands warnings and errors to the pool; what a live line shows is not said again."""

    def __init__(self, answers: TextIO) -> None:
        super().__init__(logging.WARNING)
        self.answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        say(self.answers, {"level": record.levelno, "log": self.format(record)})


def say(answers: TextIO, message: Mapping[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


def main() -> int:
    """Serve until stdin ends; the status is that of a shell when a signal stopped it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes where logs go
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to handle
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if PROGRESS_ENV in os.environ:
        handlers = [ToPool(answers)]
        sys.stderr = Unwatched(os.fdopen(os.dup(2), "wb", 0), line_buffering=True)
        report_progress(lambda title, step, total: say(answers, {"title": title, "step": step, "total": total}))
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
        say(answers, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
