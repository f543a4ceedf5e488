"""Which cells a sweep has, what a dry run says of them, and what it may not do."""

import statistics

import pytest

from cab.cli.main import main
from cab.records.record import records_in
from cab.registry.names import is_generated
from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.tables import read_rows
from cab.runner import launch
from cab.runner.cell import runnable_cells
from cab.runner.launch import expand, jobs_of
from cab.runner.report import Report
from tests.helpers.command import ROOT
from tests.helpers.runs.fixtures import TROUBLED


def cells(*overrides: str) -> tuple[list[dict[str, str]], list[str]]:
    jobs, left_out = expand(overrides)
    return [dict(override.split("=", 1) for override in job) for job in jobs], left_out


COST_KEYS = ("preset", "task", "dataset", "backbone", "pattern")
INDEXED = {"tts", "sum", "lstf", "pcc", "lm", "mlm", "sr"}
"""The seven tasks of the benchmark; a sweep runs the others where they are named."""


def test_what_is_not_named_means_all_that_can_run():
    jobs, left_out = cells("pattern=CC")
    expected = {c for c in runnable_cells() if c[3] == "CC" and c[1] != "synthetic" and c[0] in INDEXED}
    assert {(j["task"], j["dataset"], j["backbone"], j["pattern"], j["attention"]) for j in jobs} == expected
    assert len(jobs) == len(expected)
    assert left_out == []


def test_a_glob_lists_the_names_that_match():
    named = ["task=lstf", "dataset=synthetic", "pattern=NS"]
    names = [entry.name for entry in ATTENTIONS if entry.name.endswith("former") and "NS" in entry.patterns]
    assert len(names) > 5
    some = ["abc", *(name for name in names if name[0] not in "cp")]
    for glob, expected in (("glob(*former)", names), ("glob([*former,abc],exclude=[c*,p*])", some)):
        assert sorted(job["attention"] for job in cells(*named, f"attention={glob}")[0]) == sorted(expected)


def test_a_task_outside_the_index_runs_where_it_is_named():
    jobs, left_out = cells("task=probe", "pattern=NC", "attention=vanilla")
    assert {job["dataset"] for job in jobs} == {"recall", "noisy", "copying", "compression"}
    assert left_out == []
    assert "probe" not in {job["task"] for job in cells("attention=vanilla")[0]}
    _, left_out = cells("task=probe", "dataset=mqar,recall", "pattern=NS", "attention=vanilla")
    assert left_out == ["dataset 'mqar' of task 'probe' does not support pattern NS (supported: CS)"]


def test_named_combinations_that_cannot_run_are_left_out_with_the_reason():
    jobs, left_out = cells("task=lstf,lm", "dataset=synthetic", "attention=probsparse,vanilla", "pattern=NS,CS,CC")
    found = {" ".join((job["task"], job["pattern"], job["attention"])) for job in jobs}
    assert found == {"lstf NS probsparse", "lstf NS vanilla", "lstf CS vanilla", "lm CS vanilla"}
    assert sum("'probsparse' does not support pattern CS" in reason for reason in left_out) == 1
    assert any("pattern=CC" in reason for reason in left_out)


@pytest.mark.parametrize(
    ("overrides", "names", "expected"),
    [
        ("attention=abc,none attention.num_landmarks=4,8", "attention attention.num_landmarks", "abc 4, abc 8, none -"),
        ("attention=abc seed=range(1,3) trainer.max_grad_norm=0,1", "seed trainer.max_grad_norm", "1 0, 1 1, 2 0, 2 1"),
    ],
)  # fmt: skip
def test_overrides_multiply_and_an_option_goes_to_those_that_have_it(overrides, names, expected):
    jobs, _ = cells("task=lstf", "dataset=synthetic", "pattern=NC", *overrides.split())
    assert sorted(" ".join(job.get(name, "-") for name in names.split()) for job in jobs) == expected.split(", ")


def test_a_dry_run_prints_hours_and_commands_and_runs_nothing(tmp_path, cab):
    """Hours apply to the options that they were measured with."""
    cells = ["task=lm,mlm", "dataset=pg19", "preset=paper", "attention=vanilla"]
    lines = cab("run", "-m", "--dry-run", *cells, f"results_dir={tmp_path}").out.splitlines()
    assert lines[0].split() == ["expected_time", "record", "command"]
    assert [line.split(")")[0].strip() for line in lines[1:4]] == ["384 h (GPU", "880 h (GPU", "1,264 h (GPU"]
    assert lines[4:6] == ["preset paper; device cpu", "data: pg19 missing (see `cab data list`)"]
    assert "cab run task=lm dataset=pg19 backbone=gpt2 pattern=CS attention=vanilla preset=paper" in lines[1]
    assert not any(tmp_path.iterdir())
    cell = ["task=sr", "dataset=ffhq", "pattern=NS", "attention=vanilla", "preset=paper", "task.scored_images=all"]
    for options, time in ((cell[:-1], "36 h (GPU)"), (cell, "- ")):
        assert cab("run", "--dry-run", *options).out.splitlines()[1].lstrip().startswith(time)


def test_the_core_of_the_suite_has_its_hours(cab, tmp_path):
    arguments = ["run", "suite=core", "attention=abc", "seed=1", f"results_dir={tmp_path}", "--dry-run"]
    *rows, total, _, _ = cab(*arguments).out.splitlines()[1:]
    assert len(rows) == 8
    assert not [row for row in rows if row.split()[0] == "-"]
    assert {row.split()[1] for row in (*rows, total)} == {"min"}
    assert float(total.split()[0]) == pytest.approx(sum(float(row.split()[0]) for row in rows), rel=0.05)
    assert total.endswith("8 runs to be done")


def test_every_cell_of_the_paper_has_its_hours_and_hours_are_of_what_exists():
    rows = read_rows("costs.csv")
    names = {(row["task"], row["dataset"], row["backbone"]) for row in rows if row["preset"] == "paper"}
    for task, dataset, backbone, *_ in runnable_cells():
        if task in INDEXED and not is_generated(dataset) and backbone in TASKS.get(task).names:
            assert {(task, dataset, backbone), (task, "", backbone)} & names, (task, dataset, backbone)
    for row in rows:
        entry = TASKS.get(row["task"])
        assert row["backbone"] in entry.backbones, row
        assert row["dataset"] in ("", *entry.datasets), row


def test_hours_of_committed_records_are_their_medians():
    stated = {}
    for row in read_rows("costs.csv"):
        if row["source"].startswith("median CPU time in results/"):
            folder = row["source"].rpartition("/")[2]
            stated[(folder, *(row[key] for key in COST_KEYS))] = float(row["hours"])
    seconds: dict[tuple[str, ...], list[float]] = {}
    for folder in ("core", "mini"):
        for _, record in records_in(ROOT / "results" / folder, []):
            key = (folder, *(record.cell[name] for name in COST_KEYS))
            seconds.setdefault(key, []).append(record.cost.cpu_seconds)
    assert len(stated) >= 15
    for key, hours in stated.items():
        measured = statistics.median(filter(None, seconds[key])) / 3600
        assert hours == pytest.approx(measured, rel=0.01), f"{' '.join(key)}: correct configs/costs.csv"
    assert {key[1:] for key in seconds if key[0] == "core"} <= {key[1:] for key in stated}


def test_a_dry_run_decides_as_the_run_does(troubled, tmp_path, capsys, cab):
    arguments = ["run", "-m", *TROUBLED, "seed=1,2", f"results_dir={tmp_path}"]

    def planned(*more):
        """What stands before each command, and how many cells are to be run."""
        capsys.readouterr()
        rows = cab(*arguments, *more, "--dry-run").out.splitlines()[1:]
        total = next(row for row in rows if "total of" in row)
        rows = rows[: rows.index(total)]
        return [row.partition("cab run")[0].split()[-1] for row in rows], total.partition("total of ")[2].split()[0]

    troubled(trouble="crash")
    assert main(arguments) == 1
    troubled()
    assert planned() == (["failed", "failed"], "0")
    assert planned("--retry=failed") == planned("force=true") == (["-", "-"], "2")
    assert main([*arguments, "--retry=failed"]) == 0
    assert planned("--retry", "failed") == (["finished", "finished"], "0")
    next(tmp_path.glob("*.json")).write_text("{")
    statuses, count = planned()
    assert (sorted(statuses), count) == (["-", "finished"], "1")


def test_an_exception_of_one_cell_leaves_the_others(tmp_path, monkeypatch):
    """As a class of the user's raises it; a mistake in a value ends the sweep instead."""
    compose = launch.Composer.__call__

    def raising(self, overrides):
        if "seed=2" in overrides:
            raise RuntimeError("broken class")
        return compose(self, overrides)

    monkeypatch.setattr(launch.Composer, "__call__", raising)
    place = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NS", "attention=abc", "preset=smoke"]
    report = Report()
    jobs = list(jobs_of([[*place, "seed=1,2,3", f"results_dir={tmp_path}"]], report, is_sweep=True))
    assert [job.config["seed"] for job in jobs] == [1, 3]
    assert report.exit_status == 1
