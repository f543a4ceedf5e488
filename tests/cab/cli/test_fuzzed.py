"""Hostile command lines: every one is answered, or refused in one line. The seed is the day, `CAB_CONFORMANCE_SEED`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cab.config import compose
from tests.cab.cli.fuzzed import draw_command, fault_of

SEED = os.environ["CAB_CONFORMANCE_SEED"]
COUNT = int(os.environ.get("CAB_FUZZED_COMMANDS", "1000"))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAB_DATA", raising=False)
    Path("folder").mkdir()
    Path("file").write_text("no, table\n1, 2\n")
    Path("file.py").write_text("from cab import Attention\n\n\nclass A(Attention): pass\n")
    Path("exits.py").write_text("raise SystemExit(7)\n")


@pytest.mark.slow
def test_no_command_line_ends_in_an_internal_error() -> None:
    commands = [draw_command(SEED, number) for number in range(COUNT)]
    found = [(number, arguments, fault) for number, arguments in enumerate(commands) if (fault := fault_of(arguments))]
    assert not found, f"CAB_CONFORMANCE_SEED={SEED}: {len(found)} of {COUNT}, the first: {found[0]}"


def test_commands_follow_from_the_seed_and_the_number() -> None:
    assert draw_command("a", 7) == draw_command("a", 7)
    assert len({tuple(draw_command("a", number)) for number in range(300)}) > 250


def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "--cfg", "job", "logger=false", "task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC"]
    assert not fault_of(command)
    monkeypatch.setattr(compose, "_groups_with_files", dict)
    assert "internal error: ValueError: Config group override must be a string or a list" in fault_of(command)
