"""Stands for tools.gpu.measurements: items that work, fail, hang, ignore signals or end the process."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GPU = {"usable": True}


def start(device: str) -> None:
    sys.stdout.write(f"imported for {device}\n")
    sys.stdout.flush()


def is_usable(_device: str) -> bool:
    return GPU["usable"]


def costs(item: str, _device: str, folder: Path) -> Iterator[dict[str, object]]:
    row = {"attention": item, "ms": 1.23456, "process": os.getpid(), "empty": None}
    if item == "fails":
        raise ValueError("first line\nlast line")
    if item == "breaks the GPU":
        GPU["usable"] = False
        raise RuntimeError("an illegal memory access was encountered")
    if item == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "hangs after a row":
        yield row
        time.sleep(600)
    if item == "ignores signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "ignores.txt").write_text("")
        time.sleep(600)
    yield row
