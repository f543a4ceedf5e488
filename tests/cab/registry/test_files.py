"""Attentions of files: paths, names of files, and files that end the program."""

from pathlib import Path

import pytest

from cab import UserError
from cab.cli.main import main
from cab.config.compose import compose
from cab.registry.files import load_object
from cab.runner.cell import Cell
from tests.helpers.command import the_record

MINE = """
import os, sys
import torch
from cab import Attention


class Mine(Attention):
    def attend(self, query, key, value, *_):
        return value.mean(2, keepdim=True).expand_as(query)


class Mapped(Mine):
    def __init__(self, *, sizes: dict[str, int] | None = None, **common):
        super().__init__(**common)


class Leaving(Mine):
    def attend(self, *_):
        sys.exit(0)
"""
CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NS", "preset=smoke", "device=cpu"]
CELL += ["results_dir=results", "trainer.max_steps=2"]

pytestmark = pytest.mark.usefixtures("registers")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)


def test_every_path_of_a_file_is_one_attention(tmp_path):
    Path("inner").mkdir()
    Path("link.py").symlink_to("mine.py")
    paths = ["mine.py", "./mine.py", "inner/../mine.py", str(tmp_path / "mine.py"), "link.py"]
    cells = [Cell.from_config(compose([*CELL, f"attention={path}:Mine"])) for path in paths]
    assert len({cell.hash for cell in cells}) == 1
    assert {cell.config.attention.name for cell in cells} == {"mine.py:Mine"}
    assert {cell.label for cell in cells} == {"Mine"}


def test_a_stack_has_parts_of_files(tmp_path):
    for written in ("[mine.py:Mine*3,vanilla]", f"[{tmp_path}/mine.py:Mine*3,vanilla]"):
        cell = Cell.from_config(compose([*CELL, f"attention={written}"]))
        assert (cell.config.attention.name, cell.label) == ("mine.py:Mine*3,vanilla", "Mine*3,vanilla")


@pytest.mark.parametrize("attention", ["mine.py:Mapped", "[mine.py:Mapped,vanilla]"])
def test_a_label_shows_an_option_that_is_a_mapping(attention):
    option = "Mapped.sizes" if "vanilla" in attention else "sizes"
    cell = Cell.from_config(compose([*CELL, f"attention={attention}", f"attention.{option}={{a:1}}"]))
    assert cell.label.endswith(f"({option}={{'a': 1}})")


def test_a_file_that_hangs_is_named(monkeypatch, cab):
    monkeypatch.setattr("cab.files.cache.SLOW", 0.01)
    Path("slow.py").write_text(f"import time\ntime.sleep(0.2)\n{MINE}")
    assert "importing slow.py takes long" in cab("run", "--dry-run", *CELL, "attention=slow.py:Mine").err


@pytest.mark.parametrize("name", ["größe.py", "my file.py", "it's.py", 'a"b.py', "a,b.py", "(x).py", "a=b.py"])
def test_a_file_can_have_any_name(name, cab):
    Path(name).write_text(MINE)
    assert "total of 1 run to be done" in cab("run", "--dry-run", *CELL, f"attention={name}:Mine").out


def test_files_in_a_list_are_quoted_as_hydra_reads_them(cab):
    for name in ("my file.py", "größe.py"):
        Path(name).write_text(MINE)
    listed = "attention='./my file.py:Mine','größe.py:Mine',mine.py:Mine"
    assert "total of 3 runs" in cab("run", "-m", "--dry-run", *CELL, listed).out


def test_a_name_that_no_file_can_have():
    with pytest.raises(UserError, match="does not exist"):
        load_object("null\0.py:Mine")


def test_an_attention_that_ends_the_program_leaves_a_failed_record():
    assert main(["run", *CELL, "attention=mine.py:Leaving"]) == 1
    record = the_record(Path("results"))
    assert (record["status"], record["error"]) == ("failed", "ExitError: the code called sys.exit(0)")
    assert record["cell"]["attention"] == "Leaving"
