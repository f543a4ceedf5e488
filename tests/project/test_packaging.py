"""Metadata and workflows say what is so."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from cab.results.card import COSTS, DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_lowest_versions_are_the_declared_ones() -> None:
    """Of everything that a user installs; torch's floor is declared lower than the one version that is pinned here."""
    extras = PROJECT["optional-dependencies"]
    required = [*PROJECT["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]
    declared = dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in required)  # type: ignore[union-attr]
    assert declared.pop("torch") == "2.9"
    lowest = pins("constraints-lowest.txt")
    assert lowest.pop("torch") == pins("constraints.txt")["torch"]
    assert lowest == declared


def test_every_package_of_the_wheel_is_typed() -> None:
    """A type checker reads annotations only of packages that hold ``py.typed`` (PEP 561)."""
    files = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    packages = {file.parent for file in files if file.name == "__init__.py" and len(file.parts) == 2}
    ours = {"cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq"}
    assert ours <= {str(package) for package in packages}
    assert {path.relative_to(ROOT) for path in (DEFAULTS, COSTS)} <= files
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert [str(package) for package in packages if package / "py.typed" not in files] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_the_verbs_of_make_and_the_stages(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = [(job, step["run"].split()) for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for job, [program, *names] in commands:
        places = job.get("strategy", {}).get("matrix", {}).get("include", [])
        wanted = [place["verb"] for place in places] if "${{" in names else names
        text, form = (MAKEFILE, "{}:") if program == "make" else ((ROOT / program).read_text(), r"{}\(\) \{{")
        assert wanted
        assert [name for name in wanted if not re.search(f"^{form.format(name)}", text, flags=re.MULTILINE)] == []


def test_the_wheel_has_the_version_of_the_tag(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"cab_benchmark-{PROJECT['version']}-py3-none-any.whl").touch()
    for tag, status in (("", 0), (f"v{PROJECT['version']}", 0), ("v0.0.9", 2)):
        command = ["make", "-s", "-f", str(ROOT / "Makefile"), "wheel", "PYTHON=true", f"TAG={tag}"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == status, tag


def test_the_address_of_the_project_is_in_one_place() -> None:
    """That of pyproject.toml; while it has none, documents name what a reader has to replace."""
    address = PROJECT.get("urls", {}).get("Repository")
    clones = [f"git clone {address or 'REPOSITORY_URL'} cab && cd cab"] * 2
    documents = [(ROOT / name).read_text() for name in ("README.md", "docs/howto/install.md")]
    assert [re.search(r"git clone .*", text)[0] for text in documents] == clones  # type: ignore[index]
    assert (yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code")) == address
    assert ("there is no fixed one yet" in documents[0]) == (address is None)


def test_a_wrong_interpreter_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.10\n")
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
    process = subprocess.run([ROOT / "scripts/environment.sh"], env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    [line] = process.stderr.splitlines()
    assert "is Python 3.10; 3.11 or newer is required: make setup PYTHON=python3.11" in line
