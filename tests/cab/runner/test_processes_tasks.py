"""Each task in two processes that are killed in training and evaluation, and resumed: the scores are those of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import ROOT, cab, run_cab, the_record

COMMON = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "device=cpu", "task.limit=14"]
COMMON += ["task.evaluation_batch_size=4", "trainer.max_steps=6", "trainer.checkpoint_every=2", "trainer.batch_size=4"]
COMMON += ["trainer.validate_every=3", "trainer.checkpoint_selection=best", "trainer.log_every=1"]
TASKS = {
    "lm": ["pattern=CS", "task.context_lengths=[64]"],
    "lstf": ["pattern=NC"],
    "mlm": ["pattern=NS"],
    "pcc": ["pattern=NC"],
    "sr": ["pattern=NS"],
    "sum": ["pattern=CC"],
    "tts": ["pattern=NS", "backbone=transformer_tts"],
}
HAS_BATCH_NORM = ("lstf", "pcc", "tts")
"""Tasks whose networks normalize over a batch: that of two processes, and a micro-batch of one."""


def trained(folder: Path, task: str, *overrides: str, processes: int) -> dict[str, Any]:
    process = run_cab(*_arguments(folder, task), *overrides, processes=processes)
    assert process.returncode == 0, process.stderr
    assert "Warning" not in process.stderr.replace("OMP_NUM_THREADS", "")
    return the_record(folder)


def killed(folder: Path, task: str, at: str) -> None:
    stop = f"kill {at} {folder.with_name(at)}"
    assert run_cab(*_arguments(folder, task), processes=2, stop=stop).returncode != 0
    assert folder.with_name(at).exists(), "it was not killed"
    assert not list(folder.glob("*.json"))


def _arguments(folder: Path, task: str) -> list[str]:
    return [f"task={task}", *COMMON, *TASKS[task], f"results_dir={folder}"]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_that_are_killed_score_what_one_scores(task, tmp_path):
    """Bit-identical to one process with the same micro-batches.

    With batch norm, training is that of two processes that are not killed, and only the evaluation that of one.
    """
    has_batch_norm = task in HAS_BATCH_NORM
    micro, count = ([], 2) if has_batch_norm else (["trainer.micro_batch_size=2"], 1)
    expected = trained(tmp_path / "free", task, *micro, processes=count)
    killed(tmp_path / "two", task, "step-00000004.ckpt")
    killed(tmp_path / "two", task, "-test.jsonl")
    two = trained(tmp_path / "two", task, processes=2)
    assert two["metrics"] == expected["metrics"]
    assert [entry["validation"] for entry in two["history"]] == [entry["validation"] for entry in expected["history"]]
    assert (two["cost"]["processes"], two["cost"]["steps"]) == (2, 6)
    if has_batch_norm:
        rows = cab("evaluate", str(tmp_path / "two" / f"{two['hash']}.json"), cwd=ROOT).stdout.splitlines()[1:]
        assert {row.split()[0] for row in rows} == {metric["name"] for metric in two["metrics"]}
        assert [row for row in rows if row.split()[1] != row.split()[2]] == []
