"""K: equal to a recomputation from the JSON files, and the verdicts and ranks that follow from it."""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from cab.errors import UserError
from cab.records.results import MINI_DIR, whole_records
from cab.scoring.statistics import Verdict
from cab.suite.anchors import Anchors, read_anchors, write_anchors
from cab.suite.cells import SuiteCell
from cab.suite.gain import CellGain, SuiteGains, compare, gains_of, suite_gains
from cab.suite.results import collect, read_suite
from cab.suite.table import gain_rows
from tests.cab.suite.conftest import FORMER
from tests.cab.suite.suite_records import lstf_record
from tests.scripts.test_scripts import SCRIPTS

pytestmark = pytest.mark.usefixtures("former_suite")

CELL = SuiteCell("lstf", "informer", "CS", "synthetic", "mse", "linear", True, "ridge", "", True, "")
ANCHORS = Anchors("", {"vanilla": [0.0064, 0.0065, 0.0063], "none": [0.70, 0.702, 0.698]}, {})


def gains(**values: list[float]) -> dict[str, CellGain]:
    return gains_of(CELL, ANCHORS, values)


def recomputed() -> dict[tuple[str, str], float]:
    """K by (pattern, attention), from the CSV files and the JSON files alone."""
    cells = {(r["task"], r["backbone"], r["pattern"]): r for r in csv.DictReader((FORMER / "cells.csv").open())}
    test = defaultdict(list)
    for row in csv.DictReader((FORMER / "anchors.csv").open()):
        test[row["task"], row["backbone"], row["pattern"], row["attention"]].append(float(row["test"]))
    values = {key: list(found) for key, found in test.items()}
    for path in MINI_DIR.glob("*.json"):
        record = json.loads(path.read_text())
        key = tuple(record["cell"][name] for name in ("task", "backbone", "pattern", "attention"))
        if key[:3] in cells and key[3] not in ("vanilla", "none"):
            metric = cells[key[:3]]["metric"]
            values.setdefault(key, []).append(next(m["value"] for m in record["metrics"] if m["name"] == metric))
    scores = {
        key: np.log(found).mean() if cells[key[:3]]["scale"] == "log" else np.mean(found)
        for key, found in values.items()
    }
    core = [key for key, row in cells.items() if row["core"] == "yes"]
    shares = {}
    for pattern in sorted({key[2] for key in core}):
        own = [key for key in core if key[2] == pattern]
        for name in {key[3] for key in scores}:
            if not all((*key, name) in scores for key in own):
                continue
            tasks = defaultdict(list)
            for key in own:
                softmax, without = scores[*key, "vanilla"], scores[*key, "none"]
                tasks[key[0]].append(np.clip(100 * (scores[*key, name] - without) / (softmax - without), 0, 100))
            shares[pattern, name] = float(np.mean([np.mean(part) for part in tasks.values()]))
    return shares


def reference() -> SuiteGains:
    return suite_gains(read_suite(MINI_DIR))


def test_k_equals_a_recomputation_from_the_files() -> None:
    expected = recomputed()
    found = {
        (pattern, name): gain.estimate.value
        for pattern, own in reference().patterns.items()
        for name, gain in own.items()
        if gain.estimate
    }
    assert found.keys() == expected.keys()
    assert len(found) > 8
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6), key


def test_without_a_core_cell_there_is_no_k() -> None:
    rows = {row.gain.attention: row for row in gain_rows(reference(), "CS")}
    assert (rows["gla"].gain.estimate, rows["gla"].rank, rows["gla"].texts[1]) == (None, None, "-")
    assert rows["gla"].texts[4] == "1 of 2"
    assert rows["performer"].texts[1].endswith("*"), "one seed in LM"
    assert math.isnan(rows["performer"].gain.interval[0])
    assert not rows["performer"].is_best
    assert rows["vanilla"].is_best
    assert not rows["local"].is_best


def test_an_invalid_cell_is_not_needed_for_k() -> None:
    found = suite_gains(read_suite(MINI_DIR), [("lm", "gpt2", "CS")]).patterns["CS"]
    assert found["gla"].estimate is not None
    assert found["gla"].core == 1


def test_the_anchors_variance_widens_the_interval() -> None:
    gain = gains(abc=[0.1, 0.11, 0.12])["abc"]
    share, n = gain.own.value / 100, 3
    scale = 100 / (0.7 - 0.0064)
    deviations = [scale * np.std(values, ddof=1) for values in ([0.1, 0.11, 0.12], *ANCHORS.test.values())]
    expected = (deviations[0] ** 2 + (share * deviations[1]) ** 2 + ((1 - share) * deviations[2]) ** 2) / n
    assert gain.total.variance == pytest.approx(expected)
    assert gain.own.variance == pytest.approx(deviations[0] ** 2 / n)


def test_clipping_and_solved_seeds() -> None:
    found = gains(worse=[0.8, 0.81, 0.82], mixed=[0.0064, 0.01, 0.5])
    assert found["worse"].own.value < 0
    assert found["worse"].retained == 0
    assert (found["mixed"].solved, len(found["mixed"].points)) == (2, 3)


def test_at_the_ceiling_errors_are_compared() -> None:
    """0.1 points of K, but an error 9% larger: seeds that a pooled interval called a tie."""
    anchors = read_anchors()["lstf", "informer", "CS"]
    newcomer = [0.00684, 0.00705, 0.00710]
    others = {
        name: [CELL.value(record) for record in runs.values()]
        for each in read_suite(MINI_DIR)
        if each.cell.key == CELL.key
        for name, runs in each.runs.items()
    }
    found = gains_of(CELL, anchors, {"newcomer": newcomer, **others})
    assert found["newcomer"].own.value > 99.8
    verdicts = compare({name: [gain] for name, gain in found.items()})
    assert verdicts["vanilla", "newcomer"] is Verdict.BETTER
    assert verdicts["newcomer", "gla"] is verdicts["newcomer", "local"] is Verdict.BETTER
    assert verdicts["newcomer", "abc"] is Verdict.EQUIVALENT
    assert verdicts["newcomer", "performer"] is Verdict.UNDECIDED


def test_anchors_are_frozen() -> None:
    """Results of the anchors change no score, and other data than the anchors' are excluded."""
    good = [lstf_record("abc", 0.1, seed) for seed in (1, 2)]
    strange = [lstf_record("vanilla", 5.0, 9), lstf_record("linear", 0.2, 1, data={"rows": 3})]
    [lone], [both] = ([r for r in collect(records) if r.runs] for records in (good, [*good, *strange]))
    assert both.left_out == {"linear": "seed 1 has other data or another task version than the suite's anchors"}
    assert suite_gains([lone]).cells == suite_gains([both]).cells


def test_two_results_of_one_seed_are_refused() -> None:
    with pytest.raises(UserError, match="two results of abc with seed 1 in lstf informer CS"):
        collect([lstf_record("abc", 0.1, 1), lstf_record("abc", 0.2, 1)])


def test_anchors_are_written(tmp_path: Path) -> None:
    path = tmp_path / "anchors.csv"
    records = [lstf_record(name, mse, seed) for name, mse in (("vanilla", 0.1), ("none", 0.9)) for seed in (1, 2)]
    assert write_anchors([*records, lstf_record("abc", 0.1, 1)], path) == 4
    test = read_anchors(path)["lstf", "informer", "CS"].test
    assert test["vanilla"] == pytest.approx([0.101, 0.102])
    assert test["none"] == pytest.approx([0.901, 0.902])
    with pytest.raises(UserError, match="different data"):
        write_anchors([*records, lstf_record("none", 0.9, 3, data={"rows": 3})], path)
    with pytest.raises(UserError, match="no results of vanilla or none"):
        write_anchors([], path)


def test_committed_anchors_are_of_committed_results(tmp_path: Path) -> None:
    written = tmp_path / "anchors.csv"
    write_anchors((record for _, record in whole_records(MINI_DIR, [])), written)
    assert written.read_text() == (FORMER / "anchors.csv").read_text()


@pytest.mark.slow
def test_intervals_and_verdicts_keep_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    simulation = importlib.import_module("simulate_statistics")
    random = np.random.default_rng(3)
    for situation in simulation.SITUATIONS:
        assert 0.925 < simulation.coverage(situation, 2000, random) < 0.975, situation.label
    for label, truths in simulation.EQUAL.items():
        assert simulation.false_verdicts(truths, 400, random) < 0.05, label
