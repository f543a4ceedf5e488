"""Steps on a machine with a GPU: what fails, hangs or crashes costs its own item only, and one file has the rest."""

from __future__ import annotations

import csv
import inspect
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import measurements, supervisor
from tools.gpu.supervisor import STEPS, Results, Step

ROOT = Path(__file__).parents[3]
MEASUREMENTS = "tests.helpers.gpu_measurements"


def call(tmp_path: Path) -> list[str]:
    options = {"--device": "cpu", "--folder": str(tmp_path / "work"), "--measurements": MEASUREMENTS}
    return [str(tmp_path / "out"), *(word for option in options.items() for word in option)]


def members(tmp_path: Path) -> dict[str, str]:
    """Texts of the only file of the output folder."""
    [path] = (tmp_path / "out").iterdir()
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]


def test_items_that_fail_crash_or_hang_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process ends with an item that breaks it; one out of time keeps its rows; the archive has no checkpoints."""
    items = ("gla", "fails", "ssd", "crashes", "kda", "breaks the GPU", "hangs after a row", "ignores signals")
    monkeypatch.setattr(supervisor, "STEPS", {"costs": Step("costs", 1, (), items)})
    monkeypatch.setattr(supervisor, "GRACE", 1)
    monkeypatch.setattr(supervisor.Worker, "measure", limited(supervisor.Worker.measure))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "weights.pt").write_text("")
    assert supervisor.main([*call(tmp_path), "--steps", "costs"]) == 1
    files = members(tmp_path)
    assert [*files] == [
        f"gpu/{name}" for name in ("costs.csv", "errors.txt", "ignores.txt", "items.csv", "log.txt", "report.txt")
    ]
    found = [row["status"] for row in csv.DictReader(files["gpu/items.csv"].splitlines())]
    assert found == ["ok", "failed", "ok", "crashed", "ok", "GPU lost", "out of time", "out of time"]
    rows = {row["attention"]: row["process"] for row in csv.DictReader(files["gpu/costs.csv"].splitlines())}
    assert [*rows] == ["gla", "ssd", "kda", "hangs after a row"]
    assert rows["gla"] == rows["ssd"] != rows["kda"] != rows["hangs after a row"]
    assert files["gpu/errors.txt"].count("Traceback") == 2
    assert capsys.readouterr().out.endswith(files["gpu/report.txt"])


def limited(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Let items that do not end have five seconds."""
    return lambda self, step, item, seconds: measure(self, step, item, 5 if item[:2] in ("ha", "ig") else seconds)


def test_a_stopped_supervisor_leaves_its_archive_and_no_process(tmp_path: Path) -> None:
    program = (
        "import sys; from tools.gpu import supervisor as s; items = 'gla', 'ignores signals'; "
        "s.STEPS = {'costs': s.Step('', 1, (), items)}; s.FIRST = ('costs',); sys.exit(s.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *call(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while not (tmp_path / "work" / "ignores.txt").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert "interrupted" in printed
    [row] = csv.DictReader(members(tmp_path)["gpu/costs.csv"].splitlines())
    with pytest.raises(ProcessLookupError):
        os.kill(int(row["process"]), 0)


def test_a_report_has_the_last_tables_and_names_inexact_items(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for name in STEPS:
        rows = [{"attention": f"{name}{i}", "ms": 1 / 3, "passed": i != 3, "absent": None} for i in range(100)]
        results.add(name, "all", "ok", 1.0, rows)
    text = results.report()
    assert len(text) <= supervisor.PRINTED
    assert text.splitlines()[-1].split() == ["table399", "0.3333", "True"]
    assert "machine: see machine.csv in gpu.tar.gz" in text
    assert "correctness  all   inexact  1.0" in text


def test_every_step_has_its_function_and_the_first_ones_fit_into_the_documented_seconds() -> None:
    for name in STEPS:
        assert list(inspect.signature(getattr(measurements, name)).parameters) == ["item", "device", "folder"]
    assert sum(STEPS[name].seconds for name in supervisor.FIRST) + supervisor.RESERVED <= 520
