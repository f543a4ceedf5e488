"""The cost of an attention without a committed one: measured by `cab run suite=core`, shown on the board."""

import dataclasses
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch

from cab.efficiency import benchmark, machine
from cab.efficiency.benchmark import measure_cost_of, measure_for_board, measure_state_of
from cab.efficiency.subjects import AttentionSubject
from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.records.names import installed_code
from cab.records.record import Record
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.results import costs
from cab.results.costs import GROWS, STATE, MeasuredCost, cost_of, cost_path, costs_in, measured_costs, read_costs
from cab.results.load import load_results
from cab.results.suite_board import TIME, suite_of
from cab.results.verdict import cost_texts
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record, with_config

pytestmark = pytest.mark.usefixtures("registers")

CLASS = """
from cab import Attention, register_attention

@register_attention("mean_of_values", patterns="CS NC", complexity="n", paper="")
class Mean(Attention):
    def attend(self, query, key, value, padding):
        return value.mean(2, keepdim=True) + 0 * query
"""
ROW = {"status": "ok", "kind": "attention", "protocol": "default", "batch_size": "1", "complexity": "n log n"}
ROW |= {"pattern": "CS", "attention": "Mine"}
FORWARD = ROW | {"phase": "forward", "embed_dim": "256", "length": "8192", "bytes": "10", "relative_to_softmax": "0.25"}
DECODE = ROW | {"phase": "decode", "embed_dim": "512", "length": "8192", "seconds": "0.002", "bytes": "96"}
SUITE_STATE = ROW | {"phase": STATE, "length": "88", "bytes": "1024", "detail": GROWS}
FOLDERS = [Path("elsewhere"), Path("runs")]
VANILLA = FORWARD | {"attention": "vanilla", "bytes": "40", "relative_to_softmax": "1"}


@pytest.fixture
def short(monkeypatch):
    """The measurements take 64 tokens instead of 8,192; the committed ones stay."""
    measured_costs()
    for module, (name, length) in product((costs, benchmark), {"LENGTH": 64, "FALLBACK": 32, "EARLY": 16}.items()):
        monkeypatch.setattr(module, name, length)
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)


def about(record: Record) -> tuple[str, str, str]:
    return record.cell["attention"], record.cell["pattern"], record.attention_code


def texts_of(record: Record, folders: list[Path]) -> list[str]:
    return cost_texts(*about(record), folders, target=record.config["attention"]["name"])


@pytest.mark.usefixtures("short")
def test_the_cost_of_a_class_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(CLASS)
    code = code_of(ATTENTIONS.get("own.py:Mean").cls)
    mean_record = suite_record("probe", "Mean", 80, attention_code=code, command="")
    mean_record = with_config(mean_record, results_dir="runs", attention={"name": "own.py:Mean"})
    monkeypatch.setattr(costs, "_committed_codes", lambda: {("abc", installed_code("abc"))})
    assert "not measured against softmax" in texts_of(mean_record, FOLDERS)[-1]
    measure_state_of(mean_record)
    state = cost_of(*about(mean_record), FOLDERS).suite_state
    assert state.grows
    assert state.numbers >= 32, "all keys and values, or the inputs that they are made of"
    measure_cost_of(mean_record)
    [path] = Path("runs/costs").iterdir()
    cost = read_costs(path)["Mean", "CS"]
    assert cost.time
    assert cost.memory
    assert (cost.suite_state, cost.complexity) == (state, "n")
    assert f"{cost.time:.2f} times the time of softmax attention" in texts_of(mean_record, FOLDERS)[-1]
    assert cost_of(*about(dataclasses.replace(mean_record, attention_code="edited")), FOLDERS) == MeasuredCost()
    written = path.stat().st_mtime_ns
    committed = suite_record("probe", "abc", 80, attention_code=installed_code("abc"))
    committed = with_config(committed, results_dir="runs")
    for record in (mean_record, committed, dataclasses.replace(mean_record, attention_code="edited")):
        measure_cost_of(record)
    assert [each.stat().st_mtime_ns for each in path.parent.iterdir()] == [written], "each code is measured once"


def test_an_edited_copy_has_no_cost_and_state_of_the_original(made_suite, tmp_path, monkeypatch):
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
    texts = texts_of(own[0], [tmp_path / "edited"])
    assert "not measured against softmax" in texts[-1]
    assert "decode state" not in " ".join(texts)
    path = cost_path(tmp_path / "edited", *about(own[0]))
    path.parent.mkdir()
    measured = [row | {"attention": "linear"} for row in (FORWARD, SUITE_STATE, DECODE)]
    pd.DataFrame([*measured, VANILLA]).to_csv(path, index=False)
    edited = own_row(made_suite, tmp_path / "edited")
    assert edited[fields].tolist() == [256, True, 0.25, 2.0, "n log n"]
    texts = " ".join(texts_of(own[0], [tmp_path / "edited"]))
    assert "256 numbers per token" in texts
    assert "decoding takes 2.00 ms per token, with a state of 96 bytes" in texts


def own_row(*folders: Path) -> pd.Series:
    board = suite_of(load_results(folders)).board
    [(_, row)] = board[board["own"]].iterrows()
    return row


def test_rows_at_the_sizes_of_the_board():
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
def test_the_measurement_is_that_of_the_committed_costs():
    threads = torch.get_num_threads()
    measured = measure_for_board(AttentionSubject.parse("linear"), Pattern.CS)
    rows = [row for row in measured if row.kind == "attention"]
    forward = {(name, "forward", 64, 256, 4) for name in ("vanilla", "linear")}
    decoding = {("linear", "decode", length, 512, 8) for length in (16, 64)}
    assert {(r.attention, r.phase, r.length, r.embed_dim, r.num_heads) for r in rows} == forward | decoding
    assert {(row.threads, row.device, row.batch_size) for row in measured} == {(1, "cpu", 1)}
    assert torch.get_num_threads() == threads
    sizes = [row for row in read_csv(costs.MEASURED) if row["run"] in (*costs.RUNS.values(), costs.DECODING_RUN)]
    found = {(row["phase"], row["embed_dim"], row["num_heads"], row["repeats"]) for row in sizes}
    assert found == {("forward", "256", "4", "3"), ("decode", "512", "8", "3")}
