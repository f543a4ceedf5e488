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

from cab import UserError

HOME = Path(__file__).resolve().parents[2] / ".venv-fairseq"
PLUGIN = Path(__file__).resolve().parents[2] / "cab_fairseq"


def python(code: str, *arguments: str) -> str:
    """Run ``code`` in the environment's Python and return its output; raise UserError with its last line on failure."""
    command = [str(HOME / "bin" / "python"), "-P", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next(filter(None, map(str.strip, reversed(done.stderr.splitlines()))), "no output")
        raise UserError(f"fairseq's environment: {last}")
    return done.stdout


def versions() -> dict[str, str]:
    """Return the versions of the packages in the environment that can affect results."""
    code = (
        "import json, sys, platform; from importlib.metadata import version;"
        "print(json.dumps({'python': platform.python_version()} | {name: version(name) for name in sys.argv[1:]}))"
    )
    installed: dict[str, str] = json.loads(python(code, "fairseq-fixed", "torch", "numpy", "hydra-core"))
    return installed


def run(program: str, arguments: Sequence[str], *, log: Path, watch: Callable[[str], None] | None = None) -> int:
    """Run a program of the environment and return its peak resident memory in bytes; append its output to ``log``.

    ``watch`` gets each line of output. Raise RuntimeError with the program's last line if it fails.
    """
    last = "no output"
    command = [str(HOME / "bin" / program), *arguments]
    # torchrun's processes meet at a store of its agent; those of fairseq at one of their own
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    with (
        log.open("a") as file,
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_die_with_parent
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                last = line.strip() or last
                if watch is not None:
                    watch(line)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.terminate()
    if process.returncode:
        raise RuntimeError(f"{program} failed ({process.returncode}): {last}; see {log}")
    return usage.ru_maxrss * 1024


def _die_with_parent() -> None:
    """Terminate the child with its parent, so that no unseen training writes to a folder that the next run uses."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
