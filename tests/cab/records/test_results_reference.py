"""The bundled reference results, and the leaderboard that adds them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.files import REFERENCE_DIRS
from cab.records.results import MINI_DIR, PAPER_DIR, load_results, with_reference_results
from cab.results.cells import records_of, suite_cells
from tests.helpers.made_records import make_record


def test_they_are_added_to_a_result(tmp_path: Path) -> None:
    """A record of the same cell and seed is a row of its own."""
    field = load_results(MINI_DIR)
    data = field[field["task"] == "lstf"]["record"].iloc[0].data
    names = {"dataset": "synthetic", "pattern": "CS", "config_variant": "M", "seed": 1, "data": data}
    mine = make_record({"mse": 0.5, "mae": 0.25}, **names)
    mine.write(tmp_path)
    folder = str(tmp_path)  # noqa: F841  # of the query
    beside = with_reference_results(load_results(tmp_path))
    same = beside.query("config_variant == 'M' and pattern == 'CS' and seed == 1 and file.str.startswith(@folder)")
    assert set(same["file"]) == {str(tmp_path / f"{mine.hash}.json")}
    assert set(same["attention"]) == {f"vanilla [{mine.attention_code[:8]}]"}
    assert set(field["attention"]) <= set(beside["attention"])


def test_they_are_not_added_twice_and_published_results_stay() -> None:
    given = load_results([MINI_DIR, PAPER_DIR])
    together = with_reference_results(given)
    records = together[together["record"].notna()]
    assert not records.duplicated(["hash", "metric"]).any()
    assert set(given["attention"]) <= set(together["attention"])
    assert (together["hash"] == "").sum() == (given["hash"] == "").sum() > 0


def test_the_leaderboard_shows_them_alone_where_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", "--with-reference", "--format", "markdown"]) == 0
    assert "| none" in capsys.readouterr().out
    assert main(["leaderboard", "--format", "markdown"]) == 2


def test_the_records_that_come_along_are_of_the_suite() -> None:
    results = load_results(MINI_DIR)
    assert set(results["dataset"]) <= {cell.dataset for cell in suite_cells()}
    first, again = (list(records_of(REFERENCE_DIRS)) for _ in range(2))
    assert all(one.config is other.config for one, other in zip(first, again, strict=True)), "read once"
    for record in first:
        assert record.config["data_root"] is None
        assert not Path(record.config["results_dir"]).is_absolute(), "a path of the machine that trained it"
        assert " results_dir=/" not in record.command


def test_means_over_versions_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for seed, version in ((1, "2.13.0"), (2, "2.12.0"), (3, "2.13.0")):
        record = make_record({"mse": 1.0}, seed=seed)
        dataclasses.replace(record, versions={"python": "3.11.7", "torch": version}).write(tmp_path)
    make_record({"mse": 1.0}, attention="abc").write(tmp_path)
    load_results(tmp_path)
    [text] = [text for text in caplog.messages if "different versions" in text]
    assert text.startswith("1 means over seeds are of different versions (torch was ")
    assert text.endswith("vanilla")
