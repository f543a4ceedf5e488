"""Smoke tests of scripts and tools: scripts are parsed, and called where a call is cheap; tools run on small inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tools.verification import replay_public_bugs

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
SHELL_SCRIPTS = sorted(path.name for path in SCRIPTS.glob("*.sh"))


def shell(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_shell_script_parses(name: str) -> None:
    found = subprocess.run(["bash", "-n", str(SCRIPTS / name)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert os.access(SCRIPTS / name, os.X_OK)


def test_with_slurm_runs_the_command(tmp_path: Path) -> None:
    found = shell("with_slurm.sh", "sh", "-c", "echo $SLURM_CONF; exit 3", SLURM_CONF=str(tmp_path))
    assert (found.returncode, found.stdout) == (3, f"{tmp_path}\n")


def test_suite_trains_each_cell(tmp_path: Path) -> None:
    folders = {"RESULTS": str(tmp_path / "runs"), "RECORDS": str(tmp_path / "records")}
    found = shell("suite.sh", "steps=2", CAB="echo", ATTENTIONS="none abc", SEEDS="1", **folders)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    assert first == f"run suite=core attention=none seed=1 results_dir={tmp_path / 'runs'} device=cpu steps=2"
    assert second == first.replace("none", "abc")
    assert (tmp_path / "records").is_dir()


@pytest.mark.slow
def test_a_bug_of_the_installed_release_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "bugs.csv"
    options = ["--releases", str(tmp_path / "releases"), "--out", str(table), "--only", "rwkv-padding"]
    monkeypatch.setattr(sys, "argv", ["replay_public_bugs", *options])
    replay_public_bugs.main()
    [row] = pd.read_csv(table).to_dict("records")
    assert (row["result"], row["after_repair"]) == ("caught", "open")
    assert "padding left" in row["evidence"]
