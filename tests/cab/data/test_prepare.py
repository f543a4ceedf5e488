"""`--prepare` lets the tasks read what came; the commands of docs/howto/data.md are commands."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.data.sources import data_set, data_sets
from cab.errors import UserError
from cab.registry.tables import CONFIGS
from cab.runner.launch import prepare

PAGE = (CONFIGS.parent / "docs" / "howto" / "data.md").read_text()
COMMANDS = re.findall(r"^(?: {4})?(cab [^#\n]*)|`(cab data [^`]*)`", PAGE, flags=re.MULTILINE)


def test_a_ready_set_is_read_by_its_task(official_layout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "download", "weather", "--data-root", str(official_layout), "--prepare"]) == 0
    assert capsys.readouterr().out == f"weather is ready in {official_layout}/lstf\n  prepared for lstf\n"


def test_what_the_tasks_make_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    for part in ("train", "validation", "test"):
        (tmp_path / "lm" / part).mkdir(parents=True)
        (tmp_path / "lm" / part / "1.txt").write_text("a book of more than ten words\n" * 40)
    small = ["task.vocab_size=262", "task.block_len=16", "task.context_lengths=[16]"]
    assert list(prepare(dataclasses.replace(data_set("pg19"), tasks=["lm"]), tmp_path, small)) == ["lm"]
    made = {path.name.rpartition("-")[0] for path in (tmp_path / "cache").iterdir() if path.is_dir()}
    assert made >= {"bpe", "checksums"}


def test_what_cannot_be_prepared(official_layout: Path) -> None:
    assert list(prepare(data_set("gpt2_bpe"), official_layout)) == []
    with pytest.raises(UserError, match="unknown option 'trainr'"):
        list(prepare(data_set("etth1"), official_layout, ["trainr.max_steps=3"]))
    with pytest.raises(UserError, match=r"no ECL.csv .*: cab data download ecl --data-root"):
        list(prepare(data_set("ecl"), official_layout))


def test_the_commands_of_the_page_are_commands() -> None:
    """They name verbs, options and data sets that exist."""
    lines = [(block or inline).strip() for block, inline in COMMANDS]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        if words[:2] != ["cab", "data"] or len(words) == 2:
            continue
        assert words[2] in ("list", "download", "verify")
        names = [word for word in words[3:] if word.islower() and "=" not in word and word.isidentifier()]
        assert set(names) <= set(data_sets()), line
        options = {word for word in words if word.startswith("--")}
        assert options <= {"--data-root", "--source", "--prepare", "--csv"}, line
    for name in data_sets():
        assert re.search(rf"^\|[^|]*\b{name}\b", PAGE, flags=re.MULTILINE), f"{name} is not in the table"
