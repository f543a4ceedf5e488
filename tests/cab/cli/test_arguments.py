"""Options of every command are checked before anything is written or deleted: one line, status 2."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cab.cli.arguments import results_path
from cab.cli.main import main
from cab.patterns import Pattern

CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=abc", "pattern=NC"]
CELL += ["preset=smoke", "device=cpu"]


@pytest.fixture(autouse=True)
def _results(tmp_path):
    (tmp_path / "results" / "local").mkdir(parents=True)
    (tmp_path / "results" / "local" / "0123.json").write_text("kept")
    (tmp_path / "file").write_text("kept")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("force=maybe", "unable to interpret input, got 'maybe'; for example force=false"),
        (
            "attention.num_landmarks=2.5",
            "Input should be a valid integer, got 2.5; for example attention.num_landmarks=16",
        ),
        ("attention.num_landmarks='8'", "attention.num_landmarks: Input should be a valid integer, got '8'"),
        ("backbone.dropout=1.5", "backbone.dropout: Input should be less than 1, got 1.5"),
        ("backbone.embed_dim=8.5", "should be a valid integer, got 8.5; for example backbone.embed_dim=512"),
        ("backbone.embed_dim=7", "embed_dim"),
        ("backbone.num_heads=0", "num_heads"),
        ("task.pred_len=soon", "task.pred_len: Input should be a valid integer"),
        ("seed=1.5", "seed: Input should be a valid integer, got 1.5; for example seed=1"),
        ("retry=[lost]", "retry must be a list of finished, oom, diverged, failed"),
        ("other_attention=3", "a valid string or Input should be a valid dictionary, got 3"),
        ("other_attention={CS: 3}", "an attention must be a name or a mapping with 'name'"),
        ("trainer.learning_rat=1", "unknown option 'trainer.learning_rat': did you mean 'trainer.learning_rate'"),
        ("~trainer.learning_rate", "'~trainer.learning_rate' removes an option"),
        ("+attention.zzz=1", "attention 'abc' has no option 'zzz'"),
        ("cluster.workers=2", "cluster.workers requires cluster=local"),
        ("logger=false", "unknown logger 'False' (known: csv, tensorboard, wandb)"),
        ("logger.project=a", "logger.project requires logger=wandb"),
        ("trainer={learning_rate: 0.01}", "write one argument per option: `trainer.learning_rate=0.01`"),
        ("trainer.lr=0.1", "did you mean 'trainer.learning_rate'?"),
        ("trainer.optimizer.lr=3", "unknown option 'trainer.optimizer.lr': did you mean 'trainer.learning_rate'?"),
        ("trainer=quick", "unknown trainer 'quick' (known: default)"),
        ("trainer.num_workers=100000", "trainer.num_workers: Input should be less than or equal to 256, got 100000"),
        ("data=3", "data is a group of options: set data.download"),
        ("hydra=3", "cab run does not have Hydra's 'hydra'"),
        ("results_dir=''", "results_dir: String should have at least 1 character, got ''"),
        ("results_dir=file/below", "results_dir: file is not a folder"),
        ("results_dir=" + "x" * 300, "results_dir"),
        ("results_dir=/proc/results", "/proc"),
    ],
    ids=lambda value: value[:40] if "=" in value or "~" in value else "",
)
def test_a_wrong_option_of_a_run_is_one_line(override, words, refused):
    refused("run", *CELL, override, words=[words])


@pytest.mark.parametrize(
    ("cluster", "override", "words"),
    [
        ("local", "cluster.workers=many", "cluster.workers: Input should be a valid integer, got 'many'"),
        ("local", "cluster.workers_per_gpu=0", "workers_per_gpu: Input should be greater than or equal to 1, got 0"),
        ("local", "+cluster.speed=1", "unknown option 'cluster.speed'"),
        ("slurm", "cluster.wait=maybe", "cluster.wait: Input should be a valid boolean"),
        ("slurm", "cluster.gpus=1.5", "cluster.gpus: Input should be a valid integer, got 1.5"),
    ],
)
def test_a_wrong_option_of_a_cluster_is_one_line(cluster, override, words, refused):
    refused("run", *CELL, f"cluster={cluster}", override, words=[words])


@pytest.mark.parametrize(
    ("flag", "override", "words"),
    [
        ("--explain", "device=tpu", "device: Input should be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        ("--dry-run", "engine=quick", "unknown engine 'quick' (known: fairseq, torch)"),
        ("--dry-run", "trainer.optimizer=sgd", "trainer.optimizer: Input should be 'adam' or 'adamw', got 'sgd'"),
    ],
)
def test_what_a_run_refuses_is_refused_without_running(flag, override, words, capsys):
    assert main(["run", *CELL, override, flag]) > 0
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["leaderboard", "--out", "file"], "--out: file is not a folder"),
        (["leaderboard", "--out", ""], "an argument of cab leaderboard is empty"),
        (["leaderboard", "--out="], "an argument of cab leaderboard is empty, '--out='; remove it"),
        (["efficiency", "abc", "--lengths", ","], "an argument of cab efficiency is empty, ','; remove it"),
        (["efficiency", "abc", "--phase=,,"], "an argument of cab efficiency is empty, '--phase=,,'; remove it"),
        (["verify", "abc", "--checks", ","], "an argument of cab verify is empty, ','; remove it"),
        (["score", "--task", ", ,"], "an argument of cab score is empty, ', ,'; remove it"),
        (["run", "--retry", ","], "an argument of cab run is empty, ','; remove it"),
        (["run", "-m", "task=lstf", "seed=,"], "an argument of cab run is empty, 'seed=,'; remove it"),
        (["score", "file/below"], "file/below does not exist: name a folder of records"),
        (["correlation", "nothing"], "nothing does not exist: name a folder of records"),
        (["status", "file"], "file is not a folder"),
        (["score", "--check", "file"], "file is not a valid result record"),
        (["reproduce", "results/local/0123.json"], "is not a valid result record"),
        (["reproduce", "results/local/0123.json", "--results-dir", "file"], "--results-dir: file is not a folder"),
        (["reproduce", "results"], "results is not a file"),
        (["crossover", "results"], "results"),
        (["efficiency", "vanilla", "--out", "file/costs.csv"], "file"),
        (["demo", "--out", "file"], "--out: file is not a folder"),
        (["verify", "abc", "--quik"], "unknown flag '--quik': did you mean '--quick'?"),
        (["data", "get"], "unknown subcommand 'get' (known: download, list, verify)"),
        (["paper", "tabel3"], "unknown subcommand 'tabel3': did you mean 'table3'?"),
        (["paper", "table3", "--formt", "csv"], "unknown flag '--formt': did you mean '--format'?"),
        (["paper", "table3", "--format", "latx"], "unknown --format 'latx': did you mean 'latex'?"),
        (["score", "task=lstf"], "'task=lstf' is written as in cab run; write `--task lstf`"),
        (["list", "abc", "--pattern", "NC"], "--pattern applies to attentions, backbones, tasks, cells"),
        (["run", "--task", "lstf"], "cab run has no flag '--task'; write `task=lstf`"),
        (["run", "--lr", "0.1", "task=lstf"], "cab run has no flag '--lr'; write `trainer.learning_rate=0.1`"),
        (["run", "--batch-size=4", "task=lstf"], "write `trainer.batch_size=4`"),
        (["run", "preset", "smoke", "task=lstf"], "'preset' has no value; write `preset=smoke`"),
        (["run", "preset", "task=lstf"], "'preset' has no value; write `preset=VALUE`"),
        (["run", "suite", "paper"], "'suite' has no value; write `suite=NAME` (core, mini, paper)"),
        (["run", "task=lstf", "synthetic"], "cannot read the override 'synthetic'; write `dataset=synthetic`"),
        (
            ["run", "-m", "task=lstf,", "pcc"],
            "cannot read the override 'task=lstf,'; remove the comma, or the space after it",
        ),
        (["efficiency", "abc", "--lengths", "256,512"], "separate the values by spaces: `--lengths 256 512`"),
        (["list", "attention", "--pattern", "NC"], "unknown table 'attention': did you mean 'attentions'?"),
        (["run", "lr=0.1"], "unknown option 'lr': did you mean 'trainer.learning_rate'?"),
        (["run", "batch_size=8"], "did you mean 'trainer.batch_size'?"),
        (["run", "epochs=3"], "did you mean 'trainer.max_epochs'?"),
        (["run", "gpus=2"], "did you mean 'cluster.gpus'?"),
        (["run", "model=informer"], "did you mean 'backbone'?"),
        (["run", "cluster=slrm", "--help"], "unknown cluster 'slrm': did you mean 'slurm'?"),
        (["scor"], "did you mean 'score'"),
        (["verify"], "name an attention: `cab verify abc`"),
        (["run", "attention=abd", "--help"], "did you mean 'abc'"),
        (["run", "-m", "attention=vanila", "task=lstf"], "'vanilla'"),
        (["run", "task=lstf", "attention=abc", "tune=true"], "add suite=core"),
        (["run", "suite=core", "attention=abc", "tune=maybe"], "tune"),
        (["data", "verify", "ljspeach", "--data-root", "."], "unknown data set 'ljspeach': did you mean 'ljspeech'?"),
        (["data", "verify", "etth1"], "the folder of the data sets is not set: use --data-root DATA or set CAB_DATA"),
        (["run", "suite=core", "atention=abc"], "attention=NAME, which `cab run suite=core atention=abc` lacks"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(arguments, words, refused):
    refused(*arguments, words=[words])


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


def test_an_unknown_pattern_names_all(refused):
    refused(
        "score",
        "--pattern",
        "NS,SN",
        words=["unknown pattern 'SN': did you mean", "Known: CC, CS, NC, NS, causal_cross"],
    )


def test_a_task_names_its_backbones(refused):
    words = "name a backbone: backbone=NAME, one of fastspeech2, transformer_tts\n"
    refused("run", "task=tts", "dataset=synthetic", "attention=abc", "pattern=NS", words=[words])


@pytest.mark.parametrize("what", ["list tasks", "list cells", "list backbones", "list attentions", "data list"])
def test_lists_fit_the_terminal(what, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(what.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 10 < len(lines) < 140
    assert max(map(len, lines)) <= 100


def test_paths_of_examples_work_in_every_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["crossover", "results/paper/efficiency_cost.csv", "--protocol", "paper", "--csv"]) == 0
    assert "abc,NS,forward,time,1877" in capsys.readouterr().out
    (tmp_path / "results/paper").mkdir(parents=True)
    assert results_path("results/paper") == Path("results/paper")


def test_control_characters_reach_no_terminal(refused):
    said = refused("score", "no\x1b[31mthing\nhere\x07", words=[r"no\x1b[31mthing here\x07 does not exist"])
    assert "\x1b" not in said


def test_ctrl_c_says_how_to_resume(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cab.runner.launch.run_sweeps", interrupted)
    for command in (["run", *CELL], ["demo"]):
        assert main(command) == 130
        assert capsys.readouterr().err == "cab: interrupted; repeat the command to resume from the last checkpoint\n"
    monkeypatch.setattr("cab.cli.score.run", interrupted)
    assert main(["score"]) == 130
    assert capsys.readouterr().err == "cab: interrupted\n"
