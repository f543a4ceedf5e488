"""The cost of an attention without a committed one: measured by `cab run suite=core`, shown on the board."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch

from cab.cli.main import main
from cab.cli.run import _print_costs
from cab.efficiency import machine
from cab.efficiency.benchmark import measure_for_board
from cab.efficiency.own import measure_cost_of, measure_state_of
from cab.efficiency.subjects import AttentionSubject
from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.records.names import installed_code
from cab.records.record import Record
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.results import costs
from cab.results.costs import (
    GROWS,
    STATE,
    MeasuredCost,
    cost_name,
    cost_of,
    cost_path,
    costs_in,
    measured_costs,
    read_costs,
)
from cab.results.load import load_results
from cab.results.suite_board import TIME, recall_points, suite_csv, suite_of
from cab.results.verdict import cost_texts
from cab.runner.report import Outcome, Report
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record, with_config

pytestmark = pytest.mark.usefixtures("registers")

CLASS = """
from cab import Attention, register_attention

@register_attention("{name}", patterns="CS NC", complexity="n", paper="")
class Mean(Attention):
    def attend(self, query, key, value, padding):
        {code}
        return value.mean(2, keepdim=True) + 0 * query
"""
ROW = {"status": "ok", "kind": "attention", "protocol": "default", "batch_size": "1", "complexity": "n log n"}
ROW |= {"pattern": "CS", "attention": "Mine"}
FORWARD = ROW | {"phase": "forward", "embed_dim": "256", "length": "8192", "bytes": "10", "relative_to_softmax": "0.25"}
DECODE = ROW | {"phase": "decode", "embed_dim": "512", "length": "8192", "seconds": "0.002", "bytes": "96"}
SUITE_STATE = ROW | {"phase": STATE, "length": "88", "bytes": "1024", "detail": GROWS}
RECORD = with_config(suite_record("probe", "abc", 80), results_dir="runs")
FOLDERS = [Path("elsewhere"), Path("runs")]
VANILLA = FORWARD | {"attention": "vanilla", "bytes": "40", "relative_to_softmax": "1"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurements take 64 tokens instead of 8,192; the committed ones stay."""
    measured_costs()
    for module in ("cab.results.costs", "cab.efficiency.benchmark"):
        monkeypatch.setattr(f"{module}.LENGTH", 64)
        monkeypatch.setattr(f"{module}.FALLBACK", 32)
        monkeypatch.setattr(f"{module}.SHORT", 16)
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)


@pytest.fixture
def mean_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Record:
    """A run of the class, whose forward pass starts with the line of code of the parameter."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(CLASS.format(code=getattr(request, "param", "pass"), name=f"mean_{tmp_path.name}"))
    code = code_of(ATTENTIONS.get("own.py:Mean").cls)
    record = suite_record("probe", "Mean", 80, pattern="NC", attention_code=code, command="")
    config = {**record.config, "results_dir": "runs", "attention": {"name": "own.py:Mean"}}
    return dataclasses.replace(record, config=config)


def about(record: Record) -> tuple[str, str, str]:
    """What the cost of a run depends on."""
    return record.cell["attention"], record.cell["pattern"], record.attention_code


def texts_of(record: Record, folders: list[Path]) -> list[str]:
    return cost_texts(*about(record), folders, target=record.config["attention"]["name"])


@pytest.mark.usefixtures("short")
def test_the_cost_of_a_class_in_a_file(mean_record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_committed_codes", lambda: {("abc", installed_code("abc"))})
    assert "not measured against softmax" in texts_of(mean_record, FOLDERS)[-1]
    measure_cost_of(mean_record)
    [path] = Path("runs/costs").iterdir()
    cost = read_costs(path)["Mean", "NC"]
    assert cost.time
    assert cost.memory
    [line] = texts_of(mean_record, FOLDERS)
    assert f"{cost.time:.2f} times the time of softmax attention" in line
    assert line.endswith("declared complexity n")
    assert cost_of(*about(dataclasses.replace(mean_record, attention_code="edited")), FOLDERS) == MeasuredCost()
    written = path.stat().st_mtime_ns
    committed = suite_record("probe", "abc", 80, pattern="NC", attention_code=installed_code("abc"))
    committed = with_config(committed, results_dir="runs")
    for record in (mean_record, committed, dataclasses.replace(mean_record, attention_code="edited")):
        measure_cost_of(record)
    assert [each.stat().st_mtime_ns for each in path.parent.iterdir()] == [written], "each code is measured once"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("mean_record", ["assert key.shape[0] > 1, 'too long'"], indirect=True)
def test_a_failure_is_one_line(mean_record: Record, caplog: pytest.LogCaptureFixture) -> None:
    measure_cost_of(mean_record)
    assert caplog.messages[-1] == "Mean NC has no cost in phase forward: failed AssertionError: too long"


@pytest.mark.parametrize(("arguments", "measures"), [((), True), (("--no-cost",), False), (("cluster=slurm",), False)])
def test_a_run_of_the_suite_ends_with_verdict_state_and_cost(
    arguments: tuple[str, ...], measures: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []
    report = Report(outcomes=[Outcome("", "cached", RECORD)])
    monkeypatch.setattr("cab.runner.launch.run_sweeps", lambda *_, **__: report)
    places = ("cab.cli.run.print_verdict", "cab.efficiency.own.measure_state_of", "cab.efficiency.own.measure_cost_of")
    for place, step in zip(places, ("verdict", "state", "cost"), strict=True):
        monkeypatch.setattr(place, lambda *_, step=step: steps.append(step))
    assert main(["run", "suite=core", "attention=abc", "task=probe", f"results_dir={tmp_path}", *arguments]) == 0
    assert steps == (["verdict", "state", "cost"] if measures else ["verdict"])


def test_an_edited_copy_has_no_cost_and_state_of_the_original(
    made_suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were measured with its code are shown."""
    codes = {"ours": installed_code("linear"), "edited": "0123456789abcdef"}
    monkeypatch.setattr(costs, "_committed_codes", lambda: {("linear", codes["ours"])})
    rows = {}
    for name, code in codes.items():
        own = [run for task in CELLS for run in seeds(task, "linear", 80, attention_code=code)]
        for record in own:
            record.write(tmp_path / name)
        rows[name] = own_row(made_suite, tmp_path / name)
    fields = ["suite_state_numbers", "suite_state_grows", TIME, "decode_ms_per_token", "complexity"]
    cost = measured_costs()["linear", "CS"]
    assert rows["ours"][fields].tolist() == [1056, False, cost.time, cost.decode_ms, "n"]
    assert rows["edited"][fields[:-1]].isna().all()
    assert (rows["edited"]["complexity"], rows["edited"]["family"]) == ("", "constant state")
    assert "not measured against softmax" in texts_of(own[0], [tmp_path / "edited"])[-1]
    path = cost_path(tmp_path / "edited", *about(own[0]))
    path.parent.mkdir()
    write_table(path, [row | {"attention": "linear"} for row in (FORWARD, SUITE_STATE)] + [VANILLA])
    edited = own_row(made_suite, tmp_path / "edited")
    assert [edited[name] for name in (*fields[:3], "complexity")] == [256, True, 0.25, "n log n"]


def own_row(*folders: Path) -> pd.Series:
    """The only row of the board with the user's results."""
    suite = suite_of(load_results(folders))
    assert suite is not None
    [(_, row)] = suite.board[suite.board["own"]].iterrows()
    return row


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("source", ["stored", "--costs"])
def test_the_row_of_a_class_has_its_cost(made_suite: Path, tmp_path: Path, source: str) -> None:
    own = [run for task in CELLS for run in seeds(task, "Mine", 80)]
    for record in own:
        record.write(tmp_path / "own")
    path = cost_path(tmp_path / "own", *about(own[0])) if source == "stored" else tmp_path / "costs.csv"
    path.parent.mkdir(exist_ok=True)
    write_table(path, [FORWARD, DECODE, VANILLA, SUITE_STATE])
    suite_record("probe", "Mine", 80, 4).write(tmp_path / "without costs")
    results = load_results([made_suite, tmp_path / "without costs", tmp_path / "own"])
    suite = suite_of(results, read_costs(path) if source == "--costs" else {})
    assert suite is not None
    row = suite_csv(suite.board).set_index("attention").loc["Mine"]
    assert (row["CS.time_8192_vs_softmax"], row["CS.memory_8192_vs_softmax"]) == (0.25, 0.25)
    assert (row["decode_ms_per_token"], row["state_bytes"], row["complexity"]) == (2.0, 96, "n log n")
    assert (row["suite_state_numbers"], row["suite_state_grows"]) == (256, "yes")
    assert recall_points(suite.board, suite.board[TIME])["cost"]["Mine (yours)"] == 0.25


def test_rows_at_the_sizes_of_the_board() -> None:
    changes = ({"embed_dim": "512"}, {"length": "4096"}, {"status": "oom"}, {"packed": "uniform"})
    others = [FORWARD | {"relative_to_softmax": "9"} | change for change in changes]
    early = DECODE | {"length": "256"}
    found = costs_in([FORWARD, DECODE, VANILLA, early, *others])
    assert found["Mine", "CS"] == MeasuredCost(0.25, 0.25, 2.0, 96, True, "n log n")
    shorter = costs_in([FORWARD | {"length": "2048"}, VANILLA | {"length": "2048"}, VANILLA])["Mine", "CS"]
    assert (shorter.time, shorter.memory, shorter.length) == (0.25, 0.25, 2048)
    assert not costs_in([DECODE, early | {"bytes": "90"}])["Mine", "CS"].has_constant_state
    assert costs_in(others) == {}
    assert costs_in([FORWARD | {"relative_to_softmax": "", "bytes": "?"}])["Mine", "CS"].time is None


@pytest.mark.usefixtures("short")
def test_the_measurement_is_that_of_the_committed_costs() -> None:
    threads = torch.get_num_threads()
    measured = measure_for_board(AttentionSubject.parse("linear"), Pattern.CS)
    rows = [row for row in measured if row.kind == "attention"]
    forward = {(name, "forward", 64, 256, 4) for name in ("vanilla", "linear")}
    assert {(row.attention, row.phase, row.length, row.embed_dim, row.num_heads) for row in rows} == {
        *forward, ("linear", "decode", 16, 512, 8), ("linear", "decode", 64, 512, 8)
    }  # fmt: skip
    assert {(row.threads, row.device, row.batch_size) for row in measured} == {(1, "cpu", 1)}
    assert torch.get_num_threads() == threads
    sizes = [row for row in read_csv(costs.MEASURED) if row["run"] in (*costs.RUNS.values(), costs.DECODING_RUN)]
    assert {(row["phase"], row["embed_dim"], row["num_heads"], row["repeats"]) for row in sizes} == {
        ("forward", "256", "4", "3"), ("decode", "512", "8", "3")
    }  # fmt: skip


@pytest.mark.usefixtures("short")
def test_the_state_of_a_causal_class_is_known_before_its_cost(
    mean_record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a state of its own, a class keeps all keys and values, or the inputs they are made of."""
    record = dataclasses.replace(mean_record, cell={**mean_record.cell, "pattern": "CS"})
    measure_state_of(record)
    state = cost_of(*about(record), FOLDERS).suite_state
    assert state is not None
    assert state.grows
    assert state.numbers >= 32
    _print_costs([record], measures=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == "Mean, pattern CS"
    assert lines[1] == f"decode state: {state.numbers:,.0f} numbers per token, in the network of recall"
    assert lines[2].startswith("cost: ")
    cost = cost_of(*about(record), FOLDERS)
    assert cost.suite_state == state
    assert cost.decode_ms


SLOW = "import time; time.sleep(2 * (key.shape[2] > 32))"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("mean_record", [SLOW], indirect=True)
def test_a_slow_class_is_measured_at_a_shorter_length(mean_record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cab.efficiency.benchmark.BOARD_SECONDS", 1)
    measure_cost_of(mean_record)
    cost = cost_of(*about(mean_record), FOLDERS)
    assert cost.time
    assert cost.length == 32
    assert " at 32 tokens" in texts_of(mean_record, FOLDERS)[-1]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("abc", "abc"),
        ("abc(tuned)", "abc"),
        ("abc(tuned) [0123abcd]", "abc"),
        ("abc [mixed code]", "abc"),
        ("x(y=[[1], [2]])", "x(y=[[1], [2]])"),
    ],
)
def test_neither_a_learning_rate_nor_other_code_is_in_the_name(label: str, name: str) -> None:
    assert cost_name(label) == name
