"""The committed table of repeated results: which versions of the project give the recorded scores."""

import csv
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.record import Record
from cab.runner.provenance import versions
from tests.helpers.command import ROOT

ROWS = list(csv.DictReader((ROOT / "results" / "repeated.csv").read_text().splitlines()))


def record_path(row: dict[str, str]) -> Path:
    return ROOT / "results" / row["set"] / f"{row['hash']}.json"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["hash"])
def test_its_rows_are_those_of_the_records(row):
    record = Record.read(record_path(row))
    names = ("task", "backbone", "pattern", "attention", "seed")
    assert [str(record.cell[name]) for name in names] == [row[name] for name in names]
    assert repr({metric.name: metric.value for metric in record.metrics}[row["metric"]]) == row["value"]
    assert versions()["cab-benchmark"] in row["versions"].split()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["vanilla", "sigmoid"])
def test_a_repeated_result_is_that_of_its_record(attention, tmp_path):
    """Another processor rounds sums otherwise, so the score may differ a little."""
    [row] = [row for row in ROWS if (row["task"], row["pattern"], row["attention"]) == ("probe", "NC", attention)]
    assert main(["reproduce", str(record_path(row)), "--results-dir", str(tmp_path)]) in (0, 1)
    repeated = Record.read(next(tmp_path.glob("*.json")))
    value = {metric.name: metric.value for metric in repeated.metrics}[row["metric"]]
    assert value == pytest.approx(float(row["value"]), abs=0.02)
