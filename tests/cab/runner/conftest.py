"""Cells of the troubled task, registered for these tests alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cab import register_attention, register_task
from cab.config.compose import compose
from cab.records.record import Record
from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.tables import config_folders
from tests.cab.runner.learning_attention import Learning
from tests.cab.runner.troubled import Troubled, trained


@pytest.fixture(scope="package", autouse=True)
def _registered() -> Iterator[None]:
    TASKS.names()  # finds those of the packages before one more is added
    register_task("troubled", paper="none", datasets="synthetic", backbones={"gpt2": "CS"})(Troubled)
    ATTENTIONS.names()
    register_attention("learning", patterns="CS", complexity="n^2", paper="none")(Learning)
    point = EntryPoint("troubled", "tests.cab.runner.troubled_configs", "cab.configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.registry.tables.entry_points", lambda group: [point] if group == point.group else [])
        config_folders.cache_clear()
        yield
    config_folders.cache_clear()
    del TASKS._entries["troubled"]
    del ATTENTIONS._entries["learning"]


TROUBLED = ["task=troubled", "dataset=synthetic", "backbone=gpt2", "attention=vanilla", "pattern=CS", "preset=smoke"]
TROUBLED += ["device=cpu", "trainer.batch_size=4", "trainer.max_steps=8"]


def troubled_config(*overrides: str) -> dict[str, Any]:
    """Compose a cell of the troubled task with eight short steps."""
    return compose([*TROUBLED, *overrides])


@pytest.fixture(scope="package")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of this cell without trouble."""
    return trained(troubled_config(f"results_dir={tmp_path_factory.mktemp('uncut')}"))


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The configuration of a cell; ``trouble`` is what happens in it."""

    def cell(*overrides: str, trouble: str = "") -> dict[str, Any]:
        monkeypatch.setattr(Troubled, "trouble_now", trouble)
        return troubled_config(f"results_dir={tmp_path}", *overrides)

    return cell
