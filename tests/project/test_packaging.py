"""What a user installs: versions, files of the wheel and the address of the project."""

import re
import tomllib
from pathlib import Path

import yaml
from hatchling.builders.wheel import WheelBuilder

from cab.results.card import DEFAULTS
from cab.results.costs import MEASURED
from tests.helpers.command import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_lowest_versions_are_the_declared_ones():
    """Of everything that a user installs; torch's floor is declared lower than the one version that is pinned here."""
    extras = PROJECT["optional-dependencies"]
    required = [*PROJECT["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]
    declared = dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in required)
    assert declared.pop("torch") == "2.9"
    lowest = pins("constraints-lowest.txt")
    assert lowest.pop("torch") == pins("constraints.txt")["torch"]
    assert lowest == declared


def test_every_package_of_the_wheel_is_typed():
    """A type checker reads annotations only of packages that hold ``py.typed`` (PEP 561)."""
    files = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    packages = {file.parent for file in files if file.name == "__init__.py" and len(file.parts) == 2}
    assert {"cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq"} <= {*map(str, packages)}
    assert {path.relative_to(ROOT) for path in (DEFAULTS, MEASURED)} <= files
    assert [str(package) for package in packages if package / "py.typed" not in files] == []


def test_the_address_of_the_project_is_in_one_place():
    """That of pyproject.toml; while it has none, documents name what a reader has to replace."""
    address = PROJECT.get("urls", {}).get("Repository")
    clones = [f"git clone {address or 'REPOSITORY_URL'} cab && cd cab"] * 2
    documents = [(ROOT / name).read_text() for name in ("README.md", "docs/howto/install.md")]
    assert [re.search(r"git clone .*", text)[0] for text in documents] == clones
    assert (yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code")) == address
    assert ("there is no fixed one yet" in documents[0]) == (address is None)
