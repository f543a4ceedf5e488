"""Cells of the troubled task, which is registered for these tests alone."""

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cab import register_task
from cab.config.compose import Composer
from cab.records.identity import Program
from cab.records.record import Record
from cab.registry.registries import TASKS
from cab.registry.tables import config_folders
from cab.runner import provenance
from cab.runner.cell import Cell
from tests.helpers.command import COPIES
from tests.helpers.runs.troubled import Troubled, trained


def edit_program(patch: pytest.MonkeyPatch, edit: Callable[[Program], Program]) -> None:
    """Let every run have the program that ``edit`` makes of its own."""
    original = provenance.program_of

    def program_of(cell: Cell, **options: Any) -> Program:
        return edit(original(cell, **options))

    for module in ("provenance", "run"):
        patch.setattr(f"cab.runner.{module}.program_of", program_of)


@pytest.fixture(scope="package", autouse=True)
def registered() -> Iterator[None]:
    TASKS.names()  # finds those of the packages before one more is added
    register_task("troubled", paper="none", datasets="synthetic", backbones={"gpt2": "CS"})(Troubled)
    point = EntryPoint("troubled", "tests.helpers.runs.troubled_configs", "cab.configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.registry.tables.entry_points", lambda group: [point] if group == point.group else [])
        patch.setattr("cab.runner.pool.SPAWN", COPIES)  # a new Python takes seconds
        patch.setattr("engines.torch.loop.frozen_objects", contextlib.nullcontext)  # half of the time of a short run
        config_folders.cache_clear()
        yield
    config_folders.cache_clear()
    del TASKS._entries["troubled"]


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a third of a run of a forecast in preset smoke; tests/tasks looks at what is drawn."""
    monkeypatch.setattr("tasks.lstf.task.draw_grid", lambda _columns, _draw, path, **_: path.write_bytes(b"a picture"))


TROUBLED = ["task=troubled", "dataset=synthetic", "backbone=gpt2", "attention=vanilla", "pattern=CS", "preset=smoke"]
TROUBLED += ["device=cpu", "trainer.batch_size=4", "trainer.max_steps=8"]
compose = Composer()


@functools.cache
def _composed(*overrides: str) -> str:
    return json.dumps(compose([*TROUBLED, "results_dir=SOMEWHERE", *overrides]))


def troubled_config(*overrides: str) -> dict[str, Any]:
    """A cell of the troubled task with eight short steps; composed once, whatever the folder of its results."""
    folders = [word for word in overrides if word.startswith("results_dir=")]
    composed = _composed(*(word for word in overrides if word not in folders))
    config: dict[str, Any] = json.loads(composed.replace("SOMEWHERE", folders[-1].removeprefix("results_dir=")))
    return config


@pytest.fixture(scope="package")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of this cell without trouble."""
    return trained(troubled_config(f"results_dir={tmp_path_factory.mktemp('uncut')}"))


@pytest.fixture
def recorded(uncut: Record, tmp_path: Path) -> Path:
    """This record, with the folder of its run, in the folder of the test."""
    shutil.copytree(uncut.config["results_dir"], tmp_path, dirs_exist_ok=True)
    return tmp_path / f"{uncut.hash}.json"


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The configuration of a cell; ``trouble`` is what happens in it."""

    def cell(*overrides: str, trouble: str = "") -> dict[str, Any]:
        monkeypatch.setattr(Troubled, "trouble_now", trouble)
        return troubled_config(f"results_dir={tmp_path}", *overrides)

    return cell
