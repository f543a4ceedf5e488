"""What a command says of its cells before and while they run."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from attentions.softmax import VanillaAttention
from cab.config.run_config import ClusterConfig
from cab.errors import UnsupportedError, UserError
from cab.records.files import record_path
from cab.records.record import Record, with_checksum
from cab.runner.launch import run_jobs
from cab.runner.plan import planned_runs
from cab.runner.report import Job, Outcome, Report
from cab.runner.run import run_cell
from tests.helpers.earlier_records import as_before
from tests.helpers.runs.troubled import trained


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("expected", "story"),
    [
        (12, [(0, "cached", " (1 of 12)"), (6, "completed", " (2 of 12, about 1 min left)"),
              (114, "completed", " (3 of 12, about 9 min left)")]),
        (2, [(60, "completed", " (1 of 2, about 1 min left)"), (0, "completed", " (2 of 2)")]),
        (1, [(5, "completed", "")]),
    ],
)  # fmt: skip
def test_the_time_left_is_estimated_from_the_first_trained_cell_on(expected, story, clock):
    report = Report(expected=expected, started=clock[0])
    for seconds, kind, progress in story:
        clock[0] += seconds
        report.add(Outcome("a cell", kind, None))
        assert report.progress() == progress


def test_a_cell_without_a_record_is_none_of_the_rest():
    report = Report(expected=4)
    report.add_error(UnsupportedError("no such cell"), "cab run a")
    report.add_error(UserError("a mistake"), "cab run b")
    report.add(Outcome("c", "cached", None))
    assert report.progress() == " (1 of 2)"
    assert (report.left_out, report.failures) == (["no such cell"], ["cab run b: a mistake"])


@pytest.mark.parametrize(("is_single", "status"), [(True, 75), (False, 0)])
def test_a_single_run_that_is_busy_has_its_own_status(is_single, status):
    report = Report(raises=is_single)
    report.add(Outcome("a cell", "locked", None))
    assert report.exit_status == status


@pytest.fixture
def configs(troubled):
    """Four cells: two with records of other code, one with a record of today's, one without."""
    configs = [troubled("trainer.max_steps=1", f"seed={seed}") for seed in range(4)]
    for seed, config in enumerate(configs[:3]):
        record = trained(config)
        if seed < 2:
            project = {**record.program.project, "cab.runner.batches": "0" * 16}
            program = dataclasses.replace(record.program, project=project)
            dataclasses.replace(record, program=program).write(Path(config["results_dir"]))
    return configs


def run(configs: list[dict[str, Any]], **answer: Any) -> list[str]:
    jobs = [Job({**config, **answer}, "") for config in configs]
    return [outcome.kind for outcome in run_jobs(jobs, Report(), ClusterConfig()).outcomes]


def test_a_sweep_asks_once_before_it_runs(configs, caplog):
    jobs = [Job(config, "") for config in configs]
    question = "2 of 3 records were measured with other code of the project (cab.runner.batches): add accept_code=true "
    question += "to use them, or accept_code=false to run their cells again"
    for command in (lambda: run(configs), lambda: planned_runs(jobs, Report())):
        with pytest.raises(UserError) as asked:
            command()
        assert str(asked.value) == question
    assert len(list(Path(configs[0]["results_dir"]).glob("*.json"))) == 3, "nothing was run"
    assert run(configs, accept_code=True) == ["cached", "cached", "cached", "completed"]
    assert caplog.text.count("cached: other code of the project (cab.runner.batches) since") == 2
    assert run(configs, accept_code=False) == ["completed", "completed", "cached", "cached"]
    assert run(configs) == ["cached"] * 4


def test_a_record_from_before_an_upgrade_is_found_under_its_name(troubled):
    """The first of a configuration, and one named after its code."""
    config = troubled("trainer.max_steps=1")
    record = trained(config)
    path = record_path(Path(config["results_dir"]), record.hash)
    code = as_before(path, VanillaAttention)
    assert run_cell(config).kind == "cached"
    path.rename(path.with_name(f"{record.hash}-{code[:8]}.json"))
    assert run_cell(config).kind == "cached"
    content = json.loads(path.with_name(f"{record.hash}-{code[:8]}.json").read_text())
    other = {**content, "program": {"attention": {}, "project": {}}, "attention_code": "1" * 16}
    path.write_text(json.dumps(with_checksum(other)))
    assert Record.read(path).attention_code == "1" * 16
    assert run_cell(config).kind == "cached"
