"""A record whose cell, configuration and hash disagree is refused by every reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.records.identity import cell_hash, identity_of
from cab.records.record import Record, with_checksum
from tests.cab.made_records import make_record


def resealed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(with_checksum(content)))
    return path


def refused(path: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        Record.read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["task", "dataset", "backbone", "pattern", "preset", "attention"])
def test_a_relabeled_record_is_refused(name: str, tmp_path: Path) -> None:
    path = make_record({"mse": 1.0}, attention="abc(num_landmarks=8)").write(tmp_path)
    other = {"pattern": "NS", "attention": "abc(num_landmarks=16)"}.get(name, "other")
    refused(resealed(path, lambda record: record["cell"].update({name: other})), f"its cell has {name} {other!r:.3}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["cell"].update(seed=3), "its cell has seed 3, its configuration 0"),
        (lambda record: record.update(task_version=99), r"its hash is \w+, that of its configuration \w+"),
        (lambda record: record.update(hash="0" * 16), "its hash is 0000000000000000"),
        (lambda record: record.update(initial_weights={"pretrained": "0" * 16}), "its hash is"),
        (lambda record: record["config"]["attention"].update(num_landmarks=8), "its hash is"),
        (lambda record: record["config"]["trainer"].update(max_steps=3), "its hash is"),
        (lambda record: record.update(engine="fairseq"), "its engine is 'fairseq', that of its configuration 'torch'"),
        (lambda record: record["config"].update(engine="fairseq"), "its engine is 'torch'"),
        (lambda record: record["config"].pop("attention"), "has no field attention"),
        (lambda record: record["config"].update(task=3), "is not a valid result record"),
    ],
)
def test_parts_that_disagree_are_refused(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    refused(resealed(make_record({"mse": 1.0}, attention="abc").write(tmp_path), change), words)


def test_what_does_not_identify_a_run_can_differ(tmp_path: Path) -> None:
    path = make_record({"mse": 1.0}).write(tmp_path)
    resealed(path, lambda record: record["config"].update(results_dir="elsewhere", device="cuda"))
    assert Record.read(path).config["device"] == "cuda"


def test_a_hash_does_not_depend_on_whether_the_configuration_was_read_from_json() -> None:
    config = {"engine": "torch", "trainer": {"betas": (0.9, 0.999)}, "task": {10: 1, 9: 2}}
    read = json.loads(json.dumps(config))
    hashes = {cell_hash(identity_of(each, task_version=1, initial_weights={})) for each in (config, read)}
    assert len(hashes) == 1
