"""Measure start-up times relative to `import torch`: interleaved runs in new processes, and their medians.

python scripts/start_up_times.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

CELL = "task=lstf dataset=synthetic backbone=informer attention=abc pattern=NC preset=smoke device=cpu logger=csv"
FIRST_STEP = """
import os, sys
from cab.cli.main import main
from cab.task import Task
from cab.registry.registries import TASKS
def stop(self, backbone, batch):
    os._exit(0)
TASKS.get("lstf").cls.loss = stop
main(sys.argv[1:])
"""
"""Runs `cab` up to the loss of the first training step."""


def programs(folder: str) -> dict[str, list[str]]:
    """Return the measured programs by name; each exits by itself."""
    cab = ["-m", "cab.cli.main"]
    cell = CELL.split()
    mistyped = [word.replace("attention=abc", "attention=abd") for word in cell]
    return {
        "import torch": ["-c", "import torch"],
        "cab run, to the first training step": ["-c", FIRST_STEP, "run", *cell, f"results_dir={folder}"],
        "cab list attentions": [*cab, "list", "attentions"],
        "cab run, a mistyped name": [*cab, "run", *mistyped],
    }


def main(runs: int) -> None:
    seconds: dict[str, list[float]] = {}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            for name, arguments in programs(folder).items():
                started = time.perf_counter()
                subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    torch = statistics.median(seconds["import torch"])
    print(f"{'median of ' + str(runs) + ' runs':40} seconds  x import torch")
    for name, found in seconds.items():
        median = statistics.median(found)
        print(f"{name:40} {median:7.2f} {median / torch:15.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
