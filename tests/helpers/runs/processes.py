"""Runs of `cab` in processes of their own, some of which are stopped at a write of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.command import ROOT, STOPPING, cab


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(STOPPING), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def run_module(*module: str | Path, processes: int = 1, stop: str = "") -> subprocess.CompletedProcess[str]:
    """``python -m MODULE``, of several processes under torchrun; ``stop`` is stopping/sitecustomize.py's."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", *map(str, module)]
    env = environment(**({"CAB_TEST_STOP": stop} if stop else {}))
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def run_cab(*arguments: str | Path, processes: int = 1, stop: str = "") -> subprocess.CompletedProcess[str]:
    """``cab run ARGUMENTS``; :func:`run_module`."""
    if processes > 1:
        return run_module("cab.cli.main", "run", *arguments, processes=processes, stop=stop)
    return cab("run", *arguments, cwd=ROOT, stop=stop, timeout=300)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def the_record(folder: Path) -> dict[str, Any]:
    [record] = records(folder)
    return record
