"""Records of other code of the project: one question per command, whose answer stands for all of its cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attentions.softmax import VanillaAttention
from cab.config.run_config import ClusterConfig
from cab.errors import UserError
from cab.records.files import record_path
from cab.records.record import Record, with_checksum
from cab.runner.launch import run_jobs
from cab.runner.plan import planned_runs
from cab.runner.report import Job, Report
from cab.runner.run import run_cell
from tests.helpers.earlier_records import as_before
from tests.helpers.runs.troubled import trained

QUESTION = (
    "2 of 3 records were measured with other code of the project (cab.runner.batches): add accept_code=true to use "
    "them, or accept_code=false to run their cells again"
)


def with_other_code(path: Path, module: str) -> None:
    content = json.loads(path.read_text())
    assert module in content["program"]["project"]
    content["program"]["project"][module] = "0" * 16
    path.write_text(json.dumps(with_checksum(content)))


@pytest.fixture
def configs(troubled):
    """Four cells: two with records of other code, one with a record of today's, one without."""
    configs = [troubled("trainer.max_steps=1", f"seed={seed}") for seed in range(4)]
    for config in configs[:3]:
        record = trained(config)
        path = record_path(Path(config["results_dir"]), record.hash)
        if config is not configs[2]:
            with_other_code(path, "cab.runner.batches")
    return configs


def run(configs: list[dict[str, Any]], **answer: Any) -> list[str]:
    jobs = [Job({**config, **answer}, "") for config in configs]
    return [outcome.kind for outcome in run_jobs(jobs, Report(), ClusterConfig()).outcomes]


def test_a_sweep_asks_once_before_it_runs(configs, caplog):
    with pytest.raises(UserError) as asked:
        run(configs)
    assert str(asked.value) == QUESTION
    with pytest.raises(UserError) as asked:
        planned_runs([Job(config, "") for config in configs], Report())
    assert str(asked.value) == QUESTION
    assert len(list(Path(configs[0]["results_dir"]).glob("*.json"))) == 3, "nothing was run"
    assert run(configs, accept_code=True) == ["cached", "cached", "cached", "completed"]
    assert caplog.text.count("cached: other code of the project (cab.runner.batches) since") == 2
    assert run(configs, accept_code=False) == ["completed", "completed", "cached", "cached"]
    assert run(configs) == ["cached"] * 4


def test_a_single_cell_asks_the_same(configs):
    with pytest.raises(UserError, match=r"1 of 1 record was measured with other code of the project \(cab.runner.bat"):
        run_cell(configs[0])


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
