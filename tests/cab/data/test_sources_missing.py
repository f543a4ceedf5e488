"""What a run says where data are missing, and that it fetches nothing unless it is told to."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest

from cab.config.compose import compose
from cab.data.sources import data_sets
from cab.errors import UserError
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from cab.runner.cell import Cell
from cab.runner.engine import load_data
from tests.helpers.data.hosts import Host

CELLS = [  # a probe makes all of its data sets
    (task.name, name) for task in TASKS if task.name != "probe" for name in task.datasets if not is_generated(name)
]
OVERRIDES = ("task=lstf", "backbone=informer", "attention=vanilla", "pattern=NC", "preset=smoke", "device=cpu")


@functools.cache
def config(dataset: str) -> dict[str, Any]:
    return compose([*OVERRIDES, f"dataset={dataset}"])


def cell(dataset: str, root: Path | None, **data: Any) -> Cell:
    return Cell.from_config({**config(dataset), "data_root": root and str(root), "data": data})


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(("task", "dataset"), CELLS)
def test_the_first_thing_to_do_is_to_get_it(task: str, dataset: str, tmp_path: Path) -> None:
    for root, place in ((None, "FOLDER"), (tmp_path, str(tmp_path))):
        with pytest.raises(UserError) as error:
            TASKS.get(task).build(dataset=dataset).setup(root)
        assert "\n" not in str(error.value)
        said, _, fixes = str(error.value).partition(": cab data download ")
        assert "data_root" not in said, "another advice comes first"
        assert fixes.startswith(f"{dataset} --data-root {place}; ")
    assert not list(tmp_path.iterdir())


def test_it_is_brought_where_the_run_is_told_to(
    host: Host, official_layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (official_layout / "lstf" / "ETTh1.csv").read_bytes()
    host.files["ETTh1.csv"] = content
    each = data_sets()["etth1"]
    facts: dict[str, Any] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    item = dataclasses.replace(each.items[0], address=f"{host.address}/ETTh1.csv", **facts)
    known = {**data_sets(), "etth1": dataclasses.replace(each, items=[item])}
    monkeypatch.setattr("cab.data.sources.data_sets", lambda: known)
    told, untold = (cell("etth1", tmp_path, download=download) for download in ("yes", False))
    assert told.hash == untold.hash, "where its data come from is no part of what a cell is"
    with pytest.raises(UserError, match="cab data download etth1"):
        load_data(untold)
    assert host.requests == []
    for _ in range(2):
        load_data(told)
    assert len(host.requests) == 1
    load_data(cell("synthetic", None, download=True))  # needs nothing


def test_tokenizers_are_brought_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr("cab.data.download.download", lambda each, _: (names.append(each.name), []))
    overrides = ["task=lm", "dataset=pg19", "attention=vanilla", "pattern=CS", "preset=paper", f"data_root={tmp_path}"]
    with pytest.raises(UserError, match="cab data download gpt2_bpe"):
        load_data(Cell.from_config(compose([*overrides, "data.download=true"])))
    assert names == ["pg19", "gpt2_bpe"]


@pytest.mark.usefixtures("_no_network")
def test_what_cannot_be_brought_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^data.download=true requires a folder for the data: set data_root=FOLDER or CAB_DATA"
    ):
        load_data(cell("weather", None, download=True))
    words = "^weather must be downloaded manually: download WTH.csv from https://.*; then: "
    words += f"`cab data download weather --data-root {tmp_path} --source DOWNLOADED_FILE_OR_FOLDER`$"
    with pytest.raises(UserError, match=words):
        load_data(cell("weather", tmp_path, download=True))
    with pytest.raises(UserError, match=r"data.download: Input should be a valid boolean, .*got 'perhaps'"):
        cell("weather", tmp_path, download="perhaps")
