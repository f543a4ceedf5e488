"""Arguments of commands; test_main_mistakes.py has those that are refused."""

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cab.cli.arguments import results_path
from cab.patterns import Pattern

CELL = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke", "device=cpu"]


def test_a_folder_without_leave_to_write(refused, tmp_path, monkeypatch):
    leave: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).resolve() != tmp_path and leave(path, mode))
    refused("run", *CELL, "results_dir=new", words=["results_dir: . is not writable; name another folder"])


@pytest.mark.parametrize("syntax", ["--pattern NS,CS", "--pattern NS --pattern CS,NS", "--pattern noncausal_self,CS"])
@pytest.mark.parametrize("command", ["verify", "efficiency", "score"])
def test_patterns_have_one_syntax(command, syntax):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"cab.cli.{command}").add_arguments(parser)
    assert parser.parse_args(syntax.split()).pattern == [Pattern.NS, Pattern.CS]


@pytest.mark.parametrize("what", ["list tasks", "list cells", "list backbones", "list attentions", "data list"])
def test_lists_fit_the_terminal(what, cab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = cab(*what.split()).out.splitlines()
    assert 10 < len(lines) < 140
    assert "origin" not in lines[0], "it is a column of the CSV"
    assert max(map(len, lines)) <= 100


def test_a_folder_of_the_user_comes_before_that_of_an_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/paper").mkdir(parents=True)
    assert results_path("results/paper") == Path("results/paper")


def test_control_characters_reach_no_terminal(refused):
    said = refused("score", "no\x1b[31mthing\nhere\x07", words=[r"no\x1b[31mthing here\x07 does not exist"])
    assert "\x1b" not in said


def test_ctrl_c_says_how_to_resume(monkeypatch, cab):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cab.runner.launch.run_sweeps", interrupted)
    for command in (["run", *CELL], ["demo"]):
        printed = cab(*command, status=130)
        assert printed.err == "cab: interrupted; repeat the command to resume from the last checkpoint\n"
    monkeypatch.setattr("cab.cli.score.run", interrupted)
    assert cab("score", status=130).err == "cab: interrupted\n"
