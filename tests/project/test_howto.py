"""The commands and programs of the guides and of the tutorial work; each package of a guide is installed and used."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.helpers.command import cab, run_python
from tests.helpers.data.own import write_own_data
from tests.helpers.documents import EXAMPLE, PROGRAMS, ROOT, UNTIMED_OPTION, commands_of, committed, run_shown, runnable

DOCS = ROOT / "docs"
PACKAGES = {
    "add-an-attention": ("sigmoid_mean", ["NS tts", "CS tts", "CC tts", "NC lstf"]),
    "add-a-backbone": ("season", ["NS lstf"]),
    "add-a-task": ("skill", ["CS recall", "NC lstf_skill"]),
}
"""Guides with a package: a word that its leaderboard shows, and the pattern and task of its scores."""
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in committed("docs/tutorials/*.md", "docs/howto/*.md")}
OTHER_PROGRAMS = ("source", "make", "pip", "pytest")
DOWNLOAD, VERIFY_FILES = "cab data download", "cab data verify"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def programs(page: str) -> list[str]:
    """Return the Python blocks that are not files."""
    return [block for block in blocks(page, "python") if not block.startswith("# ") and block != EXAMPLE]


def files(page: str) -> dict[str, str]:
    """Return the content of each file of a guide; the first line of its block names it."""
    found = [block.split("\n", 1) for language in ("python", "yaml", "toml") for block in blocks(page, language)]
    return {name.removeprefix("# "): content for name, content in found if re.fullmatch(r"# [\w/.]+\.\w+", name)}


def install(page: str, folder: Path) -> None:
    """Install the package of a guide in folder/site, known by its entry points only; single files go to ``folder``."""
    package = folder / "package"
    for name, content in files(page).items():
        path = package / name if "/" in name or name == "pyproject.toml" else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if "/" in name and name.endswith(".py"):
            path.with_name("__init__.py").touch()
    pip = ("-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation")
    run_python(*pip, "--target", str(folder / "site"), str(package), cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("guide", PACKAGES)
def test_a_package_trains_scores_and_appears_on_the_leaderboard(guide, tmp_path):
    page = PAGES[f"howto/{guide}.md"]
    shown, columns = PACKAGES[guide]
    install(page, tmp_path)
    for command in commands_of(page):
        if command == "pip install .":
            continue
        program, *words = shlex.split(command)
        assert program == "cab"
        words += UNTIMED_OPTION if words[0] == "verify" else []
        process = cab(*words, cwd=tmp_path, timeout=900, PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}")
        assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
        if words[0] == "score":
            for pattern, task in map(str.split, columns):
                assert re.search(rf"^{task} .*\b{pattern} \(", process.stdout, re.MULTILINE), process.stdout
    for path in (tmp_path / "results").glob("*/*.json"):
        assert json.loads(path.read_text())["status"] == "finished"
    assert shown in (tmp_path / "board/index.html").read_text() + (tmp_path / "board/leaderboard.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in PAGES if Path(name).stem not in PACKAGES])
def test_the_commands_of_a_page_run_one_after_another_and_then_its_programs(page, tmp_path, official_layout):
    for name, content in {"gated_mean.py": EXAMPLE, **files(PAGES[page])}.items():
        if "/" not in name:
            (tmp_path / name).write_text(content)
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "results" / "paper")
    if page == "howto/data.md":
        write_own_data(tmp_path)
    for command in runnable(commands_of(PAGES[page])):
        if command.startswith("cab verify port"):  # which computes the stages itself; here, what they are
            shutil.copy(tmp_path / "vectors/kda.safetensors", tmp_path / "port.safetensors")
        if not command.startswith((DOWNLOAD, VERIFY_FILES)):
            run_shown(command.replace("DATA", str(official_layout)), tmp_path)
    for program in programs(PAGES[page]):
        assert run_python("-c", program, cwd=tmp_path).stdout


@pytest.mark.slow
def test_the_verdict_of_the_guide_is_what_the_command_prints():
    printed = " ".join(cab("score", "--attention", "deltanet", cwd=ROOT).stdout.split())
    [block] = blocks(PAGES["howto/suite.md"], "text")
    assert [line for line in block.splitlines() if " ".join(line.split()) not in printed] == []


@pytest.mark.slow
def test_the_commands_that_download_and_verify_data_run(samples, tmp_path):
    """From the samples: no test contacts the official host."""
    commands = [command for page in PAGES.values() for command in commands_of(page)]
    commands = [command for command in commands if command.startswith((DOWNLOAD, VERIFY_FILES))]
    assert len(commands) >= 4
    for command in commands:
        source = f" --source {samples / 'lstf'}" if command.startswith(DOWNLOAD) else ""
        run_shown(command.replace("DATA", str(tmp_path)) + source, tmp_path)


def test_each_command_names_a_program_that_the_tests_know():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    words = [command.split() for page in PAGES.values() for command in commands_of(page) if command]
    assert {program for program, *_ in words} <= {*PROGRAMS, *OTHER_PROGRAMS}
    assert {options[0] for program, *options in words if program == "make"} <= {*targets}


@pytest.mark.slow
def test_the_bug_of_the_tutorial_fails_the_checks_that_it_names(tmp_path):
    """The example without the two lines that use the key padding."""
    [claimed] = re.findall(r"GatedMean NS: \d+ checks, \d+ failed: (.*)", PAGES["tutorials/your-first-attention.md"])
    broken = re.sub(r" +if padding\.key.*\n.*\n", "", EXAMPLE)
    assert broken != EXAMPLE
    (tmp_path / "gated_mean.py").write_text(broken)
    process = cab("verify", "gated_mean.py:GatedMean", "--pattern", "NS", "--quick", "--csv", cwd=tmp_path)
    assert process.returncode == 1, process.stderr
    assert set(re.findall(r"^GatedMean,NS,(\w+),false", process.stdout, re.MULTILINE)) == set(claimed.split(", "))
