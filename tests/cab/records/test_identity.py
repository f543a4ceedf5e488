"""A record whose cell, configuration and hash disagree is refused by every reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.records.identity import (
    Identity,
    Program,
    changed,
    changed_modules,
    differences,
    forward_batch_size,
    hash_of,
    settings,
)
from cab.records.record import Record, with_checksum
from tests.helpers.made_records import make_record


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
    other = {"pattern": "NS"}.get(name, "other")
    refused(resealed(path, lambda record: record["cell"].update({name: other})), f"its cell has {name} {other!r:.3}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["cell"].update(seed=3), "its cell has seed 3, its configuration 0"),
        (lambda record: record.update(task_version=99), "its version of the task is 99, but that is not what its hash"),
        (lambda record: record.update(hash="0" * 16), r"its hash is 0000000000000000, that of its configuration \w+"),
        (lambda record: record["changed"].update(made=8), "its hash is"),
        (lambda record: record.update(engine="fairseq"), "its engine is 'fairseq', that of its configuration 'torch'"),
        (lambda record: record["config"].update(engine="fairseq"), "its engine is 'torch'"),
        (lambda record: record["cell"].update(config_variant=3), "its engine is"),
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
    assert len({hash_of(settings(each)) for each in (config, json.loads(json.dumps(config)))}) == 1


def test_only_what_differs_from_the_defaults_is_hashed() -> None:
    """So an option can be added without losing a record, and a removed one that had its default leaves it."""
    defaults = {"attention.size": 8, "trainer.betas": (0.9, 0.999)}
    config = {"attention": {"name": "abc", "size": 8}, "trainer": {"betas": [0.9, 0.999], "log_every": 3}}
    assert changed(settings(config), defaults) == {"attention.name": "abc"}
    assert changed(settings({**config, "attention": {"name": "abc", "size": 9}}), defaults)["attention.size"] == 9


def test_a_default_that_changed_is_named_and_an_added_option_is_not() -> None:
    def identity(**attention: Any) -> Identity:
        return Identity.of({"attention": attention, "trainer": {}}, Program(), {}, {})

    earlier = identity(name="abc", size=8, removed=1)
    assert differences(earlier, identity(name="abc", size=8, added=2)) == {}
    assert differences(earlier, identity(name="abc", size=9)) == {"configuration": "attention.size was 8, is 9"}
    renamed = {"attention.slots": "attention.size"}
    now = Identity.of({"attention": {"name": "abc", "slots": 9}, "trainer": {}}, Program(), {}, {}, renamed)
    assert differences(earlier, now) == {"configuration": "attention.size was 8, is 9"}


def test_of_nested_values_those_that_differ_are_named() -> None:
    def identity(digest: str) -> Identity:
        return Identity.of(
            {"attention": {}, "trainer": {}}, Program(), {"books": {"config": None, "a.txt": digest}}, {}
        )

    assert differences(identity("1"), identity("2")) == {"data": "books.a.txt was 1, is 2"}


def test_modules_that_only_one_run_needed_do_not_differ_and_files_of_users_do() -> None:
    one, other = {"cab.a": "1", "engines.b": "2"}, {"cab.a": "1", "engines.c": "3"}
    assert changed_modules(one, other) == []
    assert changed_modules(one, {**other, "patch.py": "4"}) == ["patch.py"]
    assert changed_modules(one, {"cab.a": "5"}) == ["cab.a"]


@pytest.mark.parametrize("damaged", [{}, {"program": 3}, {"program": {}, "later": 1}, {"program": {"more": {}}}])
def test_a_damaged_identity_is_none(damaged: dict[str, Any]) -> None:
    assert Identity.from_plain(damaged) is None


def test_a_forward_pass_has_the_micro_batch_or_else_the_batch() -> None:
    assert forward_batch_size({"trainer": {"batch_size": 8, "micro_batch_size": 2}}) == 2
    assert forward_batch_size({"trainer": {"batch_size": 8, "micro_batch_size": None}}) == 8
    assert forward_batch_size({"trainer": {}}) is None
