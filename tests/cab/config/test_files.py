"""Settings in files are the same configuration as on the command line, which wins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cab.cli.main import main
from cab.errors import UserError
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


def test_experiments_and_presets_of_ones_own(own_configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "--config-dir", str(own_configs), "experiment=mine", "trainer.betas=[0.7,0.9]")
    expected = printed(
        capsys,
        *[option.replace("smoke", "tiny") for option in CELL],
        *["trainer.learning_rate=0.003", "trainer.betas=[0.7,0.9]", "attention.num_landmarks=5", "trainer.max_steps=2"],
    )
    assert found == expected
    assert found["preset"] == "tiny"


def test_unreadable_folder_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tables.ADDED, "missing")
    tables.config_folders.cache_clear()
    with pytest.raises(UserError, match="the folder of configurations missing does not exist"):
        tables.config_folders()
    tables.config_folders.cache_clear()
