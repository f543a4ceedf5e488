"""The recipes of CONTRIBUTING.md, each installed as a package outside the repository, and its commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.untimed import UNTIMED_OPTION

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
)


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], flags=re.DOTALL)


def files(section: str) -> dict[str, str]:
    """What each file of the recipe holds; the first line of its block names it."""
    found = [block.split("\n", 1) for language in ("python", "yaml", "toml") for block in blocks(section, language)]
    return {name.removeprefix("# "): content for name, content in found}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
    }
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{shlex.join(command)}\n{process.stdout}\n{process.stderr}"
    return process


def install(section: str, folder: Path) -> None:
    """The recipe as a package in folder/site, which only its entry points make known."""
    package = folder / "package"
    for name, content in files(section).items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(content)
        if name.endswith(".py"):
            (package / name).with_name("__init__.py").touch()
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation"]
    run([*pip, "--target", str(folder / "site"), str(package)], folder)


@pytest.mark.parametrize(
    ("section", "name", "columns"),
    [
        ("An attention", "sigmoid_mean", ["NS tts", "CS tts", "CC tts", "NC lstf"]),
        ("A backbone", "season", ["NS lstf"]),
        ("A task", "accuracy", ["CS recall"]),
        ("A metric", "skill", ["NC lstf_skill"]),
    ],
)
def test_a_recipe_trains_scores_and_appears_on_the_leaderboard(
    section: str, name: str, columns: list[str], tmp_path: Path
) -> None:
    install(section, tmp_path)
    (commands,) = blocks(section, "bash")
    for command in commands.splitlines():
        if command == "pip install .":
            continue
        program, *words = shlex.split(command)
        assert program == "cab"
        words += UNTIMED_OPTION if words[0] == "verify" else []
        process = run([sys.executable, "-m", "cab.cli.main", *words], tmp_path)
        if words[0] == "score":
            assert all(re.search(rf"^{column.replace(' ', ' +')} ", process.stdout, re.MULTILINE) for column in columns)
    for path in (tmp_path / "results").glob("*/*.json"):
        assert json.loads(path.read_text())["status"] == "finished"
    page = (tmp_path / "board/index.html").read_text()
    assert name in page
    assert name in (tmp_path / "board/leaderboard.csv").read_text() + page


def test_an_attention_with_its_own_decoding_takes_at_most_sixty_lines() -> None:
    assert files("An attention")["sigmoid_mean/attention.py"].count("\n") <= 60
