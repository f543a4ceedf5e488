"""Smoke tests of scripts: shell scripts are parsed, and called where a call is cheap; programs run on small inputs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
SHELL_SCRIPTS = sorted(path.name for path in SCRIPTS.glob("*.sh"))


def program(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ModuleType:
    """Import a script as Python does when it is run, with these arguments."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return importlib.import_module(name)


def shell(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_shell_script_parses(name: str) -> None:
    found = subprocess.run(["bash", "-n", str(SCRIPTS / name)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert os.access(SCRIPTS / name, os.X_OK)


@pytest.mark.parametrize("name", ["benchmark.sh", "start_slurm.sh", "stop_slurm.sh"])
def test_missing_argument_is_explained(name: str) -> None:
    found = shell(name)
    assert found.returncode == 1
    assert f"usage: {'scripts/' if name == 'benchmark.sh' else ''}{name}" in found.stderr


def test_with_slurm_runs_the_command(tmp_path: Path) -> None:
    found = shell("with_slurm.sh", "sh", "-c", "echo $SLURM_CONF; exit 3", SLURM_CONF=str(tmp_path))
    assert (found.returncode, found.stdout) == (3, f"{tmp_path}\n")


def test_browser_is_left_alone_where_it_is_installed(tmp_path: Path) -> None:
    for name in ("chromium", "chromedriver"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    found = shell("browser.sh", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_suite_trains_each_cell(tmp_path: Path) -> None:
    folders = {"RESULTS": str(tmp_path / "runs"), "RECORDS": str(tmp_path / "records")}
    found = shell("suite.sh", "steps=2", CAB="echo", ATTENTIONS="none abc", SEEDS="1", **folders)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    assert first == f"run suite=core attention=none seed=1 results_dir={tmp_path / 'runs'} device=cpu steps=2"
    assert second == first.replace("none", "abc")
    assert (tmp_path / "records").is_dir()


def test_fuzz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert program("fuzz", monkeypatch, "2").main() == 0
    assert "compared" in capsys.readouterr().out


def test_kernel_gains_of_one_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of the kernel are replaced, rows of kernels that no longer exist vanish, others stay."""
    table = tmp_path / "gains.csv"
    table.write_text("kernel,length\ncausal_abc,64\nno_such_kernel,64\nKeyMeans,64\n")
    arguments = ["causal_abc", "--lengths", "64", "--rounds", "1", "--table", str(table)]
    program("kernel_gains", monkeypatch, *arguments).main()
    assert "causal_abc" in capsys.readouterr().out
    rows = pd.read_csv(table)
    assert list(rows["kernel"]) == ["KeyMeans", "causal_abc"]
    assert rows["bytes_checkpointed"].iloc[-1] > 0


def test_every_kernel_has_equal_gradients_in_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """``measure`` compares them."""
    module = program("kernel_gains", monkeypatch)
    assert all(module.measure(name, 128, 1)["kernel"] == name for name in module.KERNELS)


def test_the_table_holds_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = program("kernel_gains", monkeypatch)
    assert set(pd.read_csv(module.TABLE)["kernel"]) == set(module.KERNELS)


@pytest.mark.slow
def test_a_bug_of_the_installed_release_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "bugs.csv"
    options = ("--releases", str(tmp_path / "releases"), "--out", str(table), "--only", "rwkv-padding")
    program("replay_public_bugs", monkeypatch, *options).main()
    [row] = pd.read_csv(table).to_dict("records")
    assert (row["result"], row["after_repair"]) == ("caught", "open")
    assert "padded row" in row["evidence"]
