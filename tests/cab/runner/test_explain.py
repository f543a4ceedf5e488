"""`cab run ... --explain` names a source for every value, and the source says that value."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import yaml

from cab.cli.main import main
from cab.config.compose import PRESETS
from cab.files.config_folders import CONFIGS
from cab.registry.registries import ATTENTIONS, TASKS
from cab.runner.explain import COMMAND_LINE, MISSING, Setting, explain

ROOT = CONFIGS.parent
REAL = {
    task.name: next((name for name in task.datasets if name != "synthetic"), "synthetic")
    for task in TASKS
    if task.paper != "none"
}


def overrides(task: str, backbone: str, attention: str, preset: str) -> list[str]:
    pattern = TASKS.get(task).backbones[backbone][0]
    cell = [f"task={task}", f"dataset={REAL[task]}", f"backbone={backbone}", f"pattern={pattern}"]
    return [*cell, f"attention={attention}", f"preset={preset}", "data_root=DATA"]


def says(setting: Setting) -> bool:
    """Whether the file and line, or the row, that the source names has the value."""
    if setting.source == COMMAND_LINE:
        return True
    row = re.match(r"configs/(\S+\.csv), (.*?)(?:, column (\w+))?(?: \(.*\))?(?:; by \S+)?$", setting.source)
    if row is not None:
        table, where, column = row.groups()
        wanted = dict(each.split("=") for each in where.split())
        with (CONFIGS / table).open(newline="") as file:
            rows = [each for each in csv.DictReader(file) if wanted.items() <= each.items()]
        values = [each[column or "value"] for each in rows]
        expected = [yaml.safe_load(value) if value else None for value in values]
        return setting.value in expected or (isinstance(setting.value, list) and setting.value[0] in expected)
    line = re.fullmatch(r"(configs/\S+\.yaml):(\d+)", setting.source)
    assert line is not None, setting
    content = yaml.safe_load((ROOT / line[1]).read_text())
    for key in setting.name.split("."):
        content = content[key]
    key = setting.name.rpartition(".")[2]
    return content == setting.value and f"{key}:" in (ROOT / line[1]).read_text().splitlines()[int(line[2]) - 1]


CELLS = [(task, backbone, preset) for preset in PRESETS for task in REAL for backbone in TASKS.get(task).backbones]
QUICK = {("lstf", "informer", "paper"), ("tts", "fastspeech2", "mini"), ("sr", "sr3", "smoke")}


@pytest.mark.parametrize(
    ("task", "backbone", "preset"),
    [pytest.param(*cell, marks=[] if cell in QUICK else pytest.mark.slow) for cell in CELLS],
)
def test_every_value_that_differs_from_a_default_has_a_source_that_says_it(
    task: str, backbone: str, preset: str
) -> None:
    chosen = overrides(task, backbone, "local", preset)
    settings = explain(chosen)
    for setting in settings:
        if setting.source.startswith("default of "):
            assert setting.is_default, setting
        elif not setting.is_default:
            assert says(setting), setting
    typed = {setting.name for setting in settings if setting.source == COMMAND_LINE}
    groups = {f"{group}.name" for group in ("task", "dataset", "backbone", "attention")}
    assert typed == {*groups, "pattern", "preset", "data_root"}
    assert sum(not setting.is_default for setting in settings) >= 10


def test_each_kind_of_source() -> None:
    chosen = overrides("lstf", "informer", "abc", "paper")
    found = {s.name: s for s in explain([*chosen, "seed=3", "trainer.max_epochs=2", "logger=wandb"], added=[chosen[2]])}
    sources = {name: setting.source for name, setting in found.items()}
    assert sources["seed"] == sources["trainer.max_epochs"] == sources["logger.name"] == COMMAND_LINE
    assert sources["backbone.name"] == "the only one of the task"
    assert sources["backbone.embed_dim"] == "default of backbones.informer"
    assert sources["trainer.eps"].startswith("default of configs/trainer/default.yaml:")
    assert sources["trainer.schedule"].startswith("configs/recipe/lstf/paper.yaml:")
    assert sources["other_attention.NS.sampled"].startswith("configs/recipe/lstf/paper.yaml:")
    table = "configs/paper/table4.csv, task=lstf, column learning_rate; by configs/recipe/lstf/paper.yaml:"
    assert sources["trainer.learning_rate"].startswith(table)
    window = "configs/paper/lstf.csv, dataset=etth1 features=M, column seq_len (Table 1; Informer scripts); by "
    assert sources["task.seq_len"].startswith(window)
    assert found["trainer.max_epochs"].default is None
    assert found["trainer.max_epochs"].texts == ("2", "null")
    assert found["pattern"].default == found["task.name"].default == MISSING
    assert found["preset"].texts == ("paper", "mini")


def test_options_of_the_tables() -> None:
    """Of Table 5, and of the suite in preset mini."""
    for preset, file in (("paper", "configs/paper/table5.csv"), ("mini", "configs/suite/options.csv")):
        found = {s.name: s for s in explain(overrides("tts", "fastspeech2", "local", preset))}
        assert found["attention.window_size"].source.startswith(f"{file}, ")
        assert found["attention.window_size"].default == ATTENTIONS.get("local").options["window_size"]


def test_data_root_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAB_DATA", "somewhere")
    chosen = overrides("lstf", "informer", "abc", "smoke")[:-1]
    assert {s.name: s.source for s in explain(chosen)}["data_root"] == "environment variable CAB_DATA"
    monkeypatch.delenv("CAB_DATA")
    assert {s.name: s.source for s in explain(chosen)}["data_root"].startswith("default of configs/run.yaml:")


def test_the_command_prints_a_table_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "--explain"]
    assert main(["run", *chosen]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["setting", "value", "default", "source"]
    assert re.search(r"^backbone.name +informer +the only one of the task$", said, flags=re.MULTILINE)
    assert main(["run", "-m", *chosen]) == 2
    assert "--explain prints one configuration" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
