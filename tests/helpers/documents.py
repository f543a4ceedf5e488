"""The committed files, and the commands that a page shows, run as a reader would."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from cab.verification import select_checks
from tests.helpers.command import ROOT, cab, run

PROGRAMS = {"cab": [], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
"""Programs of the pages and how they start here; `cab` is a copy of a process (:mod:`tests.helpers.command`)."""

FAILING = (["score", "--check"], ["verify", "hf:mamba2"], ["verify", "my_layer.py:make_layer"])
"""Commands that exit with 1: a cell does not separate attentions, a module of another package has a defect."""

UNTIMED_OPTION = ["--checks", ",".join(check.name for check in select_checks() if check.name != "time_growth")]
"""Of `cab verify`, without a clock: tests share the processor with other work."""

EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
"""The attention of the README, `gated_mean.py` in the commands of the pages."""


def committed(*patterns: str) -> list[Path]:
    """Return the committed files that match one of the patterns, such as ``docs/**/*.md``, sorted."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *(f":(glob){pattern}" for pattern in patterns)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # an archive without a history
        return sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for name in listed.stdout.split("\0")[:-1] if (path := ROOT / name).exists())


def commands_of(page: str) -> list[str]:
    """Return the lines of a page's blocks of shell commands, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


def runnable(commands: list[str]) -> list[str]:
    """Return the commands of :data:`PROGRAMS` whose environment is available."""
    commands = [command for command in commands if command.startswith(tuple(f"{program} " for program in PROGRAMS))]
    if not (ROOT / ".venv-fairseq/ready").exists():
        commands = [command for command in commands if "engine=fairseq" not in command]
    return commands


def run_shown(command: str, folder: Path) -> str:
    """Run a command of a page in ``folder`` and return its output; what takes long is shortened."""
    program, *words = shlex.split(command)
    found = {word: sorted(map(str, folder.glob(word))) for word in words if "*" in word}
    words = [name for word in words for name in found.get(word) or [word]]
    if "--dry-run" in words:  # every cell of all attentions would be composed
        words += [] if "attention=" in command else ["attention=abc"]
    else:
        is_suite = "suite=core" in words or "suite=mini" in words
        if "preset=mini" in words or is_suite:
            words.append("trainer.max_steps=4")
        if is_suite:
            words += ["task=lstf", "pattern=NC" if "gated_mean" in command else "pattern=CS", "seed=1", "--no-cost"]
    if words[0] == "verify":
        words += [] if "--checks" in words else UNTIMED_OPTION
        words += [] if "--quick" in words else ["--quick"]
    process = cab(*words, cwd=folder, timeout=900) if program == "cab" else run([*PROGRAMS[program], *words], folder)
    expected = (0, 1) if words[:2] in FAILING else (0,)
    assert process.returncode in expected, f"{command}\n{process.stdout}\n{process.stderr}"
    assert process.stdout or "wrote" in process.stderr
    return process.stdout
