"""Run the commands that a page shows, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cab.cli.command import ROOT, cab
from tests.untimed import UNTIMED_OPTION

PROGRAMS = {
    "cab": [],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "scripts/benchmark.sh": [str(ROOT / "scripts/benchmark.sh")],
}
"""How the programs of the pages start here; `cab` is a copy of a process (:mod:`tests.cab.cli.command`)."""


def commands_of(page: str) -> list[str]:
    """The lines of its blocks of shell commands, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def run_shown(command: str, folder: Path) -> None:
    """A command of a page; what trains, verifies or measures for minutes is cut short."""
    program, *words = shlex.split(command)
    words = [name for word in words for name in (sorted(map(str, folder.glob(word))) if "*" in word else [word])]
    if "preset=mini" in words and "--dry-run" not in words:
        words.append("trainer.max_steps=4")
    if "suite=mini" in words:
        words += [
            "task=lstf",
            "pattern=NS" if "gated_mean" in command else "pattern=CS",
            "seed=1",
            "trainer.max_steps=4",
        ]
    if words[0] == "verify":
        words += UNTIMED_OPTION
        words += [] if "--quick" in words else ["--quick"]
    process = cab(*words, cwd=folder, timeout=900) if program == "cab" else run([*PROGRAMS[program], *words], folder)
    assert process.returncode == 0, f"{command}\n{process.stderr}"
    assert process.stdout or "wrote" in process.stderr
