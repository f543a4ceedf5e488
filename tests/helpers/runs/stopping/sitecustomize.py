"""Stops processes at a write of theirs, whatever the speed of the machine: Python imports this file at its start.

``CAB_TEST_STOP`` is "WHAT NAME MARK": just before a file is renamed to something that ends in NAME,

* ``kill``: the process gets SIGKILL, also just before it appends to such a file that is not new,
* ``parent:N``: its parent gets signal N, and every process waits there until it gets SIGTERM itself;

once: the file MARK says that it has happened.
"""

import os
import signal
import sys
import time


def _stop_at_rename(what: str, name: str, mark: str) -> None:
    def hook(event: str, arguments: tuple[object, ...]) -> None:
        appends = event == "open" and arguments[1] == "a" and os.path.exists(str(arguments[0]))  # noqa: PTH110
        path = arguments[1] if event == "os.rename" else arguments[0] if appends and what == "kill" else ""
        if not str(path).endswith(name):
            return
        action, _, number = what.partition(":")
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            is_first = True
        except FileExistsError:
            is_first = False
        if action == "parent":
            handler = signal.getsignal(signal.SIGTERM)
            if is_first:
                os.kill(os.getppid(), int(number))
            while getattr(getattr(handler, "__self__", None), "received", None) is None:  # cab.runner's StopSignals
                time.sleep(0.01)
        elif is_first:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if "CAB_TEST_STOP" in os.environ:
    _stop_at_rename(*os.environ["CAB_TEST_STOP"].split(" "))
