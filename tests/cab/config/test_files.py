"""Settings in files are the same configuration as on the command line, which wins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cab.cli.main import main
from cab.config.compose import _groups_with_files
from cab.errors import UserError
from cab.registry import tables

CELL = ["task=lstf", "dataset=synthetic", "attention=abc", "pattern=NC", "preset=smoke"]
EXPERIMENT = """
# @package _global_
defaults:
  - override /task: lstf
  - override /attention: abc
dataset: {name: synthetic}
pattern: NC
preset: tiny
trainer: {learning_rate: 0.003, betas: [0.5, 0.9]}
attention: {num_landmarks: 5}
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of configurations are read again, here and in later tests."""
    monkeypatch.setenv(tables.ADDED, "")
    monkeypatch.chdir(tmp_path)
    caches = (tables.config_folders, tables.read_rows, _groups_with_files)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    tables.config_folders.cache_clear()
    capsys.readouterr()
    assert main(["run", *arguments, "--cfg", "job"]) == 0
    config: dict[str, object] = yaml.safe_load(capsys.readouterr().out)
    return config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "own settings"
    files = {
        "experiment/mine.yaml": EXPERIMENT,
        "preset/tiny.yaml": "# @package _global_\npreset: tiny\n",
        "recipe/lstf/tiny.yaml": (tables.CONFIGS / "recipe/lstf/smoke.yaml").read_text(),
        "size/informer/tiny.yaml": (tables.CONFIGS / "size/informer/smoke.yaml").read_text(),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["seed=7", "attention.num_landmarks=3", "trainer.betas=[0.1,0.2]", "other_attention.CS=local"],
        ["results_dir='a b, c'", "logger=wandb", "logger.tags=[x,'y z']"],
    ],
)
def test_a_saved_configuration_is_repeated(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = printed(capsys, *CELL, *options)
    (tmp_path / "saved.yaml").write_text(yaml.safe_dump(saved))
    assert printed(capsys, "--config", "saved.yaml") == saved
    changed = printed(capsys, "--config", "saved.yaml", "attention=vanilla", "seed=9")
    assert (changed["attention"], changed["seed"]) == ({"name": "vanilla"} | dict(changed["attention"]), 9)  # type: ignore[call-overload]
    assert "num_landmarks" not in changed["attention"]  # type: ignore[operator]


def test_experiments_and_presets_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "--config-dir", str(folder), "experiment=mine", "trainer.betas=[0.7,0.9]")
    expected = printed(
        capsys,
        *[option.replace("smoke", "tiny") for option in CELL],
        *["trainer.learning_rate=0.003", "trainer.betas=[0.7,0.9]", "attention.num_landmarks=5"],
    )
    assert found == expected
    assert found["preset"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment=x"], "unknown experiment 'x': Known: none; put experiment/NAME.yaml into a folder"),
        (["--config-dir", "nowhere"], "the folder of configurations nowhere does not exist"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read as YAML"),
        (["--config", "list.yaml"], "list.yaml has no settings"),
        (["hydra/launcher=joblib"], "does not have; set cluster=local"),
        (["hydra.run.dir=x"], "does not have; set results_dir=FOLDER"),
        (["hydra.verbose=true"], "does not have; the configuration reference"),
        (["+trainer.foo=3", "--cfg", "job"], "unknown option 'trainer.foo'"),
        (["trainer.optimizer.lr=3"], "Could not override 'trainer.optimizer.lr'\n"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert main(["run", *CELL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_unreadable_folder_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tables.ADDED, "missing")
    tables.config_folders.cache_clear()
    with pytest.raises(UserError, match="the folder of configurations missing does not exist"):
        tables.config_folders()
    tables.config_folders.cache_clear()
