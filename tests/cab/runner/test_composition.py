"""Cells that differ in their attention alone share a composition: what comes of it is what Hydra alone would make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from cab.config import composer
from cab.config.compose import register_configs, resolve
from cab.config.composer import ConfigComposer
from cab.files.config_folders import CONFIGS
from cab.runner.sweep import expand


@pytest.fixture(autouse=True)
def _configs() -> Iterator[None]:
    register_configs()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The attentions that Hydra was asked to compose."""
    asked: list[str] = []

    def counted(name: str, overrides: list[str]) -> DictConfig:
        asked.extend(override for override in overrides if override.startswith("attention="))
        return compose(name, overrides=overrides)

    monkeypatch.setattr(composer, "compose", counted)
    return asked


@pytest.mark.parametrize(
    ("sweep", "compositions"),
    [
        (["task=lstf,sr", "pattern=NS", "preset=paper", "attention=abc,performer,probsparse"], 6),
        (["task=lm", "dataset=synthetic", "preset=mini", "attention=abc,none,local", "seed=1,2"], 2),
        (["task=lm", "dataset=synthetic", "attention=abc,local", "attention.num_landmarks=8,16"], 3),
        (["task=lm", "dataset=synthetic", "attention=abc,linear", "other_attention=local", "trainer.max_steps=3"], 1),
    ],
)
def test_the_configurations_are_those_of_hydra(sweep: list[str], compositions: int, composed: list[str]) -> None:
    cells, _ = expand(sweep)
    assert len(cells) > 1
    composer = ConfigComposer()
    shared = [composer.compose(cell) for cell in cells]
    assert len(composed) == compositions
    assert shared == [resolve(compose("run", overrides=cell)) for cell in cells]
    names = [cell["attention"]["name"] for cell in shared]
    assert len(set(names)) > 1
    assert all(f"attention={name}" in cell for name, cell in zip(names, cells, strict=True))
