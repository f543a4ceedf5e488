"""`cab run ... --explain` prints every setting with its default and its source."""

import re

from cab.runner.launch import explain

CELL = ["task=lstf", "dataset=etth1", "backbone=informer", "pattern=NS", "attention=abc", "data_root=DATA"]


def test_each_value_has_a_default_and_the_file_that_sets_it():
    overrides = [*CELL, "preset=paper", "seed=3", "trainer.max_epochs=2", "logger=wandb"]
    rows = {name: row for name, *row in explain(overrides, added=[CELL[2]])}
    given = {"seed": ["3", "1"], "trainer.max_epochs": ["2", "null"], "logger.name": ["wandb", "csv"]}
    given |= {"preset": ["paper", "mini"], "pattern": ["NS", ""]}
    assert {name: rows[name] for name in given} == {name: [*row, "command line"] for name, row in given.items()}
    assert rows["backbone.name"] == ["informer", "", "the only one of the task"]
    assert rows["backbone.embed_dim"] == ["512", "", "default of backbones.informer"]
    assert rows["trainer.eps"][1:] == ["", "default of configs/trainer/default.yaml"]
    assert rows["trainer.schedule"] == ["late_exponential", "constant", "configs/recipe/lstf/paper.yaml"]
    assert rows["other_attention.NS.sampled"][2] == "configs/recipe/lstf/paper.yaml"
    for name, (_, default, source) in rows.items():
        assert not default or "${" in default or not source.startswith("default of"), name


def test_options_of_the_tables():
    cell = ["task=tts", "dataset=ljspeech", "backbone=fastspeech2", "pattern=NS", "attention=local"]
    for preset, file in (("paper", "configs/paper/table5.csv"), ("mini", "configs/suite/options.csv")):
        rows = {name: row for name, *row in explain([*cell, f"preset={preset}"])}
        value, default, source = rows["attention.window_size"]
        assert source == file
        assert default
        assert value != default


def test_the_command_prints_a_table_and_runs_nothing(tmp_path, monkeypatch, cab):
    monkeypatch.chdir(tmp_path)
    said = cab("run", "task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "--explain").out
    assert said.splitlines()[0].split() == ["setting", "value", "default", "source"]
    assert re.search(r"^backbone.name +informer +the only one of the task$", said, flags=re.MULTILINE)
    assert not list(tmp_path.iterdir())
