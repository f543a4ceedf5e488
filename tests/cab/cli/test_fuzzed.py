"""Hostile command lines: every one is answered, or refused in one line. The seed is the day, `CAB_CONFORMANCE_SEED`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from cab.config import compose
from cab.registry.registries import ATTENTIONS
from tests.cab.cli import fuzzed
from tests.cab.cli.fuzzed import directed_commands, draw_command, expected_commands, fault_of
from tests.cab.hostile import SCALE, SEED

MINE = """from cab import Attention


class A(Attention):
    def attend(self, query, key, value, *_):
        return value.mean(2, keepdim=True).expand_as(query)
"""


class LeftError(BaseException):
    """The program left through ``os._exit``, which would end the tests too."""


def leave(status: int) -> None:
    raise LeftError(status)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAB_DATA", raising=False)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(ATTENTIONS, "_entries", {entry.name: entry for entry in ATTENTIONS})
    Path("folder").mkdir()
    Path("file").write_text("no, table\n1, 2\n")
    for name in ("file.py", "größe.py", "it's a file.py"):
        Path(name).write_text(MINE)
    Path("exits.py").write_text("raise SystemExit(7)\n")
    Path("exits_at_once.py").write_text("import os\n\nos._exit(0)\n")


def check(commands: Iterable[tuple[list[str], int | None]]) -> None:
    found = [(arguments, fault) for arguments, status in commands if (fault := fault_of(arguments, status))]
    assert not found, f"CAB_CONFORMANCE_SEED={SEED}: {len(found)} commands, the first: {found[0]}"


@pytest.mark.slow
def test_no_command_line_ends_in_an_internal_error() -> None:
    check((arguments, None) for arguments in directed_commands(SEED))


@pytest.mark.slow
def test_no_drawn_command_line_ends_in_an_internal_error() -> None:
    check((draw_command(SEED, number), None) for number in range(1_000 * SCALE))


@pytest.mark.slow
def test_mistakes_are_refused_and_files_accepted_without_a_run() -> None:
    check(expected_commands())


def test_every_hostile_word_is_used_every_day() -> None:
    words = {word for arguments in directed_commands(SEED) for word in arguments}
    assert {f"{group}={value}" for group in fuzzed.GROUPS for value in fuzzed.VALUES} <= words
    assert {*fuzzed.VALUES, *fuzzed.OPTIONS, *fuzzed.FLAGS, *(command[0] for command in fuzzed.COMMANDS)} <= words
    assert set(fuzzed.KEYS) <= {word.partition("=")[0] for word in words}


def test_commands_follow_from_the_seed_and_the_number() -> None:
    assert draw_command("a", 7) == draw_command("a", 7)
    assert len({tuple(draw_command("a", number)) for number in range(300)}) > 250


def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "--cfg", "job", "logger=false", "task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC"]
    assert not fault_of(command)
    monkeypatch.setattr(compose, "_groups_with_files", dict)
    assert "internal error: ValueError: Config group override must be a string or a list" in fault_of(command)
