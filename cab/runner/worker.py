"""A worker of the local pool: runs the cells that arrive on stdin, a line of JSON each, and answers on stdout.

It imports torch once for all its cells. When its stdin ends, so does it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys

from cab.errors import UserError
from cab.runner.faults import Preempted


def main() -> int:
    """Serve until stdin ends; the status is that of a shell when a signal stopped it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes where logs go
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to handle
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
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
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
