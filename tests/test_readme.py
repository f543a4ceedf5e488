"""Every command of the README works, its example attention is correct, and the wheel runs outside the checkout."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from cab.cli.main import FIRST
from cab.records.results import EXAMPLE_COMMAND
from tests.documents import PROGRAMS, ROOT, commands_of, run, run_shown
from tests.untimed import UNTIMED_OPTION

README = (ROOT / "README.md").read_text()
COMMANDS = commands_of(README)
EXAMPLE = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
def test_its_commands_run_one_after_another(tmp_path: Path, official_layout: Path) -> None:
    commands = [command for command in COMMANDS if command.startswith(tuple(PROGRAMS))]
    assert {command.split()[0] for command in commands} == set(PROGRAMS)
    if not (ROOT / ".venv-fairseq/ready").exists():
        commands = [command for command in commands if "engine=fairseq" not in command]
    assert len(commands) >= 8
    assert EXAMPLE_COMMAND in commands
    for command in commands:
        run_shown(command.replace("DATA", str(official_layout)), tmp_path)
    assert (tmp_path / "results/board/index.html").stat().st_size > 10_000


def test_the_commands_that_cab_shows_first_are_among_them() -> None:
    for command in FIRST.values():
        assert any(each.startswith(command) for each in COMMANDS), command


def test_its_make_verbs_exist_and_are_short() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert verbs == ["demo", "test", "test-all"]
    for verb in verbs:
        rule = re.search(rf"^{verb}:(.*)\n((?:\t.*\n)*)", makefile, flags=re.MULTILINE)
        assert rule is not None
        assert rule.group(1) or rule.group(2)
        assert rule.group(2).count("\n") <= 3


@pytest.mark.slow
def test_make_demo_shows_a_leaderboard(tmp_path: Path) -> None:
    """In the environment that the tests run in, with a few steps: as it is, it trains for minutes."""
    command = ["make", "--old-file=setup", "demo", f"BIN={tmp_path}", f"RESULTS={tmp_path / 'results'}"]
    command += ["DEMO=trainer.max_steps=5 trainer.validate_every=5"]
    (tmp_path / "cab").write_text(f'#!/bin/sh\nexec {sys.executable} -m cab.cli.main "$@"\n')
    (tmp_path / "cab").chmod(0o755)
    process = run(command, ROOT)
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "results").glob("*.json"))) == 6
    assert "| abc" in process.stdout
    assert "  without attention: " in process.stdout


@pytest.mark.slow
def test_its_example_is_short_and_correct(tmp_path: Path) -> None:
    assert EXAMPLE is not None
    assert EXAMPLE.group(1).count("\n") < 40
    (tmp_path / "gated_mean.py").write_text(EXAMPLE.group(1))
    command = [sys.executable, "-m", "cab.cli.main", "verify", "gated_mean.py:GatedMean", "--csv", *UNTIMED_OPTION]
    process = run(command, tmp_path)
    assert process.returncode == 0, process.stdout
    assert ",NC," in process.stdout


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    """Built, unpacked into a folder of its own, and started there with nothing of the checkout on the path."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    process = run([*build, str(ROOT)], tmp_path)
    assert process.returncode == 0, process.stderr
    [wheel] = tmp_path.glob("*.whl")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    shutil.unpack_archive(wheel, site, "zip")
    start = f"import sys; sys.path.insert(0, {str(site)!r}); import cab; assert {str(site)!r} in cab.__file__; "
    start += "from cab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    cell = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke", "trainer.max_steps=2"]
    for arguments in (
        ["run", *cell],
        ["paper", "audit"],
        ["params"],
        ["leaderboard", "results/local", "--out", "board"],
    ):
        process = run([sys.executable, "-c", start, *arguments], work)
        assert process.returncode == 0, process.stderr
    assert (work / "board" / "index.html").exists()
