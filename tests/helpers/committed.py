"""The files of this repository, without those that commands write into a checkout, such as ``results/demo``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.helpers.command import ROOT


def committed(*patterns: str) -> list[Path]:
    """Return the committed files that match one of the patterns, such as ``docs/**/*.md``, sorted."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *(f":(glob){pattern}" for pattern in patterns)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # an archive without a history
        return sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for name in listed.stdout.split("\0")[:-1] if (path := ROOT / name).exists())
