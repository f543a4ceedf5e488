"""Run `cab` as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def cab(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process of ``cab ARGUMENTS``, run in ``cwd``."""
    return subprocess.run(
        [sys.executable, "-m", "cab.cli.main", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def refused(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """It ended with one line for the user, which has all the words, and wrote no table."""
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    for word in words:
        assert word in lines[0]
