"""A folder of configurations of a user."""

import pytest

from cab.config.compose import groups_with_files
from cab.registry import tables

EXPERIMENT = """
# @package _global_
defaults:
  - override /task: lstf
  - override /dataset: synthetic
  - override /backbone: informer
  - override /attention: abc
  - override /preset: tiny
pattern: NC
trainer: {learning_rate: 0.003, betas: [0.5, 0.9], max_steps: 2}
attention: {num_landmarks: 5}
"""


@pytest.fixture
def read_again():
    """Folders of configurations are read again, both in the test and after it."""
    caches = (tables.config_folders, tables.read_rows, groups_with_files)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def own_configs(tmp_path, monkeypatch, read_again):  # noqa: ARG001
    """A folder with an experiment and a preset, in the working folder."""
    monkeypatch.setenv(tables.ADDED, "")
    monkeypatch.chdir(tmp_path)
    files = {
        "experiment/mine.yaml": EXPERIMENT.lstrip(),
        "preset/tiny.yaml": (tables.CONFIGS / "preset/smoke.yaml").read_text().replace("smoke", "tiny"),
        "recipe/lstf/tiny.yaml": (tables.CONFIGS / "recipe/lstf/smoke.yaml").read_text(),
        "size/informer/tiny.yaml": (tables.CONFIGS / "size/informer/smoke.yaml").read_text(),
    }
    folder = tmp_path / "own settings"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
