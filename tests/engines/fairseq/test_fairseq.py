"""`cab run engine=fairseq`: the record, resuming after a cut, and what is refused before anything is written."""

import csv
import functools
import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch

from cab import UserError
from cab.cli.main import main
from cab.config.compose import compose
from cab.runner.cell import Cell
from cab.runner.processes import Processes
from engines.fairseq import check, environment, restore_last
from engines.fairseq.command import network_arguments, precision_arguments, trainer_arguments
from tests.helpers.command import records, run_cab

LM = ["task=lm", "dataset=synthetic", "pattern=CS", "preset=smoke", "engine=fairseq", "device=cpu", "attention=vanilla"]
SUM = ["task=sum", "dataset=synthetic", "pattern=CC", "preset=smoke", "engine=fairseq", "device=cpu", "attention=abc"]
MLM = ["task=mlm", "dataset=synthetic", "pattern=NS", "preset=smoke", "engine=fairseq", "device=cpu", "attention=local"]
LONGER = [*LM, "trainer.max_steps=40", "trainer.checkpoint_every=10", "trainer.validate_every=20"]
LONGER += ["trainer.log_every=5"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder with the record of a cell, which is run once."""

    @functools.cache
    def run(*cell):
        folder = tmp_path_factory.mktemp("finished")
        assert main(["run", *cell, f"results_dir={folder}"]) == 0
        return folder

    return run


@pytest.mark.parametrize(("cell", "steps", "error"), [(LONGER, 40, 1e-3), (MLM, 8, 0.05)], ids=["lm", "mlm"])
def test_a_cell_leaves_the_usual_record(cell, steps, error, finished):
    (record,) = records(finished(*cell))
    assert (record["engine"], record["status"]) == ("fairseq", "finished")
    assert record["cell"]["config_variant"] == "fairseq"  # a row of its own in every table
    assert record["cost"]["steps"] == steps
    assert [entry["step"] for entry in record["history"]] == list(range(1, steps + 1))
    validations = [entry["validation"] for entry in record["history"] if entry["validation"] is not None]
    assert validations[-1] < validations[0]
    ppl = next(metric["value"] for metric in record["metrics"] if metric["name"] == "ppl")
    # The same weights and tokens; of masked tokens each masks its own, and fairseq's pages begin with a mark.
    assert record["engine_facts"]["perplexity"] == pytest.approx(ppl, rel=error)


def test_a_cut_run_resumes_and_ends_where_it_would_have(finished, tmp_path):
    """Cut while fairseq writes its second checkpoint. The run resumes from the first, whose copy is incomplete."""
    results = f"results_dir={tmp_path / 'cut'}"
    done = run_cab(*LONGER, results, stop=f"parent:{signal.SIGTERM:d} _20.pt {tmp_path / 'stopped'}")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert (tmp_path / "stopped").exists(), "stopped by somebody else"
    (last,) = (tmp_path / "cut").glob("*/fairseq/checkpoint_last.pt")
    last.write_bytes(last.read_bytes()[:-100])  # fairseq copies it, which can be cut as well
    assert not records(tmp_path / "cut")
    assert main(["run", *LONGER, results]) == 0
    (log,) = (tmp_path / "cut").glob("*/fairseq/train.log")
    resumed = re.findall(r"Loaded checkpoint .*checkpoint_last.pt \(epoch \d+ @ (\d+) updates\)", log.read_text())
    assert resumed == ["10"]
    (first,), (second,) = records(finished(*LONGER)), records(tmp_path / "cut")
    (table,) = (tmp_path / "cut").glob("*/metrics.csv")
    assert [row["step"] for row in csv.DictReader(table.read_text().splitlines())] == [str(5 * n) for n in range(1, 9)]
    assert second["cost"]["steps"] == 40
    for one, other in zip(first["metrics"], second["metrics"], strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-4), one["name"]


def test_fairseq_generates_our_summaries(finished):
    (record,) = records(finished(*SUM))
    scores = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert scores["rouge1"] > 5
    for name in ("rouge1", "rouge2", "rougeL"):
        assert record["engine_facts"][name] == pytest.approx(scores[name], abs=0.01)


def test_two_processes_train_in_bfloat16(finished, tmp_path):
    """Near one process in float32, which reads the same tokens in other batches."""
    done = run_cab(*MLM, "trainer.precision=bf16-mixed", f"results_dir={tmp_path}", processes=2)
    assert done.returncode == 0, done.stderr
    (one,), (two,) = records(finished(*MLM)), records(tmp_path)
    assert two["cost"]["processes"] == 2
    assert {"--distributed-world-size", "--autocast"} <= {*two["engine_facts"]["arguments"]}
    assert two["metrics"][0]["value"] == pytest.approx(one["metrics"][0]["value"], rel=0.05)


@pytest.mark.without_environment
@pytest.mark.parametrize("cell", ["lm gpt2 CS", "mlm roberta NS", "sum transformer CC"])
def test_cells_of_preset_paper_pass_the_checks_on_eight_gpus(cell, tmp_path, monkeypatch):
    """In 16 bit, where the published runs had it, with the batch of the paper."""
    monkeypatch.setattr(environment, "HOME", tmp_path)
    (tmp_path / "ready").touch()
    task, backbone, pattern = cell.split()
    options = [f"task={task}", f"backbone={backbone}", f"pattern={pattern}", "attention=abc", "preset=paper"]
    cell = Cell.from_config(compose([*options, "dataset=synthetic", "engine=fairseq"]))
    processes, trainer = Processes(rank=3, count=8, local_rank=3), cell.config.trainer
    check(cell, processes)
    half = precision_arguments(cell.config.precision_on(torch.device("cuda")).precision, "cuda")
    assert half == ([] if task == "lm" else ["--amp"])
    words = trainer_arguments(trainer, seed=1, num_processes=8)
    size, pieces = (int(words[words.index(name) + 1]) for name in ("--batch-size", "--update-freq"))
    assert 8 * size * pieces == trainer.batch_size


EVERY = "trainer.validate_every=20"
INTERVALS = {
    f"{EVERY} trainer.checkpoint_every=50": ["8", "8", "20", "20"],
    f"{EVERY} trainer.checkpoint_every=10": ["8", "8", "20", "10"],
    f"{EVERY} trainer.checkpoint_every=50 trainer.checkpoint_selection=last": ["8", "8", "20", "50"],
    "trainer.validate_every=epoch": ["", "", "", "2"],
}


@pytest.mark.without_environment
@pytest.mark.parametrize("options", INTERVALS)
def test_fairseq_validates_when_the_run_does(options):
    """Not after each epoch as well; and the best of all validations has a checkpoint."""
    words = trainer_arguments(Cell.from_config(compose([*LM, *options.split()])).config.trainer, seed=1)
    names = [f"--{kind}-interval{unit}" for unit in ("", "-updates") for kind in ("validate", "save")]
    assert [words[words.index(name) + 1] if name in words else "" for name in names] == INTERVALS[options]


REFUSED = [
    ("trainer.strategy=fsdp", r"trainer\.strategy=fsdp with several processes"),
    ("trainer.compile=true", r"trainer\.compile=true"),
    ("trainer.schedule=exponential", r"trainer\.schedule=exponential"),
    ("trainer.checkpoint_selection=average", r"trainer\.checkpoint_selection=average"),
    ("trainer.batch_size=5 trainer.micro_batch_size=2", "trainer.batch_size 5 must be a multiple of 2 processes x"),
    ("task=lstf backbone=informer pattern=NC preset=smoke", "task 'lstf': fairseq has no task for forecasts"),
    ("task=lm_recurrent", "fairseq's language models have no memory of earlier blocks"),
    ("backbone.residual=gtrxl", r"backbone\.residual=gtrxl"),
    ("backbone.positions=none", r"backbone\.positions=none"),
]


@pytest.mark.without_environment
@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_unsupported_settings_are_refused(overrides, message):
    """In two processes, before the environment is looked for."""
    changed = [word.partition("=")[0] for word in overrides.split()]
    kept = [word for word in LM if word.partition("=")[0] not in changed]
    cell = Cell.from_config(compose([*kept, *overrides.split()]))
    if "backbone." in overrides:
        vars(cell)["task"] = SimpleNamespace(backbone_options=lambda _: {})
    with pytest.raises(UserError, match=message):
        network_arguments(cell) if "backbone." in overrides else check(cell, Processes(count=2))


@pytest.mark.without_environment
def test_an_incomplete_last_checkpoint_is_replaced_by_the_newest_complete_one(tmp_path):
    last = tmp_path / "checkpoint_last.pt"
    for number, name in enumerate(("checkpoint_best", "checkpoint_1_10", "checkpoint_last", "initial")):
        torch.save(name, tmp_path / f"{name}.pt")
        os.utime(tmp_path / f"{name}.pt", (number, number))
    restore_last(tmp_path)
    assert torch.load(last) == "checkpoint_last"
    last.write_bytes(last.read_bytes()[:-1])
    restore_last(tmp_path)
    assert torch.load(last) == "checkpoint_1_10"
    for path in tmp_path.iterdir():
        path.write_bytes(b"cut")
    restore_last(tmp_path)
    assert not last.exists()
