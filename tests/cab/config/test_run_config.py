"""The checked configuration of a run, its precision on a device, and the committed records that were made from one."""

import functools
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from cab import UserError
from cab.config.compose import compose
from cab.config.run_config import Precision, RunConfig
from cab.patterns import Pattern
from cab.records.files import REFERENCE_DIRS, record_paths
from cab.records.identity import configured, differences
from cab.records.names import names_of_programs
from cab.records.record import Record, records_in
from cab.results.changed_settings import with_changed
from cab.results.verdict import frame_of
from cab.runner.cell import Cell
from cab.runner.engine import check_without_data
from cab.runner.provenance import about_run, identity_of
from cab.spec import Spec
from tests.helpers.made_records import bundled, make_record
from tests.helpers.suite_records import with_config

CELL = ["task=lm", "dataset=synthetic", "backbone=gpt2", "attention=abc", "pattern=causal_self", "preset=smoke"]


composed = functools.cache(lambda *overrides: compose(overrides))


def config(**changes: Any) -> RunConfig:
    return RunConfig.from_dict(composed(*CELL) | changes)


def test_values_are_parsed_once():
    checked = config(other_attention={"NS": {"name": "local", "window_size": 8}}, force="yes", data_root="~/data")
    assert checked.pattern is Pattern.CS
    assert checked.attention.name == "abc"
    others = {Pattern.NS: Spec("local", {"window_size": 8}), Pattern.CC: Spec("vanilla")}
    assert others.items() <= checked.other_attention.items()
    assert checked.data_root == Path.home() / "data"
    assert checked.force is checked.resolved["force"] is True
    assert checked.resolved["pattern"] == "CS"
    assert checked.trainer.batch_size == checked.resolved["trainer"]["batch_size"]


def test_a_wrong_key_is_one_line():
    """tests/cab/cli/test_main_mistakes.py has wrong values."""
    with pytest.raises(UserError, match=r"^unknown option 'sed': did you mean 'seed'.*\Z"):
        config(sed=1)


@pytest.mark.parametrize(("task", "attention"), [("lstf", "abc"), ("mlm", "local")])
def test_a_new_run_has_the_hash_of_the_committed_record(task, attention):
    record = bundled(REFERENCE_DIRS[1], task=task, attention=attention)
    overrides = shlex.split(record.command.removeprefix("cab run "))
    assert Cell.from_config(compose(overrides)).hash == record.hash


def test_records_are_ordered_by_cell(tmp_path):
    records = [Record.read(path) for path in record_paths(REFERENCE_DIRS[1])[:12]]
    for number, record in enumerate(reversed(records)):
        record.write(tmp_path, f"{number:02}")
    expected = sorted(records, key=lambda record: list(record.cell.values()))
    assert [record.hash for _, record in records_in(tmp_path, [])] == [record.hash for record in expected]


CPU, GPU = torch.device("cpu"), torch.device("cuda")
LSTF = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=abc", "pattern=CS"]


def cell(*overrides: str, preset: str = "mini") -> Cell:
    return Cell.from_config(composed(*LSTF, f"preset={preset}", *overrides))


@pytest.mark.parametrize(
    ("preset", "options", "on_cpu", "on_gpu", "products"),
    [
        ("mini", {}, "32-true", "bf16-mixed", "highest"),
        ("smoke", {}, "32-true", "bf16-mixed", "highest"),
        ("paper", {}, "32-true", "32-true", "high"),
        ("paper", {"precision": "bf16-mixed"}, "bf16-mixed", "bf16-mixed", "high"),
        ("paper", {"float32_matmul_precision": "highest"}, "32-true", "32-true", "highest"),
        ("mini", {"precision": "32-true"}, "32-true", "32-true", "highest"),
        ("mini", {"precision": "16-mixed"}, "16-mixed", "16-mixed", "highest"),
    ],
)
def test_auto_depends_on_device_and_preset_and_a_given_value_does_not(preset, options, on_cpu, on_gpu, products):
    """``products`` of float32 on a GPU, but not with other engines."""
    config = cell(*(f"trainer.{name}={value}" for name, value in options.items()), preset=preset).config
    fairseq = RunConfig.from_dict({**config.resolved, "engine": "fairseq"})
    assert config.precision_on(CPU) == Precision(on_cpu, "highest")
    assert config.precision_on(GPU) == Precision(on_gpu, products)
    assert fairseq.precision_on(GPU) == Precision(on_gpu, "highest")
    assert config.autocast(GPU).fast_dtype == (torch.float16 if on_gpu == "16-mixed" else torch.bfloat16)
    assert config.autocast(CPU)._enabled == (on_cpu != "32-true")


def test_a_plan_without_a_gpu_has_the_hash_of_its_run(monkeypatch):
    """On the login node of a cluster torch sees no GPU; the job does."""
    planned = cell()
    assert check_without_data(planned)[1] == CPU
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run = cell()
    assert check_without_data(run)[1] == GPU
    assert run.hash == planned.hash
    monkeypatch.setattr("cab.runner.provenance.hardware", lambda _: {})
    monkeypatch.setattr(run.task, "fingerprint", dict)
    about = about_run(run, "", GPU)
    assert about.config["trainer"]["precision"] == "bf16-mixed"
    assert about.hash == planned.hash
    identity = identity_of(planned, {})
    assert "trainer.precision" not in identity.configuration
    assert differences(identity_of(run, {}, GPU), identity) == {}, "the record is found from the login node"
    [text] = differences(identity_of(run, {}, GPU), identity_of(run, {}, CPU)).values()
    assert text == "trainer.precision was bf16-mixed, is 32-true", "a checkpoint is not resumed in another precision"


def test_precisions_are_rows_of_their_own_and_an_unknown_one_is_not():
    """A run that was lost before it had a device has auto."""
    record = make_record({"mse": 1.0}, attention="abc")
    precisions = ("32-true", "32-true", "bf16-mixed", "auto")
    records = [with_config(record, trainer={"precision": precision}) for precision in precisions]
    assert names_of_programs(records) == ["abc", "abc", "abc [trainer.precision=bf16-mixed]", "abc"]


def test_what_auto_means_in_preset_paper_is_no_changed_setting():
    config = cell(preset="paper").config
    record = make_record({"mse": 1.0}, config=config.resolved, **cell(preset="paper").key)
    on_gpu = with_config(record, trainer=config.resolved_on(GPU)["trainer"])
    assert on_gpu.config["trainer"]["float32_matmul_precision"] == "high"
    given = cell("trainer.precision=bf16-mixed", preset="paper")
    other = make_record({"mse": 1.0}, config=given.config.resolved, **given.key)
    found = with_changed(frame_of([on_gpu, other]))["changed"]
    assert found.tolist() == [(), ("trainer.precision=bf16-mixed",)]


def test_a_record_is_repeated_with_auto_on_any_device():
    config: dict[str, Any] = {"trainer": {"precision": "bf16-mixed", "float32_matmul_precision": "highest"}}
    assert configured(config, {})["trainer"] == {"precision": "auto", "float32_matmul_precision": "auto"}
    given = configured(config, {"trainer.precision": "bf16-mixed"})["trainer"]
    assert given == {"precision": "bf16-mixed", "float32_matmul_precision": "auto"}
    assert configured({"trainer": {}}, {}) == {"trainer": {}}, "older records"


def test_cudnn_follows_the_option_of_products(monkeypatch):
    monkeypatch.setattr("torch.backends.cudnn.allow_tf32", True)
    for config, device, allowed in ((cell().config, GPU, False), (cell(preset="paper").config, GPU, True)):
        with config.matmul_precision(device):
            assert torch.backends.cudnn.allow_tf32 == allowed
            assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
