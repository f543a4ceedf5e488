"""W&B's offline files and TensorBoard's events of a run that was killed and resumed, read by their own libraries."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs.processes import run_cab, the_record

RUN = ["task=lm", "dataset=synthetic", "attention=vanilla", "pattern=CS", "preset=smoke", "device=cpu"]
RUN += ["trainer.max_steps=8", "trainer.log_every=1", "trainer.checkpoint_every=4", "trainer.validate_every=4"]
RUN += ["task.limit=4", "task.context_lengths=[]"]
BLOCK, HEADER = 2**15, struct.Struct("<IHB")  # checksum, length and kind
FULL, LAST = 1, 4


def killed_and_resumed(folder: Path, *overrides: str, at: str = "step-00000008.ckpt") -> dict[str, Any]:
    arguments = [*RUN, *overrides, f"results_dir={folder}"]
    assert run_cab(*arguments, stop=f"kill {at} {folder.with_name('killed')}").returncode != 0
    process = run_cab(*arguments)
    assert process.returncode == 0, process.stderr
    assert "resuming from step 4" in process.stderr
    return the_record(folder)


def records_of(file: Path) -> Iterator[Any]:
    """Yield the records of an offline file of W&B, whose library has no reader: blocks as in a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while place + HEADER.size <= len(content):
        left = BLOCK - place % BLOCK
        _, length, kind = HEADER.unpack_from(content, place)
        if left < HEADER.size:
            place += left
            continue
        parts += content[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    record = killed_and_resumed(tmp_path / "runs", "logger=wandb", "logger.project=attention", "logger.group=sweep")
    files = sorted(tmp_path.glob("runs/*/wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert files, "that of the killed process may not be written yet"
    kinds: dict[str, list[Any]] = {}
    for file in files:
        for entry in records_of(file):
            kind = entry.WhichOneof("record_type")
            kinds.setdefault(kind, []).append(getattr(entry, kind))
    assert len({(run.run_id, run.project, run.run_group) for run in kinds["run"]}) == 1, "one run after `wandb sync`"
    assert (kinds["run"][0].project, kinds["run"][0].run_group) == ("attention", "sweep")
    assert [entry.step.num for entry in kinds["history"]][-8:] == list(range(1, 9)), "the last file has the whole curve"
    summary = {item.key or item.nested_key[0]: item.value_json for entry in kinds["summary"] for item in entry.update}
    assert summary["hash"] == f'"{record["hash"]}"'
    assert {"cost/params", "ppl", "baseline/unigram/ppl"} <= set(summary)


@pytest.mark.slow
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed_and_resumed(tmp_path / "runs", "logger=tensorboard")
    [folder] = tmp_path.glob("runs/*/tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 9))
    assert [event.step for event in events.Scalars("validation")] == [4, 8]
