"""What scoring refuses, and what it reports about results that are not fit to be scored."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cab import UserError, load_results
from cab.cli.main import main
from cab.errors import EXAMPLE_COMMAND
from cab.records.identity import hash_of
from cab.records.results import CORE_DIR
from cab.results.index import score, score_table
from cab.results.selection import comparable, of_one_data, select
from tests.helpers.made_records import make_record, number
from tests.helpers.made_results import index_of, result, table


def two(**changes: object) -> list[dict[str, Any]]:
    return [result(1.0, "abc", **changes), result(2.0, "local", **changes)]


OTHER_FILE = {**result(1.5, "abc"), "hash": "other", "file": "folder/other.json"}
PUBLISHED_ROWS = [{**row, "hash": "", "file": "numbers.csv"} for row in two()]


@pytest.mark.parametrize(
    ("rows", "normalization", "message"),
    [
        ([], "results", f"no results to score.*{EXAMPLE_COMMAND}"),
        ([*two(), *two(preset="paper")], "results", r"presets mini, paper .* --preset mini"),
        (
            [*two(), *two(task_version=2, dataset="etth2")],
            "results",
            r"task 'lstf' .* different versions.* 1 \(.*\.json\), 2 \(.*\.json\).* --latest-version",
        ),
        (
            [*two(), OTHER_FILE],
            "results",
            r"two results for one cell \(.*attention=abc.*abc-0\.json and folder/other\.json",
        ),
        ([*PUBLISHED_ROWS, PUBLISHED_ROWS[0]], "results", r"two results for one cell .*: numbers\.csv\. Remove one"),
        ([result(2.0, "none")], "results", "only 'none' has results"),
        (
            [result(1.0, "abc"), result(2.0, "local", higher_is_better=True)],
            "results",
            "'lstf mse' is higher-is-better in some",
        ),
        (two(), "oficial", "did you mean 'official'"),
        (two(dataset="synthetic"), "paper", "no constants for these results .*synthetic/M/informer/mse"),
        (two(pattern="NS"), "paper", "NS: tts sum sr mlm"),
        (
            [result(1.0, "abc", "mape", dataset="weather", config_variant="", preset="paper")],
            "official",
            r"no constants for these results.*weather/informer/mape.* results",
        ),
    ],
)
def test_what_is_refused(rows: list[dict[str, Any]], normalization: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        score_table(table(*rows), normalization=normalization)


def test_generated_data_have_no_index() -> None:
    """They are left out of that of real data."""
    generated = two(dataset="synthetic")
    assert score_table(table(*two(), *generated)).equals(score_table(table(*two())))


def test_a_rehearsal_has_an_index_with_a_stamp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of its own results, also if the constants of the paper are asked for."""
    for name, mse in (("vanilla", 1.0), ("abc", 2.0), ("local", 4.0), ("lara", 3.0)):
        names = {"dataset": "synthetic", "config_variant": "M", "preset": "smoke"}
        make_record({"mse": mse, "mae": 1.0 - mse}, attention=name, **names).write(tmp_path)
    for command in (["score", "--score", "index"], ["score", "--normalization", "official", "--show", "pairwise"]):
        assert main([command[0], str(tmp_path), *command[1:], "--csv"]) == 0
        output = capsys.readouterr()
        header, *rows = output.out.splitlines()
        assert header.startswith("data,pattern,task,")
        assert all(row.startswith("rehearsal,NC,") for row in rows)
        assert "say nothing about attentions" in output.err
    assert main(["correlation", str(tmp_path), "--csv"]) == 0
    assert capsys.readouterr().out.startswith("data,kind,")


def test_results_on_other_data_are_excluded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning names the place and a file of each; another place may have other data."""
    for name, data in (("vanilla", "feed"), ("abc", "feed"), ("lara", "feed"), ("local", "beef"), ("s4d", "beef")):
        make_record({"mse": number(name)}, attention=name, data={"fingerprint": data}).write(tmp_path)
        make_record({"mse": 1.0}, attention=name, dataset="etth2", data={"fingerprint": "deed"}).write(tmp_path)
    kept = comparable(load_results(tmp_path)).groupby("dataset")["attention"].unique().map(sorted)
    assert kept["etth1"] == ["abc", "lara", "vanilla"]
    assert len(kept["etth2"]) == 5
    for command in ("score", "correlation"):
        caplog.clear()
        assert main([command, str(tmp_path)]) == 0
        [warning] = [text for text in caplog.messages if "on different data" in text]
        assert warning.startswith("mini lstf etth1 multivariate informer NC: ")
        assert warning.count(".json") == 2
        assert warning.endswith("the results on the data of the latter are excluded: 2")


def test_the_data_of_the_anchors_take_precedence(caplog: pytest.LogCaptureFixture) -> None:
    """In a cell of the suite, results on its data are kept, even if most are on others."""
    names = {"dataset": "synthetic", "config_variant": "", "pattern": "CS"}
    data = {"anchors": next(r for r in load_results(CORE_DIR)["record"] if r.cell["task"] == "lstf").data}
    data |= {"others": {"rows": 3}}
    rows = [
        result(
            1.0, name, file=name, record=make_record({"mse": 1.0}, data=data[kind], attention=name, **names), **names
        )
        for name, kind in (("abc", "anchors"), ("local", "others"), ("s4d", "others"))
    ]
    assert of_one_data(table(*rows))["attention"].tolist() == ["abc"]
    assert "excluded: 2" in caplog.text


def test_records_of_two_versions_are_refused(tmp_path: Path) -> None:
    for version, name in enumerate(("abc", "local", "s4d"), 1):
        record = make_record({"mse": 1.0}, attention=name)
        changed = {**record.changed, "task version": version}
        dataclasses.replace(record, task_version=version, changed=changed, hash=hash_of(changed)).write(tmp_path)
    with pytest.raises(UserError, match="task 'lstf' are from different versions"):
        score_table(load_results(tmp_path))


def test_versions_are_selected_and_may_differ_between_tasks() -> None:
    mixed = table(*two(), *two(task_version=2, dataset="etth2"))
    assert math.isfinite(index_of(score_table(select(mixed, latest=True)), "abc"))
    assert math.isfinite(index_of(score_table(table(*two(), *two(task_version=3, task="pcc"))), "abc"))


def test_duplicate_cells_say_what_differs(tmp_path: Path) -> None:
    for landmarks in (16, 64):
        config = {"attention": {"num_landmarks": landmarks}}
        make_record({"mse": 1.0}, attention="abc", config=config).write(tmp_path)
    with pytest.raises(UserError, match=r"attention\.num_landmarks=\d+ and attention\.num_landmarks=\d+"):
        score_table(load_results(tmp_path))


def test_fewer_seeds_than_published_and_other_data_are_named(tmp_path: Path) -> None:
    for name, seeds in (("vanilla", 5), ("abc", 3)):
        for seed in range(seeds):
            cell = {"attention": name, "seed": seed, "preset": "paper", "config_variant": "M"}
            record = make_record({"mse": 1.0 + seed}, **cell)
            marked = dataclasses.replace(record, unpublished_files=["ETTh1.csv"] if (name, seed) == ("abc", 2) else [])
            path = marked.write(tmp_path)
            make_record({"mse": 1.0 + seed}, **cell | {"dataset": "ecl"}).write(tmp_path)
    notes = [note for note in score(load_results(tmp_path)).notes if "seeds" in note or "files" in note]
    assert notes == [
        "lstf etth1 M: the published values are means over 5 seeds; fewer: abc",
        f"measured on files that are not the published ones (ETTh1.csv): {path}",
    ]


def test_the_same_record_twice_counts_once() -> None:
    rows = two()
    copy = {**rows[0], "file": "copy.json"}
    assert score_table(table(*rows, copy)).equals(score_table(table(*rows)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_a_number(value: float) -> None:
    made = score(table(*two(), result(value, "s4d")))
    assert math.isnan(index_of(made.table, "s4d"))
    assert index_of(made.table, "abc") == pytest.approx(math.sqrt(0.5))
    assert len(made.notes) == 1
    assert re.search("s4d.*informer etth1 M mse in .*s4d-0.json", made.notes[0])


@pytest.mark.parametrize(
    "rows",
    [
        [result(1.0, "abc"), result(2.0, "none")],
        [result(0.1 + 0.2, "abc"), result(0.3, "local")],  # equal but for rounding
    ],
)
def test_no_deviation_and_no_index(rows: list[dict[str, Any]]) -> None:
    made = score(table(*rows))
    assert made.table["index"].isna().all()
    assert made.notes[0].startswith("NC lstf: no index; informer etth1 M mse: generated data, or fewer than 2")


def test_metrics_that_are_not_scored_are_named() -> None:
    made = score(table(*two(), result(2.0, "none"), result(2.0, "none", "mae")))
    assert math.isfinite(index_of(made.table, "none"))
    assert made.notes[0] == "NC lstf: not scored (measured only for 'none': informer etth1 M mae)"
    assert made.notes[1:] == [
        "NC: every metric of two attentions is 0.707 and -0.707 once normalized; run more attentions"
    ]
    names = {"dataset": "weather", "config_variant": "", "preset": "paper"}
    made = score(table(*(result(1.0, "abc", name, **names) for name in ("mse", "mae", "mape"))), normalization="paper")
    assert any("no constants in the paper for informer weather mape" in note for note in made.notes)
    notes = score(table(*two(config_variant="", dataset="ecl")), normalization="official").notes
    assert any("preset mini are not comparable" in note for note in notes)


def test_selection_whatever_the_case() -> None:
    with pytest.raises(UserError, match=r"no result has dataset 'etth3' \(available: etth1"):
        select(table(*two()), datasets=["etth3"])
    mixed = table(*two(), *two(preset="paper", pattern="NS", task="pcc"))
    assert set(select(mixed, preset="PAPER")["pattern"]) == {"NS"}
    assert set(select(mixed, patterns=["nc"])["task"]) == {"lstf"}
    assert len(select(mixed, tasks=["lstf", "pcc"])) == 4
