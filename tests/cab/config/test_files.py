"""Settings in files are the same configuration as on the command line, which wins."""

from __future__ import annotations

import os

import pytest
import yaml

from cab.cli.main import main
from cab.registry import tables

pytestmark = pytest.mark.usefixtures("own_configs")
CELL = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    tables.config_folders.cache_clear()
    capsys.readouterr()
    assert main(["run", *arguments, "--cfg", "job"]) == 0
    config: dict[str, object] = yaml.safe_load(capsys.readouterr().out)
    return config


@pytest.mark.parametrize(
    "options",
    [
        [],
        [
            *("seed=7", "attention.num_landmarks=3", "trainer.betas=[0.1,0.2]", "other_attention.CS=local"),
            *("results_dir='a b, c'", "logger=wandb", "logger.tags=[x,'y z']"),
        ],
    ],
)
def test_a_saved_configuration_is_repeated(options, tmp_path, capsys):
    saved = printed(capsys, *CELL, *options)
    (tmp_path / "saved.yaml").write_text(yaml.safe_dump(saved))
    assert printed(capsys, "--config", "saved.yaml") == saved
    changed = printed(capsys, "--config", "saved.yaml", "attention=vanilla", "seed=9")
    assert (changed["attention"], changed["seed"]) == ({"name": "vanilla"} | dict(changed["attention"]), 9)
    assert "num_landmarks" not in changed["attention"]


def test_experiments_and_presets_of_ones_own(own_configs, capsys):
    found = printed(capsys, "--config-dir", str(own_configs), "experiment=mine", "trainer.betas=[0.7,0.9]")
    expected = printed(
        capsys,
        *["--config-dir", str(own_configs)],
        *[option.replace("smoke", "tiny") for option in CELL],
        *["trainer.learning_rate=0.003", "trainer.betas=[0.7,0.9]", "attention.num_landmarks=5", "trainer.max_steps=2"],
    )
    assert found == expected
    assert found["preset"] == "tiny"


def test_a_folder_of_configurations_is_added_for_one_command(own_configs, capsys, cab):
    before = tables.config_folders(), tables.presets(), os.environ.get(tables.ADDED)
    assert printed(capsys, "--config-dir", str(own_configs), "experiment=mine")["preset"] == "tiny"
    assert (tables.config_folders(), tables.presets(), os.environ.get(tables.ADDED)) == before
    assert "unknown experiment 'mine'" in cab("run", "experiment=mine", "--cfg", "job", status=2).err


MISTAKES = [
    ("attention: {window_sizes: 3}", "attention 'local' has no option 'window_sizes'"),
    ("attention: {window_size: three}", "attention.window_size: Input should be a valid integer, got 'three'"),
    ("trainer: {max_steps: ten}", "trainer.max_steps: Input should be a valid integer, got 'ten'"),
    ("trainer: {max_stepz: 3}", "unknown option 'trainer.max_stepz': did you mean 'trainer.max_steps'?"),
    ("seed: two", "seed: Input should be a valid integer, got 'two'"),
]


@pytest.mark.parametrize(
    ("place", "line", "message"),
    [
        (place, *row)
        for place, rows in (("experiment", MISTAKES[:2]), ("preset", MISTAKES[1:4:2]), ("config", MISTAKES[2::2]))
        for row in rows
    ],
)
def test_a_mistake_in_a_file_names_the_file(place, line, message, tmp_path, capsys):
    file = tmp_path / ("preset" if place == "preset" else "experiment") / "mine.yaml"
    file.parent.mkdir()
    header = "# @package _global_\ndefaults: [smoke, _self_]\n" if place == "preset" else ""
    file.write_text(f"{header}{line.replace('attention: {', 'attention: {name: local, ') if not header else line}\n")
    chosen = ["preset=mine"] if place == "preset" else ["preset=smoke", "experiment=mine"]
    more = ["--config", str(file), "preset=smoke"] if place == "config" else ["--config-dir", str(tmp_path), *chosen]
    cell = ["task=lstf", "dataset=synthetic", "pattern=NS"]
    named = [] if "attention" in line and not header else ["attention=local"]
    for mode in ([], ["-m"]):
        assert main(["run", *mode, *cell, *named, *more, "--dry-run", f"results_dir={tmp_path}"]) == 2
        [said] = [text for text in capsys.readouterr().err.splitlines() if text.startswith("cab: ")]
        assert said.startswith(f"cab: error: {file}: {message}")
    key, _, value = line.partition(": ")
    option = f"{key}.{value[1:-1]}".replace(": ", "=") if value[0] == "{" else f"{key}={value}"
    assert main(["run", *cell, "attention=local", "preset=smoke", option, "--cfg", "job"]) == 2
    assert str(file) not in capsys.readouterr().err, "the command line has the mistake"


def test_a_mistake_of_the_command_line_is_not_that_of_a_file(tmp_path, capsys):
    """Which sets an option of the same name in another group."""
    file = tmp_path / "job.yaml"
    file.write_text("defaults:\ntrainer: {max_steps: 2}\n")
    cell = ["task=lstf", "dataset=synthetic", "pattern=NS", "attention=local", "preset=smoke", "--config", str(file)]
    assert main(["run", *cell, "attention.max_steps=3", "--cfg", "job"]) == 2
    assert "cab: error: attention 'local' has no option 'max_steps'" in capsys.readouterr().err
