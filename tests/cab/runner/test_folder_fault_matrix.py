"""Signals, kills and full disks at each write of a run: whole records or none, and the repeated command finishes."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cab import UserError
from cab.errors import Preempted
from cab.runner.folder import cell_statuses
from cab.runner.run import run_cell
from tests.helpers.runs.full_disk import FULL, FullDisk
from tests.helpers.runs.troubled import trained

MOMENTS = ("cell.json", "step-00000002.ckpt", "best-00000003.pt", "weights.pt", "RECORD")
"""Files whose replacement is interrupted; RECORD is the record itself."""
QUICK = {(signal.SIGTERM, True), (signal.SIGKILL, False)}
SETTINGS = ("trainer.validate_every=3", "trainer.checkpoint_every=2")


def interrupted(config: dict[str, Any], number: signal.Signals, name: str) -> int:
    """Run a cell in a child that gets a signal just before it replaces a file; return its exit code."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # a fork has no other threads
        pending = [number]

        def hook(event, arguments):
            if event == "os.rename" and str(arguments[1]).endswith(name) and pending:
                os.kill(os.getpid(), pending.pop())

        sys.addaudithook(hook)
        status = 0
        try:
            run_cell(config)
        except (Preempted, KeyboardInterrupt):
            status = 75
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("number", "is_replaced"),
    [
        pytest.param(number, is_replaced, marks=() if (number, is_replaced) in QUICK else pytest.mark.slow)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        for is_replaced in (False, True)
    ],
)
def test_an_interrupted_run_ends_as_one_that_is_not(moment, number, is_replaced, calm, troubled, tmp_path):
    """With force, the record of the earlier run stays until it is replaced."""
    path = tmp_path / f"{calm.hash}.json"
    config = troubled(*SETTINGS, f"force={str(is_replaced).lower()}")
    if is_replaced:
        run_cell(troubled(*SETTINGS))
    old = path.read_bytes() if is_replaced else b""
    status = interrupted(config, number, path.name if moment == "RECORD" else moment)
    assert status in ((-number,) if number is signal.SIGKILL else (75,) if ".ckpt" in moment else (0, 75, -number))
    if status:
        assert (path.read_bytes() if path.exists() else b"") == old
        assert [found.status for found in cell_statuses(tmp_path)] in (["interrupted"], ["finished"] * is_replaced)
    (tmp_path / calm.hash / ".weights.pt-0000.tmp").write_text("of a killed process")
    again = trained(config)
    assert (again.metrics, again.history) == (calm.metrics, calm.history)
    assert [found.status for found in cell_statuses(tmp_path)] == ["finished"]
    assert path.read_bytes() != old or not status
    assert not list(tmp_path.rglob("*.tmp")) or not status


@pytest.mark.parametrize("kind", ["best", "average"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_checkpoint_without_its_weights_is_skipped(kind, is_missing, troubled, tmp_path, caplog):
    settings = [f"trainer.checkpoint_selection={kind}", "trainer.checkpoint_every=1", "trainer.validate_every=1"]
    settings += ["trainer.average_every=1", "trainer.average_count=8"] if kind == "average" else []
    calm = trained(troubled(*settings, f"results_dir={tmp_path / 'calm'}"))
    failed = trained(troubled(*settings, "retry=[failed]", trouble="crash"))
    weights = next((tmp_path / failed.hash).glob(f"{kind}-*.pt"))
    if is_missing:
        weights.unlink()
    else:  # of another run, in a copied folder
        state = torch.load(weights)
        torch.save({name: value + 1 for name, value in state.items()}, weights)
    record = trained(troubled(*settings, "retry=[failed]"))
    assert f"{weights.name} is missing or changed since it was saved" in caplog.text
    assert (record.metrics, record.history) == (calm.metrics, calm.history)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The record of a run that nothing interrupts."""
    from tests.helpers.runs.fixtures import troubled_config

    return trained(troubled_config(*SETTINGS, f"results_dir={tmp_path_factory.mktemp('calm')}"))


@pytest.mark.skipif(not Path(FULL).exists(), reason=FULL)
@pytest.mark.parametrize("start", [1, *(pytest.param(start, marks=pytest.mark.slow) for start in (2, 3, 4))])
def test_a_disk_that_is_full_at_any_write_is_one_line_and_loses_nothing(start, calm, troubled, tmp_path, monkeypatch):
    """Every fourth write from ``start``, until a run has fewer writes."""
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    failures = 0
    for number in itertools.count(start, 4):
        results = tmp_path / f"full at {number}"
        config = troubled(*SETTINGS, f"results_dir={results}")
        disk = FullDisk(tmp_path, at=number)
        with disk.mounted():
            message = ""
            try:
                run_cell(config)
            except UserError as error:
                message = str(error)
        if message:
            failures += 1
            assert message.startswith("no space left")
            assert not (results / f"{calm.hash}.json").exists()
        if not disk.was_met:
            break
        record = trained(config)
        assert record.metrics == calm.metrics, results
    assert failures > 1
