"""Every command of the README works, its results are the committed ones, and the wheel runs outside the checkout."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from cab.cli.main import EXAMPLES
from cab.errors import EXAMPLE_COMMAND
from cab.reports.figures import INK
from cab.reports.suite_board import recall_points, state_of
from scripts import readme_figure
from tests.cab.cli.command import cab
from tests.documents import EXAMPLE, ROOT, commands_of, make_targets, run, run_shown, runnable
from tests.untimed import UNTIMED_OPTION

README = (ROOT / "README.md").read_text()
TEXTS = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
"""Outputs that are shown."""
COMMANDS = commands_of(README)


def without_numbers(text: str) -> str:
    """Return a text without numbers, such as times, and with single spaces."""
    return " ".join(re.sub(r"[\d.]+", "0", text).split())


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.slow
def test_its_commands_run_one_after_another(tmp_path: Path) -> None:
    (tmp_path / "gated_mean.py").write_text(EXAMPLE)
    commands = runnable(COMMANDS)
    assert len(commands) >= 8
    assert EXAMPLE_COMMAND in commands
    output = "".join(run_shown(command, tmp_path) for command in commands)
    assert (tmp_path / "results/local/leaderboard/index.html").stat().st_size > 10_000
    shown = [line.removesuffix(" ...") for block in TEXTS for line in block.splitlines()]
    printed = without_numbers(output)
    assert [line for line in shown if without_numbers(line) not in printed] == []


def test_the_commands_that_cab_shows_first_are_among_them() -> None:
    for command in EXAMPLES.values():
        assert any(each.startswith(command) for each in COMMANDS), command


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)`", README))
    assert {"demo", "setup", "test"} <= targets <= make_targets()


def test_its_results_are_those_of_the_committed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, run ``python scripts/readme_figure.py``."""
    committed = {name: getattr(readme_figure, name) for name in ("README", "GALLERY", "PAPER", "FIGURE")}
    for name, path in committed.items():
        monkeypatch.setattr(readme_figure, name, tmp_path / path.name)
        (tmp_path / path.name).write_text(readme_figure.BLOCK.sub("", path.read_text()))
    monkeypatch.setattr(readme_figure, "ROOT", tmp_path)
    readme_figure.main()
    for name in ("README", "GALLERY", "PAPER"):
        assert (tmp_path / committed[name].name).read_text() == committed[name].read_text(), name
    figures = [path.read_text() for path in (committed["FIGURE"], tmp_path / committed["FIGURE"].name)]
    names = [re.findall(r">([^<>]+)</text>", figure) for figure in figures]
    assert names[0] == names[1]
    points = recall_points(readme_figure.reference_board(), state_of)
    assert set(points) <= set(names[0]), "a name at every mark"
    assert INK not in figures[0], "not readable on a dark background"


def test_make_demo_runs_cab_demo(tmp_path: Path) -> None:
    (tmp_path / "cab").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "cab").chmod(0o755)
    process = run(
        ["make", "--no-print-directory", "--old-file=setup", "demo", f"BIN={tmp_path}", f"RESULTS={tmp_path}"], ROOT
    )
    assert process.stdout == f"demo --out {tmp_path}\n", process.stderr


@pytest.mark.slow
def test_its_example_is_short_and_correct(tmp_path: Path) -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 14
    (tmp_path / "gated_mean.py").write_text(EXAMPLE)
    process = cab("verify", "gated_mean.py:GatedMean", "--csv", *UNTIMED_OPTION, cwd=tmp_path)
    assert process.returncode == 0, process.stdout
    assert ",NC," in process.stdout


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    """Build it, unpack it into a folder of its own, and start it with nothing of the checkout on the path."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    process = run([*build, str(ROOT)], tmp_path)
    assert process.returncode == 0, process.stderr
    [wheel] = tmp_path.glob("*.whl")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    shutil.unpack_archive(wheel, site, "zip")
    start = f"import sys; sys.path.insert(0, {str(site)!r}); import cab; assert {str(site)!r} in cab.__file__; "
    start += "from cab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    options = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke", "trainer.max_steps=2"]
    for arguments in (
        ["run", *options],
        ["paper", "audit"],
        ["paper", "params"],
        ["leaderboard", "results/local", "--out", "board"],
    ):
        process = run([sys.executable, "-c", start, *arguments], work)
        assert process.returncode == 0, process.stderr
    assert (work / "board" / "index.html").exists()
