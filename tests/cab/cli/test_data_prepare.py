"""`--prepare` lets the tasks read what came."""

import dataclasses

import pytest

from cab.data.sources import data_set
from cab.errors import UserError
from cab.runner.launch import prepare


def test_a_ready_set_is_read_by_its_task(official_layout, cab):
    printed = cab("data", "download", "weather", "--data-root", official_layout, "--prepare")
    assert printed.out == f"weather is ready in {official_layout}/lstf\n  prepared for lstf\n"


def test_what_the_tasks_make_lies_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    for part in ("train", "validation", "test"):
        (tmp_path / "lm" / part).mkdir(parents=True)
        (tmp_path / "lm" / part / "1.txt").write_text("a book of more than ten words\n" * 40)
    small = ["task.tokenizer=null", "task.vocab_size=262", "task.block_len=16", "task.context_lengths=[16]"]
    assert list(prepare(dataclasses.replace(data_set("pg19"), tasks=["lm"]), tmp_path, small)) == ["lm"]
    made = {path.name.rpartition("-")[0] for path in (tmp_path / "cache").iterdir() if path.is_dir()}
    assert made >= {"bpe", "corpus"}


def test_what_cannot_be_prepared(official_layout):
    assert list(prepare(data_set("gpt2_bpe"), official_layout)) == []
    with pytest.raises(UserError, match=r"no ECL.csv .*: cab data download ecl --data-root"):
        list(prepare(data_set("ecl"), official_layout))
