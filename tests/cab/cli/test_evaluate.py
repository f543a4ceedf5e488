"""`cab evaluate`: the kept weights of a run are scored again."""

import shutil

import pytest

from cab.config.compose import compose
from cab.records.files import record_path
from cab.runner.evaluation import DeviceBatches
from cab.runner.run import run_cell
from tests.helpers.command import run_module

CELL = ["task=probe", "dataset=recall", "pattern=CS", "attention=vanilla", "preset=smoke", "device=cpu"]
CELL += ["trainer.max_steps=2", "task.test_examples=40", "task.evaluation_batch_size=16", "task.examples=64"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    record = run_cell(compose([*CELL, f"results_dir={folder}"])).record
    return record_path(folder, record.hash)


def table(text: str) -> dict[str, tuple[str, str]]:
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if row and row[0] in ("accuracy", "sequences")}


def test_the_same_evaluation_has_the_recorded_scores(result, cab):
    scores = table(cab("evaluate", str(result)).out)
    assert len(scores) == 2
    assert all(recorded == evaluated for recorded, evaluated in scores.values())
    assert not list(result.with_suffix("").glob("scores-*"))


def test_a_limit_and_another_split_are_named(result, cab):
    output = cab("evaluate", str(result), "--limit", "2", "--split", "validation").out
    assert "task.limit was None, is 2" in output
    assert "split validation instead of test" in output
    assert table(output)["sequences"][1] in ("0", "0.5", "1")
    output = cab("evaluate", str(result), "task.evaluation_batch_size=7").out
    assert "task.evaluation_batch_size was 16, is 7" in output
    recorded, evaluated = table(output)["accuracy"]
    assert float(evaluated) == pytest.approx(float(recorded), abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "dev"], "task 'probe' has no split 'dev' (splits: train, validation, test)"),
        (["seed=2"], "'seed=2' is not an option of the task"),
        (["task.lenght=3"], "no option 'lenght'"),
        (["--limit", "0"], "task.limit: Input should be greater than or equal to 1"),
    ],
)
def test_refused(result, arguments, message, cab):
    assert message in cab("evaluate", str(result), *arguments, status=2).err


def test_weights_are_required(result, tmp_path, cab):
    shutil.copy(result, tmp_path)
    assert "has no weights at" in cab("evaluate", str(tmp_path / result.name), status=2).err


def test_an_interrupted_evaluation_resumes(result, monkeypatch, cab):
    scored: list[int] = []
    score = DeviceBatches._score

    def interrupted(batches, batch, function, number):
        scored.append(number)
        if len(scored) == 3:
            raise KeyboardInterrupt
        return score(batches, batch, function, number)

    monkeypatch.setattr(DeviceBatches, "_score", interrupted)
    cab("evaluate", result, status=130)
    resumed = table(cab("evaluate", result).out)
    assert scored == [0, 1, 2, 2]
    assert all(recorded == evaluated for recorded, evaluated in resumed.values())
    scored.clear()
    cab("evaluate", result, status=130)
    monkeypatch.setattr("tasks.probe.task.Probe.fingerprint", lambda _: {"other": "data"})
    cab("evaluate", result)
    assert scored == [0, 1, 2, 0, 1, 2]


@pytest.mark.slow
def test_two_processes_have_the_scores_of_one(result):
    outputs = [run_module("cab", "evaluate", result, processes=count) for count in (1, 2)]
    assert [output.returncode for output in outputs] == [0, 0], outputs[1].stderr
    assert outputs[0].stdout == outputs[1].stdout
