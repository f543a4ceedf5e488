"""The environment that `make fairseq` builds, and its programs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cab import UserError

HOME = Path(__file__).resolve().parents[2] / ".venv-fairseq"
PLUGIN = Path(__file__).resolve().parents[2] / "cab_fairseq"


def require() -> None:
    """UserError where the environment is not there."""
    if not (HOME / "ready").exists():
        raise UserError("engine=fairseq needs fairseq's own environment: make fairseq")


def python(code: str, *arguments: str) -> str:
    """What ``code`` prints, run by the environment's Python; UserError with its last line when it fails."""
    command = [str(HOME / "bin" / "python"), "-P", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"fairseq's environment: {_last_line(done.stderr)}")
    return done.stdout


def versions() -> dict[str, str]:
    """Versions in the environment of what can change a number."""
    code = (
        "import json, sys, platform; from importlib.metadata import version;"
        "print(json.dumps({'python': platform.python_version()} | {name: version(name) for name in sys.argv[1:]}))"
    )
    found: dict[str, str] = json.loads(python(code, "fairseq-fixed", "torch", "numpy", "hydra-core"))
    return found


def run(program: str, arguments: Sequence[str], *, log: Path, watch: Callable[[str], None] | None = None) -> int:
    """Run a program of the environment to its end; its output goes to the end of ``log``.

    Args:
        watch: is given each line as it comes.

    Returns:
        Peak resident memory of the program, in bytes.

    Raises:
        RuntimeError: with the program's last line, when it fails.
    """
    lines: list[str] = []
    command = [str(HOME / "bin" / program), *arguments]
    with (
        log.open("a") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_die_with_parent
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                lines = [*lines[-50:], line]
                if watch is not None:
                    watch(line)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.terminate()
    if process.returncode:
        raise RuntimeError(f"{program} failed ({process.returncode}): {_last_line(''.join(lines))}; see {log}")
    return usage.ru_maxrss * 1024


def _die_with_parent() -> None:
    """So that no training goes on unseen in a folder that the next run takes over."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _last_line(text: str) -> str:
    lines: list[Any] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
