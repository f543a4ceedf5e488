"""What a Tab completes: commands, flags, groups, their values; asked of the function, and of a real bash."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cab.cli.completion import FLAGS, PLAIN, SCRIPT, VALUES, candidates
from cab.cli.main import COMMANDS, main
from cab.cli.run import FLAGS as KNOWN_FLAGS
from cab.config.cluster_config import CLUSTERS
from cab.config.compose import PRESETS
from cab.config.run_config import KEYS
from cab.data.sources import data_sets
from cab.files.config_folders import CONFIGS
from cab.registry.registries import ATTENTIONS


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ver", ["verify"]),
        ("data ", ["download", "list", "verify"]),
        ("data download ett", ["etth1", "etth2", "ettm1"]),
        ("data download --", ["--data-root", "--help", "--prepare", "--source"]),
        ("score --norm", ["--normalization"]),
        ("verify gla", ["gla"]),
        ("list tas", ["tasks"]),
        ("run tas", ["task="]),
        ("run task=s", ["task=sr", "task=sum"]),
        ("run -m task=sr,s", ["task=sr,sum"]),
        ("run pattern=NS,", ["pattern=NS,CC", "pattern=NS,CS", "pattern=NS,NC"]),
        ("run dataset=ett", ["dataset=etth1", "dataset=etth2", "dataset=ettm1"]),
        ("run trainer.max", ["trainer.max_epochs=", "trainer.max_grad_norm=", "trainer.max_steps="]),
        ("run train", ["trainer."]),
        ("run cluster=slurm cluster.p", ["cluster.partition=", "cluster.processes="]),
        ("run preset=", ["preset=mini", "preset=paper", "preset=smoke"]),
        ("run data.", ["data.download="]),
        ("run --ex", ["--explain"]),
        ("run results_dir=re", []),
        ("nothing x", []),
    ],
)
def test_what_may_come_next(line: str, expected: list[str]) -> None:
    assert candidates(line.split(" ")) == expected


def test_everything_that_exists_is_offered() -> None:
    assert candidates([""]) == sorted(COMMANDS)
    assert [word.removeprefix("attention=") for word in candidates(["run", "attention="])] == ATTENTIONS.names()
    assert candidates(["data", "verify", ""]) == list(data_sets())
    assert tuple(VALUES["preset"]) == PRESETS
    assert tuple(VALUES["cluster"]) == tuple(CLUSTERS)
    assert set(VALUES["logger"]) == {path.stem for path in (CONFIGS / "logger").glob("*.yaml")}
    groups = {"task", "dataset", "backbone", "attention"}
    named = {key.partition(".")[0] for key in [*VALUES, *PLAIN]} | groups | {"trainer"}
    assert KEYS.keys() - named == {"retry", "tuning"}  # --retry, and what tune=true writes
    assert set(KNOWN_FLAGS) - set(FLAGS) == {"--multirun", "--debug"}


def test_the_flags_of_every_command_can_be_asked_for() -> None:
    for command in COMMANDS.keys() - {"run"}:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"cab.cli.{command.replace('-', '_')}").add_arguments(parser)
        assert "--help" in candidates([command, "--"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("cab run task=l", ["lm", "lra", "lstf"]),
        ("cab run task=lstf attention=vanilla,ab", ["vanilla,abc"]),
        ("cab run trainer.pat", ["trainer.patience="]),
        ("cab data verify pg", ["pg19"]),
    ],
)
def test_a_tab_in_bash(line: str, replies: list[str], tmp_path: Path) -> None:
    """As readline calls it, which breaks words at ``=``."""
    (tmp_path / "cab").write_text(f'#!/bin/sh\nexec {sys.executable} -m cab.cli.main "$@"\n')
    (tmp_path / "cab").chmod(0o755)
    tab = f'COMP_LINE="{line}"; COMP_POINT={len(line)}; _cab_complete; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = f'COMP_WORDBREAKS=" =:"\n{SCRIPT}\n{tab}'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert process.stdout.split() == replies, process.stderr


def test_the_scripts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == SCRIPT
    assert main(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
