"""Stops processes at a write of theirs, whatever the speed of the machine: Python imports this file at its start.

``CAB_TEST_STOP`` is "WHAT NAME MARK": just before a file is renamed to something that ends in NAME,

* ``kill``: the process gets SIGKILL, also just before it appends to such a file that is not new,
* ``parent:N``: its parent gets signal N, and every process waits there until it gets SIGTERM itself;

once: the file MARK says that it has happened.

``at:CHANGE`` is another form: every process appends a line to MARK before each change of a file below the folder NAME:
the opening to write, the renaming or the deletion, such as ``os.rename:/results/#.json`` with ``#`` for numbers. The
first process that is about to make CHANGE gets SIGKILL.
"""

import os
import re
import signal
import sys
import time


def _makes(mark: str) -> bool:
    """Whether this process is the first to make the file."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _stop_at_rename(what: str, name: str, mark: str) -> None:
    def hook(event: str, arguments: tuple[object, ...]) -> None:
        appends = event == "open" and arguments[1] == "a" and os.path.exists(str(arguments[0]))  # noqa: PTH110
        path = arguments[1] if event == "os.rename" else arguments[0] if appends and what == "kill" else ""
        if not str(path).endswith(name):
            return
        is_first, (action, _, number) = _makes(mark), what.partition(":")
        if action == "parent":
            handler = signal.getsignal(signal.SIGTERM)
            if is_first:
                os.kill(os.getppid(), int(number))
            while getattr(getattr(handler, "__self__", None), "received", None) is None:  # cab.runner's StopSignals
                time.sleep(0.01)
        elif is_first:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


CHANGES = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0, "open": 0}
"""Events of changes, and the place of the path in their arguments."""


def _kill_at_change(wanted: str, folder: str, log: str) -> None:
    def hook(event: str, arguments: tuple[object, ...]) -> None:
        path = str(arguments[CHANGES[event]]) if event in CHANGES else ""
        if not path.startswith(folder) or (event == "os.mkdir" and os.path.exists(path)):  # noqa: PTH110
            return
        if event == "open" and not int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR):
            return
        change = f"{event}:{re.sub('[0-9a-f]{8,}|[0-9]+', '#', path.removeprefix(folder))}"
        lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(lines, f"{change}\n".encode())
        os.close(lines)
        if change == wanted and _makes(f"{log}.killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if "CAB_TEST_STOP" in os.environ:
    action, name, mark = os.environ["CAB_TEST_STOP"].split(" ")
    if action.startswith("at:"):
        _kill_at_change(action.removeprefix("at:"), name, mark)
    else:
        _stop_at_rename(action, name, mark)
