"""Steps on a machine with a GPU: what fails, hangs or crashes costs its own item only, and one file has the rest."""

import csv
import inspect
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from cab import Pattern
from cab.registry.registries import ATTENTIONS, TASKS
from tests.helpers.command import ROOT
from tools.gpu import supervisor
from tools.gpu.supervisor import STEPS, Results, Step, Worker

MEASUREMENTS = "tests.tools.gpu.gpu_measurements"
LONG = 600.0


ITEMS = [
    ("ssd", LONG, "ok", "", True),
    ("fails", LONG, "failed", "last line\n", True),
    ("hangs after a row", 0.2, "out of time", "", True),
    ("crashes", LONG, "crashed", f"status {-signal.SIGSEGV}", False),
    ("breaks the GPU", LONG, "GPU lost", "an illegal memory access was encountered\n", False),
    ("ignores signals", 1, "out of time", "killed after 1 s", False),
]
"""Items with their time, status, end of the error, and whether the next item is measured by the same process."""


def test_an_item_costs_no_other_one(tmp_path, monkeypatch, request):
    """All share a process as long as it works."""
    monkeypatch.setattr(supervisor, "GRACE", 1)
    worker, count = Worker(MEASUREMENTS, "cpu", tmp_path), 1
    request.addfinalizer(worker.stop)

    def measure(item: str, seconds: float) -> tuple[str, list[object], str]:
        worker.start(LONG)
        status, rows, error = worker.measure("costs", item, seconds)
        return status, [row["process"] for row in rows], error

    for item, seconds, status, end, survives in ITEMS:
        _, before, _ = measure("gla", LONG)
        found, own, error = measure(item, seconds)
        assert (found, error.endswith(end)) == (status, True), item
        assert error.startswith("Traceback") == (status in ("failed", "GPU lost"))
        assert own == (before if item in ("ssd", "hangs after a row") else [])
        assert (measure("gla", LONG)[1] == before) == survives, item
        count += not survives
    assert (tmp_path / "ignores.txt").exists()
    assert (tmp_path / "log.txt").read_text() == "imported for cpu\n" * count


def call(tmp_path: Path, *arguments: str) -> list[str]:
    options = {"--device": "cpu", "--folder": str(tmp_path / "work"), "--measurements": MEASUREMENTS}
    return [str(tmp_path / "out"), *(word for option in options.items() for word in option), *arguments]


def members(tmp_path: Path) -> dict[str, str]:
    """Texts of the only file of the output folder."""
    [path] = (tmp_path / "out").iterdir()
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]


def test_one_archive_has_all_tables_errors_and_the_log(tmp_path, monkeypatch, capsys):
    steps = {"costs": Step("costs", 1, (), ("gla", "fails", "ssd")), "machine": Step("machine", 1, (), ("all",))}
    monkeypatch.setattr(supervisor, "STEPS", steps)
    monkeypatch.setattr(supervisor, "FIRST", tuple(steps))
    assert supervisor.main(call(tmp_path)) == 1
    files = members(tmp_path)
    assert [*files] == [f"gpu/{name}" for name in ("costs.csv", "errors.txt", "items.csv", "log.txt", "report.txt")]
    assert [row["attention"] for row in csv.DictReader(files["gpu/costs.csv"].splitlines())] == ["gla", "ssd"]
    assert [row["status"] for row in csv.DictReader(files["gpu/items.csv"].splitlines())] == [
        "ok", "failed", "ok", "failed",
    ]  # fmt: skip
    assert files["gpu/errors.txt"].count("Traceback") == 2
    printed = capsys.readouterr().out
    assert printed.endswith(files["gpu/report.txt"])
    assert "costs fails: failed" in printed


def test_named_steps_alone_are_measured(tmp_path):
    """A step without a function fails like any other."""
    assert supervisor.main(call(tmp_path, "--steps", "machine")) == 1
    assert "gpu/costs.csv" not in members(tmp_path)
    with pytest.raises(SystemExit, match="unknown step 'cost'"):
        supervisor.main(call(tmp_path, "--steps", "cost"))


def test_imports_that_fail_are_shown(tmp_path, capfd):
    assert supervisor.main([*call(tmp_path), "--measurements", "no.such.module"]) == 1
    assert "ModuleNotFoundError: No module named 'no'" in capfd.readouterr().out
    assert "ModuleNotFoundError" in members(tmp_path)["gpu/log.txt"]


def test_a_stopped_supervisor_leaves_its_archive_and_no_process(tmp_path):
    program = (
        "import sys; from tools.gpu import supervisor as s; items = 'gla', 'ignores signals'; "
        "s.STEPS = {'costs': s.Step('', 1, (), items)}; s.FIRST = ('costs',); sys.exit(s.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *call(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while not (tmp_path / "work" / "ignores.txt").exists():
            time.sleep(0.05)
        process.terminate()
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert "interrupted" in printed
    [row] = csv.DictReader(members(tmp_path)["gpu/costs.csv"].splitlines())
    with pytest.raises(ProcessLookupError):
        os.kill(int(row["process"]), 0)


class Clock:
    """Time that passes in items only."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Recorded:
    """A worker whose items take half of what they may, or as long as they want."""

    def __init__(self, clock: Clock, wanted: dict[str, float]) -> None:
        self.clock, self.wanted = clock, wanted
        self.limits: dict[str, float] = {}

    def start(self, seconds: float) -> None:
        pass

    def measure(self, _step: str, item: str, seconds: float) -> tuple[str, list[object], str]:
        self.limits[item] = seconds
        self.clock.now += min(seconds, self.wanted[item])
        return "ok", [], ""


def test_a_step_ends_at_its_share_of_the_time_and_leaves_what_it_does_not_use(tmp_path, monkeypatch):
    steps = {"roofs": Step("", 10, ("a",), ()), "costs": Step("", 20, (*"bcd",), ()), "lm": Step("", 10, ("e",), ())}
    monkeypatch.setattr(supervisor, "STEPS", steps)
    monkeypatch.setattr(supervisor, "time", clock := Clock())
    worker = Recorded(clock, {"a": 5, "b": 20, "c": 50, "e": 1})
    results = Results(tmp_path)
    assert [*supervisor.measure_all([*steps], worker, results, "cuda", 180.0)] == [*"abcde"]  # type: ignore[arg-type]
    assert worker.limits == {"a": 20, "b": 55, "c": 35, "e": 20}
    assert [row["status"] for row in results.items] == ["ok", "ok", "ok", "no time left", "ok"]


def test_the_most_important_table_is_printed_last_and_all_of_it_is_short(tmp_path):
    results = Results(tmp_path)
    for name in STEPS:
        rows = [{"attention": f"{name}{i}", "ms": 1 / 3, "absent": None} for i in range(100)]
        results.add(name, "all", "ok", 1.0, rows)
    for _ in range(100):
        results.add("lm", "gla bf16", "failed", 2.0, error="Traceback\n" + 500 * "x")
    text = results.report()
    assert len(text) <= supervisor.PRINTED
    assert text.splitlines()[-1].split() == ["table399", "0.3333"]
    assert "machine: see machine.csv in gpu.tar.gz" in text
    assert "absent" not in text
    assert f"failed  2.0      {150 * 'x'}\n" in text


def test_an_inexact_kernel_is_named_among_the_failures(tmp_path):
    results = Results(tmp_path)
    for item, passed in (("layer gla", True), ("layer kda", False)):
        results.add("correctness", item, "ok", 1.0, [{"of": item, "passed": passed}])
    assert [row["status"] for row in results.items] == ["ok", "inexact"]
    assert "correctness  layer kda  inexact  1.0" in results.report()


def test_the_archive_has_the_ends_of_text_files_and_no_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LARGEST", 4)
    (tmp_path / "work" / "records").mkdir(parents=True)
    (tmp_path / "work" / "records" / "a.json").write_text("{}")
    (tmp_path / "work" / "log.txt").write_text("0123456789")
    (tmp_path / "work" / "weights.pt").write_text("")
    supervisor.write_archive(tmp_path / "work", tmp_path / "out")
    assert members(tmp_path) == {"gpu/log.txt": "6789", "gpu/records/a.json": "{}"}


def test_steps_are_functions_of_items_that_exist_and_the_first_fit_into_the_documented_seconds():
    from tools.gpu import measurements

    assert set(supervisor.BY_IMPORTANCE) == set(STEPS)
    for name in STEPS:
        assert list(inspect.signature(getattr(measurements, name)).parameters) == ["item", "device", "folder"]
    checked = [item.split(" ")[1].partition(":")[0] for item in STEPS["correctness"].items]
    for name in {*checked, *STEPS["costs"].items, *STEPS["decoding"].items}:
        assert Pattern.CS in ATTENTIONS.get(name).patterns
    tasks = {item.split()[0] for item in STEPS["tasks"].items}
    assert tasks == {"lm", "mlm", "sum", "tts", "sr", "pcc", "lstf"}
    assert all(TASKS.get(name) for name in tasks)
    assert len(STEPS["table3"].items) == 5 * 4 * 6
    assert sum(STEPS[name].seconds for name in supervisor.FIRST) + supervisor.RESERVED <= 520
