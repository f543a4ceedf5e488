"""`suite=paper` has exactly the cells of Table 3, each with its data sets, variants and repetitions."""

import csv
import itertools
from collections import Counter

import pytest

from cab.records.files import PAPER_DIR
from cab.runner.plan import hours_until_done
from cab.runner.suite import suite_sweeps

Run = tuple[str, ...]


def runs(*overrides: str) -> list[Run]:
    """Pattern, task, backbone, data set, attention, features and seed of each run of the sweeps."""
    found = []
    for sweep in suite_sweeps(["suite=paper", *overrides]) or []:
        values = dict(override.split("=", 1) for override in sweep)
        names = ("pattern", "task", "backbone", "dataset", "attention", "task.features", "seed")
        found += itertools.product(*(values.get(name, "").split(",") for name in names))
    return found


def expected() -> list[Run]:
    """The runs of the table, written out: LSTF in five sets, two variants, five or three times; all others once."""
    names, found = ("pattern", "task", "backbone", "dataset", "attention"), []
    with (PAPER_DIR / "results.csv").open(newline="") as file:
        cells = dict.fromkeys(tuple(row[name] for name in names) for row in csv.DictReader(file))
    for pattern, task, backbone, dataset, attention in cells:
        sets = {"ett": ["etth1", "etth2", "ettm1"]}.get(dataset, [dataset])
        repetitions = {"ett": 5, "ecl": 3, "weather": 3}.get(dataset, 1)
        variants = ["M", "S"] if task == "lstf" else [""]
        for name, variant, seed in itertools.product(sets, variants, range(1, repetitions + 1)):
            found.append((pattern, task, backbone, name, attention, variant, str(seed)))
    return found


def test_the_runs_are_those_of_table_3():
    assert Counter(runs()) == Counter(expected())
    assert len(runs()) == 251
    assert {run[-1] for run in runs("seed=7,8")} == {"7", "8"}, "those of the command line"


def test_a_rehearsal_has_every_cell_once_per_variant_with_two_seeds():
    cells = {(*run[:3], "synthetic", *run[4:6], seed) for run in expected() for seed in "12"}
    assert Counter(runs("preset=smoke", "dataset=synthetic")) == Counter(cells)


@pytest.mark.parametrize(
    ("overrides", "chosen"),
    [
        (["pattern=CS,causal_cross"], lambda run: run[0] in ("CS", "CC")),
        (["task=lstf", "attention=abc"], lambda run: run[1] == "lstf" and run[4] == "abc"),
        (["dataset=etth1,pcn"], lambda run: run[3] in ("etth1", "pcn")),
        (["backbone=fastspeech2"], lambda run: run[2] == "fastspeech2"),
    ],
)
def test_names_select_a_part(overrides, chosen):
    assert Counter(runs(*overrides)) == Counter(filter(chosen, expected()))


def test_an_attention_that_the_table_lacks_runs_in_the_cells_of_its_patterns(tmp_path, monkeypatch, registers):  # noqa: ARG001
    places = {run[:4] + run[5:] for run in expected()}
    assert {run[:4] + run[5:] for run in runs("attention=gla")} == {place for place in places if place[0] == "CS"}
    (tmp_path / "mine.py").write_text("from cab import Attention\nclass Mine(Attention):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    own = suite_sweeps(["suite=paper", "attention=mine.py:Mine"]) or []
    assert len(own) == len(suite_sweeps(["suite=paper", "attention=vanilla"]) or [])
    assert all("attention=mine.py:Mine" in sweep for sweep in own)


def test_the_plan_counts_hours_days_and_reused_networks(tmp_path, cab):
    part = ["suite=paper", "task=pcc,sum", "attention=vanilla", f"results_dir={tmp_path}"]
    lines = cab("run", *part, "--dry-run").out.splitlines()
    assert [line.split() for line in lines[1:6]] == [
        ["NS", "sum", "transformer", "multi_news", "1", "1", "96", "96"],
        ["CS", "sum", "transformer", "multi_news", "1", "0", "96", "0"],
        ["NC", "pcc", "pointr", "pcn", "1", "1", "576", "576"],
        ["CC", "sum", "transformer", "multi_news", "1", "0", "96", "0"],
        ["total", "4", "2", "672"],
    ]
    assert lines[6] == "preset paper; device cpu"
    assert lines[7] == "data: multi_news, pcn missing (see `cab data list`)"
    assert lines[8].endswith("28 days on 1 GPU, 12 days on 8 GPUs; the longest run takes 288 hours on 2")
    assert lines[9].startswith("2 runs with the same network as another one: 192 of 864 hours")
    assert len(lines) == 10


@pytest.mark.parametrize(
    ("runs", "gpus", "hours"),
    [
        ([(96, 1)] * 6, 8, 96),
        ([(96, 1)] * 9, 8, 192),
        ([(576, 2), (96, 1)], 8, 288),
        ([(576, 2), (96, 1)], 1, 672),
        ([(10, 1), (6, 1), (4, 1), (4, 2)], 2, 12),
    ],
)
def test_the_days_follow_from_the_longest_run_and_the_requested_gpus(runs, gpus, hours):
    assert hours_until_done(runs, gpus) == hours
