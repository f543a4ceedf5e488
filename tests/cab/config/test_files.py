"""Settings in files are the same configuration as on the command line, which wins."""

import os
from typing import Any

import pytest
import yaml

from cab.registry import tables
from tests.helpers.command import Command

pytestmark = pytest.mark.usefixtures("own_configs")
CELL = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke"]
OPTIONS = ["seed=7", "attention.num_landmarks=3", "trainer.betas=[0.1,0.2]", "other_attention.CS=local"]
OPTIONS += ["results_dir='a b, c'", "logger=wandb", "logger.tags=[x,'y z']"]


def printed(cab: Command, *arguments: object) -> dict[str, Any]:
    tables.config_folders.cache_clear()
    return yaml.safe_load(cab("run", *arguments, "--cfg", "job").out)


@pytest.mark.parametrize("options", [[], OPTIONS], ids=["none", "some"])
def test_a_saved_configuration_is_repeated(options, tmp_path, cab):
    saved = printed(cab, *CELL, *options)
    assert saved["attention"].keys() == {"name", "num_landmarks", "short_convolution", "output_gate"}
    assert "${" not in str(saved)
    assert [path.name for path in tmp_path.iterdir()] == ["own settings"]
    (tmp_path / "saved.yaml").write_text(yaml.safe_dump(saved))
    assert printed(cab, "--config", "saved.yaml") == saved
    changed = printed(cab, "--config", "saved.yaml", "attention=vanilla", "seed=9")
    assert (changed["attention"]["name"], changed["seed"]) == ("vanilla", 9)
    assert "num_landmarks" not in changed["attention"]


def test_experiments_and_presets_of_ones_own_folder_are_added_for_one_command(own_configs, cab):
    before = tables.config_folders(), tables.presets(), os.environ.get(tables.ADDED)
    options = ["--config-dir", own_configs, "trainer.betas=[0.7,0.9]"]
    found = printed(cab, *options, "experiment=mine")
    assert (tables.config_folders(), tables.presets(), os.environ.get(tables.ADDED)) == before
    assert "unknown experiment 'mine'" in cab("run", "experiment=mine", "--cfg", "job", status=2).err
    options += [option.replace("smoke", "tiny") for option in CELL]
    options += ["trainer.learning_rate=0.003", "attention.num_landmarks=5", "trainer.max_steps=2"]
    assert found == printed(cab, *options)
    assert found["preset"] == "tiny"


WRONG_SIZE = "attention.window_size: Input should be a valid integer, got 'three'"


@pytest.mark.parametrize(
    ("place", "line", "message"),
    [
        ("experiment", "attention: {name: local, window_sizes: 3}", "attention 'local' has no option 'window_sizes'"),
        ("experiment", "attention: {name: local, window_size: three}", WRONG_SIZE),
        ("preset", "attention: {window_size: three}", WRONG_SIZE),
        ("preset", "trainer: {max_stepz: 3}", "unknown option 'trainer.max_stepz': did you mean 'trainer.max_steps'?"),
        ("config", "trainer: {max_steps: ten}", "trainer.max_steps: Input should be a valid integer, got 'ten'"),
        ("config", "seed: two", "seed: Input should be a valid integer, got 'two'"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(place, line, message, tmp_path, cab):
    file = tmp_path / place / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\ndefaults: [smoke, _self_]\n" * (place == "preset") + f"{line}\n")
    cell = ["task=lstf", "dataset=synthetic", "pattern=NS", *([] if "name:" in line else ["attention=local"])]
    cell += ["preset=mine"] if place == "preset" else ["preset=smoke"]
    cell += ["--config", file] if place == "config" else ["--config-dir", tmp_path]
    cell += ["experiment=mine"] if place == "experiment" else []
    sweep = ["-m"] if "name:" in line or "seed:" in line else []
    err = cab("run", *sweep, *cell, "--dry-run", f"results_dir={tmp_path}", status=2).err
    [said] = [text for text in err.splitlines() if text.startswith("cab: ")]
    assert said.startswith(f"cab: error: {file}: {message}")


def test_a_mistake_of_the_command_line_is_not_that_of_a_file(tmp_path, cab):
    """Which sets an option of the same name in another group."""
    file = tmp_path / "job.yaml"
    file.write_text("defaults:\ntrainer: {max_steps: 2}\n")
    cell = ["task=lstf", "dataset=synthetic", "pattern=NS", "attention=local", "preset=smoke", "--config", str(file)]
    err = cab("run", *cell, "attention.max_steps=3", "--cfg", "job", status=2).err
    assert "cab: error: attention 'local' has no option 'max_steps'" in err
