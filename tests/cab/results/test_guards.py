"""Results that are not comparable are refused or excluded, and what is doubtful about the others is reported."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from cab.errors import EXAMPLE_COMMAND, UserError
from cab.records.files import REFERENCE_DIRS
from cab.results.cells import data_hash
from cab.results.guards import comparable, of_one_data, select
from cab.results.index import NO_CONSTANTS, Scores, score
from cab.results.index_tables import notes_on
from cab.results.load import load_results
from tests.helpers.made_records import bundled, index_of, make_record, mine, number, result, table


def two(**changes: Any) -> list[dict[str, Any]]:
    return mine({"abc": 1.0, "local": 2.0}, **changes)


def scored(rows: list[dict[str, Any]], normalization: str = "results") -> Scores:
    return score(comparable(table(*rows)), normalization=normalization)


OTHER_FILE = mine({"abc": 1.5}, hash="other", file="folder/other.json")
PRINTED_ROWS = two(hash="", file="numbers.csv")
VERSIONS = r"task 'mine' .* different versions.* 1 \(.*\.json\), 2 \(.*\.json\).* --latest-version"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], f"no results to score.*{EXAMPLE_COMMAND}"),
        (two() + two(preset="paper"), r"presets mini, paper .* --preset mini"),
        (two() + two(task_version=2, dataset="etth2"), VERSIONS),
        (two() + OTHER_FILE, r"two results for one cell \(.*attention=abc.*abc-mini-0\.json and folder/other\.json"),
        (PRINTED_ROWS + PRINTED_ROWS[:1], r"two results for one cell .*: numbers\.csv\. Remove one"),
        (mine({"none": 2.0}), "only 'none' has results"),
        (mine({"abc": 1.0}) + mine({"local": 2.0}, higher_is_better=True), "'mine mse' is higher-is-better in some"),
    ],
)
def test_results_are_refused(rows, message):
    with pytest.raises(UserError, match=message):
        scored(rows)


@pytest.mark.parametrize("changes", [{}, {"task": "lstf", "pattern": "NS"}])
def test_tasks_without_constants_have_no_index(changes):
    made = scored(two(**changes), "official")
    assert set(made.table["missing"]) == {NO_CONSTANTS, "no task has an index"}
    assert scored(two(**changes)).table["index"].notna().all()
    with pytest.raises(UserError, match="did you mean 'official'"):
        scored(two(**changes), "oficial")


def test_a_rehearsal_has_an_index_with_a_stamp(tmp_path, cab):
    """It is that of its own results, also if the constants of the paper are requested."""
    for name, part in itertools.product(("vanilla", "abc"), "MS"):
        cell = {"dataset": "synthetic", "config_variant": part, "preset": "smoke", "attention": name}
        make_record({"mse": number(name), "mae": number(part, name)}, **cell).write(tmp_path)
    output = cab("score", tmp_path, "--score", "index", "--normalization", "official", "--csv")
    assert {(row["source"], row["normalization"]) for row in output.rows} == {("own", "results")}
    assert "say nothing about attentions" in output.err


def test_results_on_other_data_are_excluded(caplog):
    """Another place may have other data."""
    names = ("vanilla", "abc", "lara", "local", "s4d")
    rows = [result(1.0, n, data_id="feed" if n in names[:3] else "beef") for n in names]
    rows += [result(1.0, name, dataset="etth2", data_id="deed") for name in names]
    kept = comparable(table(*rows)).groupby("dataset")["attention"].agg(set)
    assert kept.to_dict() == {"etth1": {*names[:3]}, "etth2": {*names}}
    [warning] = [text for text in caplog.messages if "on different data" in text]
    assert warning.startswith("mini lstf etth1 M informer NC: ")
    assert warning.endswith("the results on the data of the latter are excluded: 2")


def test_the_data_of_the_anchors_take_precedence(caplog):
    """In a cell of the suite, results on its data are kept, even if most are on others."""
    names = {"dataset": "synthetic", "config_variant": "", "pattern": "CS"}
    of_suite = data_hash(bundled(REFERENCE_DIRS[0], task="lstf"))
    places = {"abc": of_suite, "local": "other", "s4d": "other"}
    rows = [result(1.0, name, file=name, data_id=data, **names) for name, data in places.items()]
    assert of_one_data(table(*rows))["attention"].tolist() == ["abc"]
    assert "excluded: 2" in caplog.text


def test_versions_are_selected_and_may_differ_between_tasks():
    mixed = table(*two(), *two(task_version=2, dataset="etth2"))
    assert set(comparable(select(mixed, latest=True))["dataset"]) == {"etth2"}
    assert math.isfinite(index_of(scored(two() + two(task_version=3, task="yours")).table, "abc"))


def test_different_results_of_one_cell_and_seed_are_refused_with_their_settings():
    """Of one source: an own and a reference result may be in one place."""
    configs = [result(1.0, "abc")["config"] | {"attention": {"name": "abc", "num_landmarks": n}} for n in (16, 64)]
    rows = [result(1.0, "abc", hash=str(n), file=f"{n}.json", config=config) for n, config in enumerate(configs)]
    with pytest.raises(UserError, match=r"attention\.num_landmarks=16 and attention\.num_landmarks=64"):
        comparable(table(*rows))
    assert len(comparable(table(rows[0], {**rows[1], "source": "reference"}))) == 2


def test_fewer_seeds_than_published_and_other_data_are_named(tmp_path):
    for name, seeds in (("vanilla", 5), ("abc", 3)):
        for seed in range(seeds):
            cell = {"attention": name, "seed": seed, "preset": "paper", "config_variant": "M"}
            record = make_record({"mse": 1.0 + seed}, **cell)
            marked = dataclasses.replace(record, unpublished_files=["ETTh1.csv"] if (name, seed) == ("abc", 2) else [])
            path = marked.write(tmp_path)
            make_record({"mse": 1.0 + seed}, **cell | {"dataset": "ecl"}).write(tmp_path)
    notes = notes_on(score(comparable(load_results(tmp_path))))
    assert [note for note in notes if "seeds" in note or "files" in note] == [
        "lstf etth1 M: the published values are means over 5 seeds; fewer: abc",
        f"measured on files that are not the published ones (ETTh1.csv): {path}",
    ]


@pytest.mark.parametrize(
    ("rows", "without"),
    [
        (two() + mine({"s4d": math.nan}), ["s4d"]),
        (two() + mine({"s4d": math.inf}), ["s4d"]),
        (mine({"abc": 1.0, "none": 2.0}), ["abc", "none"]),
        (mine({"abc": 0.1 + 0.2, "local": 0.3}), ["abc", "local"]),  # equal but for rounding
        (two() + mine({"none": 2.0}) + mine({"none": 2.0}, "mae"), []),  # a metric of none alone is not scored
    ],
)
def test_values_that_cannot_be_normalized_leave_no_index(rows, without):
    made = scored(rows).table
    of_task = made[made["task"] == "mine"]
    assert of_task.loc[of_task["index"].isna(), "attention"].tolist() == without
    assert "abc" in without or index_of(made, "abc") == pytest.approx(math.sqrt(0.5))


def test_attentions_trained_differently_are_named(caplog):
    def trained(attention: str, steps: int, other: str = "vanilla", value: float = 0.4) -> dict[str, Any]:
        config = result(value, attention)["config"]
        config |= {"trainer": {"max_steps": steps, "num_workers": steps}, "other_attention": other}
        return result(value, attention, config=config)

    alike = [trained("vanilla", 200), trained("abc", 200)]
    comparable(table(*alike))
    assert not caplog.text
    comparable(table(*alike, trained("s4d", 2000, value=math.nan)))
    assert not caplog.text, "a run without a score is compared with none"
    comparable(table(*alike, trained("local", 2000)))
    assert "lstf etth1 M informer NC" in caplog.text
    assert "vanilla: trainer.max_steps=200; local: trainer.max_steps=2000" in caplog.text
    comparable(table(*alike, trained("lara", 200, "probsparse")))
    assert "lara: other_attention=probsparse" in caplog.text
