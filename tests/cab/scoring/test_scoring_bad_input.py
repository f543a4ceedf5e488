"""What scoring refuses or says of results that are not fit to be scored."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from cab import UserError, load_results
from cab.errors import EXAMPLE_COMMAND
from cab.scoring import score, score_table, select
from tests.cab.made_records import make_record
from tests.cab.scoring.made_results import index_of, result, table


def two(**changes: object) -> list[dict[str, object]]:
    return [result(1.0, "abc", **changes), result(2.0, "local", **changes)]


def test_no_results() -> None:
    with pytest.raises(UserError, match=f"no results to score.*{EXAMPLE_COMMAND}"):
        score_table(table())


def test_presets_are_not_mixed() -> None:
    with pytest.raises(UserError, match=r"presets mini, paper .* --preset mini"):
        score_table(table(*two(), *two(preset="paper")))


def test_real_and_synthetic_data_are_not_mixed() -> None:
    with pytest.raises(UserError, match=r"synthetic and on real data \(etth1\) .* --dataset etth1"):
        score_table(table(*two(), *two(dataset="synthetic", task="pcc")))


def test_versions_of_a_task_are_not_mixed() -> None:
    mixed = table(*two(), *two(task_version=2, dataset="etth2"))
    with pytest.raises(
        UserError, match=r"task 'lstf' .* different versions.* 1 \(.*\.json\), 2 \(.*\.json\).* --latest-version"
    ):
        score_table(mixed)
    assert math.isfinite(index_of(score_table(select(mixed, latest=True)), "abc"))


def test_versions_of_different_tasks_may_differ() -> None:
    assert math.isfinite(index_of(score_table(table(*two(), *two(task_version=3, task="pcc"))), "abc"))


def test_data_sets_of_a_task_are_averaged_only_where_all_are_there() -> None:
    rows = [*two(), result(1.0, "abc", dataset="etth2"), result(3.0, "s4d", dataset="etth2")]
    made = score(table(*rows))
    assert math.isfinite(index_of(made.table, "abc"))
    assert math.isnan(index_of(made.table, "local"))
    assert math.isnan(index_of(made.table, "s4d"))
    assert made.members[("NC", "lstf")] == {"informer etth1 M": ["mse"], "informer etth2 M": ["mse"]}


def test_duplicate_cells_name_both_files() -> None:
    rows = two()
    rows.append({**result(1.5, "abc"), "hash": "other", "file": "folder/other.json"})
    with pytest.raises(
        UserError, match=r"two results for one cell \(.*attention=abc.*abc-0\.json and folder/other\.json"
    ):
        score_table(table(*rows))


def test_duplicate_cells_say_what_differs(tmp_path: Path) -> None:
    for landmarks in (16, 64):
        config = {"attention": {"num_landmarks": landmarks}}
        make_record({"mse": 1.0}, attention="abc", config=config).write(tmp_path)
    with pytest.raises(UserError, match=r"attention\.num_landmarks is (16 and 64|64 and 16)"):
        score_table(load_results(tmp_path))


def test_fewer_seeds_than_published_are_named(tmp_path: Path) -> None:
    for name, seeds in (("vanilla", 5), ("abc", 3)):
        for seed in range(seeds):
            cell = {"attention": name, "seed": seed, "preset": "paper", "config_variant": "M"}
            make_record({"mse": 1.0 + seed}, **cell).write(tmp_path)
            make_record({"mse": 1.0 + seed}, **cell | {"dataset": "ecl"}).write(tmp_path)
    note = "lstf etth1 M: the published values are means over 5 seeds; fewer: abc"
    assert [text for text in score(load_results(tmp_path)).notes if "seeds" in text] == [note]


def test_data_that_are_not_the_published_ones_are_named(tmp_path: Path) -> None:
    for name in ("vanilla", "abc"):  # the last one is marked
        record = make_record({"mse": 1.0 + len(name)}, attention=name)
        files = ["ETTh1.csv"] if name == "abc" else []
        path = dataclasses.replace(record, unpublished_files=files).write(tmp_path)
    assert (
        f"measured on files that are not the published ones (ETTh1.csv): {path}" in score(load_results(tmp_path)).notes
    )


def test_the_same_record_twice_counts_once() -> None:
    rows = two()
    copy = {**rows[0], "file": "copy.json"}
    assert score_table(table(*rows, copy)).equals(score_table(table(*rows)))
    with pytest.raises(UserError, match="two results for one cell"):
        score_table(table(*rows, {**copy, "value": 1.25}))


def test_a_published_row_twice_is_an_error() -> None:
    rows = [{**row, "hash": "", "file": "numbers.csv"} for row in two()]
    with pytest.raises(UserError, match=r"two results for one cell .*: numbers\.csv\. Remove one"):
        score_table(table(*rows, rows[0]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_a_number(value: float) -> None:
    made = score(table(*two(), result(value, "s4d")))
    assert math.isnan(index_of(made.table, "s4d"))
    assert index_of(made.table, "abc") == pytest.approx(math.sqrt(0.5))
    (note,) = made.notes
    assert "s4d" in note
    assert "informer etth1 M mse in " in note
    assert "s4d-0.json" in note


def test_one_seed_that_is_not_a_number_leaves_no_mean() -> None:
    rows = [result(1.0 + seed, name, seed=seed) for name in ("abc", "local") for seed in (0, 1, 2)]
    rows[1]["value"] = math.nan
    assert math.isnan(index_of(score_table(table(*rows)), "abc"))


def test_one_attention_has_no_deviation() -> None:
    made = score(table(result(1.0, "abc"), result(2.0, "none")))
    assert made.table["index"].isna().all()
    assert any("1 of the required 2 attentions (abc)" in note for note in made.notes)


def test_equal_attentions_have_no_deviation() -> None:
    made = score(table(result(0.1 + 0.2, "abc"), result(0.3, "local")))
    assert made.table["index"].isna().all()
    assert any("abc, local have equal values of informer etth1 M mse" in note for note in made.notes)


def test_only_the_ablation() -> None:
    with pytest.raises(UserError, match="only 'none' has results"):
        score_table(table(result(2.0, "none")))


def test_a_metric_that_only_the_ablation_has() -> None:
    made = score(table(*two(), result(2.0, "none"), result(2.0, "none", "mae")))
    assert math.isfinite(index_of(made.table, "none"))
    assert made.notes == ["NC lstf: not scored (measured only for 'none': informer etth1 M mae)"]


def test_no_number_at_all() -> None:
    made = score(table(result(math.nan, "abc"), result(math.nan, "local")))
    assert made.table["index"].isna().all()
    assert any("informer etth1 M mse: 0 of the required 2 attentions" in note for note in made.notes)


def test_directions_must_agree() -> None:
    with pytest.raises(UserError, match="'lstf mse' is higher-is-better in some"):
        score_table(table(result(1.0, "abc"), result(2.0, "local", higher_is_better=True)))


def test_unknown_normalisation() -> None:
    with pytest.raises(UserError, match="did you mean 'official'"):
        score_table(table(*two()), normalization="oficial")


@pytest.mark.parametrize("normalization", ["paper", "official"])
def test_synthetic_data_have_no_constants(normalization: str) -> None:
    with pytest.raises(UserError, match="synthetic data cannot be normalized with the paper's constants"):
        score_table(table(*two(dataset="synthetic")), normalization=normalization)


def test_an_unknown_metric_has_no_constants() -> None:
    rows = [
        result(1.0, "abc", metric, dataset="weather", config_variant="", preset="paper")
        for metric in ("mse", "mae", "mape")
    ]
    made = score(table(*rows), normalization="official")
    assert any("no constants in the paper for informer weather mape" in note for note in made.notes)
    with pytest.raises(UserError, match=r"no constants for these results.*weather/informer/mape.* results"):
        score_table(table(rows[2]), normalization="official")


def test_a_pattern_without_constants_for_the_task() -> None:
    with pytest.raises(UserError, match="NS: TTS Sum SR MLM"):
        score_table(table(*two(pattern="NS")), normalization="paper")


def test_a_small_preset_is_not_comparable_with_the_paper() -> None:
    notes = score(table(*two(config_variant="", dataset="ecl")), normalization="official").notes
    assert any("preset mini are not comparable" in note for note in notes)


def test_selection_of_what_is_not_there() -> None:
    with pytest.raises(UserError, match=r"no result has dataset 'etth3' \(available: etth1"):
        select(table(*two()), datasets=["etth3"])


def test_selection_whatever_the_case() -> None:
    mixed = table(*two(), *two(preset="paper", pattern="NS", task="pcc"))
    assert set(select(mixed, preset="PAPER")["pattern"]) == {"NS"}
    assert set(select(mixed, patterns=["nc"])["task"]) == {"lstf"}
    assert len(select(mixed, tasks=["lstf", "pcc"])) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [("NS,T,b,d,m,maybe,abc,1", "higher_is_better must be 1 or 0"), ("NS,T,b,d,m,1,abc,lots", "line 2: value 'lots'")],
)
def test_broken_published_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(f"pattern,task,backbone,dataset,metric,higher_is_better,attention,value\n{line}\n")
    with pytest.raises(UserError, match=message):
        load_results(path)
