"""Smoke tests of scripts and tools: scripts are parsed, and called where a call is cheap; tools run on small inputs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
from packaging.requirements import Requirement

from cab import Pattern
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions.interpreter import needs_triton

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
SHELL_SCRIPTS = sorted(path.name for path in SCRIPTS.glob("*.sh"))


def program(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ModuleType:
    """Import a tool as it is when it is run with these arguments."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return importlib.import_module(f"tools.{name}")


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


def test_fuzz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert program("verification.fuzz", monkeypatch, "2").main() == 0
    assert "compared" in capsys.readouterr().out


def test_kernel_gains_of_one_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of the kernel are replaced, rows of kernels that no longer exist vanish, others stay."""
    table = tmp_path / "gains.csv"
    table.write_text("kernel,length\ncausal_abc,64\nno_such_kernel,64\nKeyMeans,64\n")
    arguments = ["causal_abc", "--lengths", "64", "--rounds", "1", "--table", str(table)]
    program("benchmarks.kernel_gains", monkeypatch, *arguments).main()
    assert "causal_abc" in capsys.readouterr().out
    rows = pd.read_csv(table)
    assert list(rows["kernel"]) == ["KeyMeans", "causal_abc"]
    assert rows["bytes_checkpointed"].iloc[-1] > 0


def test_every_kernel_has_equal_gradients_in_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """``measure`` compares them."""
    module = program("benchmarks.kernel_gains", monkeypatch)
    assert all(module.measure(name, 64, 1)["kernel"] == name for name in module.KERNELS)


def test_the_table_holds_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = program("benchmarks.kernel_gains", monkeypatch)
    assert set(pd.read_csv(module.TABLE)["kernel"]) == set(module.KERNELS)


@pytest.mark.slow
def test_a_bug_of_the_installed_release_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "bugs.csv"
    options = ("--releases", str(tmp_path / "releases"), "--out", str(table), "--only", "rwkv-padding")
    program("verification.replay_public_bugs", monkeypatch, *options).main()
    [row] = pd.read_csv(table).to_dict("records")
    assert (row["result"], row["after_repair"]) == ("caught", "open")
    assert "padding left" in row["evidence"]


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        ("5.9.0", ["transformers==5.9.0", "huggingface_hub==1.5.0", "tokenizers==0.22.2"]),
        ("minGRU-pytorch==0.2.1", ["minGRU-pytorch==0.2.1"]),
    ],
)
def test_a_release_is_installed_once_into_its_folder(
    release: str, packages: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[list[str]] = []

    def installed(command: list[str], **_: object) -> None:
        Path(command[8]).mkdir()
        ran.append(command)

    module = program("verification.replay_public_bugs", monkeypatch)
    monkeypatch.setattr(module.subprocess, "run", installed)
    assert [module.install(release, tmp_path) for _ in range(2)] == [tmp_path / release] * 2
    [command] = ran
    assert command[9:] == packages


@pytest.fixture
def gpu_commands(tmp_path: Path) -> list[str]:
    """The arguments of each command of gpu.sh, in order, with a Python that only notes them."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$3" = tools/gpu/gpu_cab.py ] && echo "$@" >>{tmp_path}/commands; exit 0\n')
    python.chmod(0o755)
    assert shell("gpu.sh", str(tmp_path / "out"), PYTHON=str(python)).returncode == 0
    return [line.split("gpu_cab.py ")[1] for line in (tmp_path / "commands").read_text().splitlines()]


def test_first_visit_to_a_gpu_measures_what_matters_first(gpu_commands: list[str]) -> None:
    """bfloat16 before float32, the attentions people ask for before all, every one of them registered."""
    kinds = [line.split()[0] for line in gpu_commands]
    assert kinds == ["efficiency"] * 6 + ["run", "verify"] + ["efficiency"] * 3
    assert all("--dtype bfloat16" in line for line in gpu_commands[:6])
    assert "--phase decode decode-graph" in gpu_commands[5]
    assert "attention=gla,vanilla" in gpu_commands[6]
    assert "trainer.precision=bf16-mixed" in gpu_commands[6]
    names = [name for line in gpu_commands[:5] for name in line.split(" --")[0].split()[1:]]
    assert len(names) == len(set(names)) == 26
    assert all(Pattern.CS in ATTENTIONS.get(name).patterns for name in names)


def test_first_visit_to_a_gpu_ends_within_its_budget(tmp_path: Path) -> None:
    """A command gets what remains of the budget, and no command starts without time for it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$3" = tools/gpu/gpu_cab.py ] && exec sleep 60; exit 0\n')
    python.chmod(0o755)
    begin = time.monotonic()
    assert shell("gpu.sh", str(tmp_path / "out"), PYTHON=str(python), BUDGET="4").returncode == 0
    assert time.monotonic() - begin < 12
    log = (tmp_path / "out" / "log.txt").read_text()
    assert (log.count("exit status 124"), log.count("no time for: cab ")) == (1, 10)


def test_wheels_for_a_gpu_are_those_that_torch_lacks() -> None:
    """Every dependency of this project and of its extra `cuda` is carried or comes with torch."""
    carried = {line.split("==")[0] for line in (SCRIPTS / "gpu_wheels.txt").read_text().splitlines() if line[0] != "#"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cuda"]]
    assert closure(wanted) - closure(["torch"]) <= carried


THERE = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.0"}
"""The Python of the machine with a GPU, for which markers hold."""


def closure(requirements: list[str]) -> set[str]:
    """Return the names of all distributions that these requirements install there, by what is installed here."""
    names: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in names and (requirement.marker is None or requirement.marker.evaluate(THERE)):
            names.add(name)
            pending += [Requirement(text) for text in metadata.requires(name) or []]
    return names


@needs_triton
def test_candidates_of_a_kernel_are_compiled_together() -> None:
    """All that will be timed are compiled before the first is, and one that does not compile is left to the tuner."""
    from triton.runtime._async_compile import active_mode

    from tools.gpu.gpu_cab import MOST, compile_candidates

    compiled: list[int] = []

    def warmup(*, x: int, size: int) -> None:
        mode = active_mode.get()
        assert x == 7
        assert mode is not None
        mode.submit(size, lambda: 1 // size, compiled.append)

    candidates = [SimpleNamespace(all_kwargs=lambda size=size: {"size": size}) for size in range(3 * MOST)]
    tuner = SimpleNamespace(nargs={"x": 7}, fn=SimpleNamespace(warmup=warmup))
    assert compile_candidates(lambda *_: candidates)(tuner, {}) == candidates[::3]
    assert len(compiled) == MOST - 1
