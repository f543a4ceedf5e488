"""Data sets of a user, opened by the library ``datasets``: what is read, what identifies it, and mistakes."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cab import UserError
from cab.config.compose import compose
from cab.registry.registries import TASKS
from cab.runner.cell import Cell
from tasks.files import SPLITS
from tasks.source import Rows
from tasks.sum.data import find_pairs
from tests.helpers.data.own import write_own_folders
from tests.helpers.tasks.layouts import put
from tests.helpers.tasks.records import ready

FOLDERS = {"pcc": "shapes", "sr": "photos", "tts": "voice"}
TEXT = {split: f"the {split} text" for split in SPLITS}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    from datasets import Dataset

    root = tmp_path_factory.mktemp("own")
    for config in ("en", "de"):
        for split, text in TEXT.items():
            rows = Dataset.from_dict({"text": [f"{text} {config}"], "title": ["a title"]})
            rows.to_parquet(str(put(root / f"two/{config}/{split}.parquet", "")))
    configs = "".join(f"- config_name: {config}\n  data_dir: {config}\n" for config in ("en", "de"))
    put(root / "two/README.md", f"---\nconfigs:\n{configs}---\n")
    for split, name in zip(SPLITS, ("train", "dev", "test"), strict=True):
        row = {"text": TEXT[split], "title": f"a {split} title", "number": 3}
        put(root / f"json/part-{name}.jsonl", json.dumps(row))
    for number in range(10):
        put(root / f"flat/{number}.txt", f"document {number}\n\nhas two parts")
    put(root / "one.jsonl", "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(10)))
    return root


def opened(source: str | None, *, task: str = "lm", dataset: str = "mine", **options: Any) -> Rows:
    made = TASKS.get(task).build(dataset=dataset, source=source, **{f"source_{k}": v for k, v in options.items()})
    made.check()
    return made.open_source()


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("two", {"config": "de", "columns": ["title"]}, [["a title"]]),
        ("two/en", {}, [["the validation text en"]]),
        ("json", {"splits": [f"part-{x}*.jsonl" for x in ("train", "dev", "test")]}, [["the validation text"]]),
        ("json", {"splits": ["validation", "train", "test"]}, [["the train text"]]),
        ("flat", {"splits": ["train[:80%]", "train[80%:90%]", "train[90%:]"]}, [["document 8\n\nhas two parts"]]),
        ("one.jsonl", {"splits": ["train[:8]", "train[8:9]", "train[9:]"]}, [["line 8"]]),
    ],
)  # fmt: skip
def test_a_source_is_read(source, options, expected, data):
    assert list(opened(str(data / source), **options).read("validation")) == expected


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("two", {}, r"cannot read /.*two: Config name is missing.*\['en', 'de'\].*set task.source_config=NAME"),
        ("nowhere.jsonl", {}, "task.source=/.*nowhere.jsonl: there is no such folder or file"),
        ("json", {"columns": ["a"]}, r"json, train, row 1: column 'a' is missing .*; set task.source_columns"),
        ("json", {"columns": ["number"]}, "json, train, row 1: column 'number' is not a text: 3"),
        ("flat", {}, r"flat has no split 'validation' \(splits: train\); set task.source_splits=\[TRAIN,"),
        ("json", {"splits": ["train", "dev.jsonl", "test"]}, "names files of some splits only: train, dev.jsonl, test"),
        (None, {"config": "en"}, r"task\.source_config describes a source: set task\.source"),
        ("nowhere", {"dataset": "synthetic"}, "is not synthetic; name your data"),
        ("flat", {"dataset": "pg19"}, "is not pg19; name your data"),
        ("json", {"splits": ["train", "test"]}, r"task.source_splits has 3 values, such as \[train,validation,test\]"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(source, options, message, data):
    with pytest.raises(UserError, match=message):
        opened(source and str(data / source), **options)


def test_a_path_has_one_spelling_and_may_be_the_working_folder(data, monkeypatch):
    monkeypatch.chdir(data)

    def cell(source: str) -> Cell:
        chosen = ["task=lm", "attention=vanilla", "pattern=CS", "preset=smoke", "dataset=mine"]
        return Cell.from_config(compose([*chosen, f"task.source={source}"]))

    assert len({cell(source).hash for source in ("json", "./json", "././/json//")}) == 1
    for source in ("me/books", "./nothing"):  # not paths
        assert cell(source).config.task.options["source"] == source
    monkeypatch.chdir("flat")
    assert len(list(opened(".", splits=["train", "train", "train"]).read("train"))) == 10


def on_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], *files: str) -> list[Any]:
    """Replace the hub, which has a data set with these rows in each split; return the calls."""
    from datasets import Dataset

    asked = []

    def load(path: str, **options: Any) -> Any:
        asked.append((path, options))
        splits = {split: Dataset.from_list(rows).to_iterable_dataset() for split in SPLITS}
        config = SimpleNamespace(data_files={"train": [*files]})
        return SimpleNamespace(config=config, as_streaming_dataset=lambda: splits)

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    return asked


def test_the_hub_is_streamed(monkeypatch):
    asked = on_hub(monkeypatch, [{"document": "NEWLINE_CHAR news", "summary": "– short"}])
    source = opened("me/news", task="sum", dataset="multi_news", config="en", revision="v1")
    assert list(find_pairs("multi_news", source, None).read("val")) == [("news", "– short")]
    assert asked == [("me/news", {"name": "en", "revision": "v1"})]


def test_the_key_contains_what_the_content_depends_on(tmp_path, monkeypatch):
    """Checksums of local files, the commit on the Hub; without either, no two calls have the same key."""
    file = tmp_path / "train.parquet"

    def key(*files: str, **options: Any) -> Any:
        on_hub(monkeypatch, [{"text": "a", "b": "c"}], *files)
        return opened("me/books", **options).key

    file.write_text("old")
    assert key(str(file)) == (before := key(str(file)))
    file.write_text("other")
    assert key(str(file)) != before
    commits = [f"hf://datasets/me/books@{digit * 40}/train.parquet" for digit in "ab"]
    assert key(commits[0]) == key(commits[0]) != key(commits[1])
    assert key(commits[0]) != key(commits[0], columns=["b"])
    for files in ((), ("https://host/train.parquet",), ("hf://datasets/me/books@main/train.parquet",)):
        assert key(*files) != key(*files)


@pytest.mark.parametrize("task", FOLDERS)
def test_a_folder_is_divided_by_names(task, tmp_path):
    def own(folder, **options):
        return ready(task, dataset="mine", source=str(tmp_path / folder), **options)

    write_own_folders(tmp_path)
    made = own(FOLDERS[task])
    assert [len(split) for split in made.splits.values()] == [7, 1, 2]
    (tmp_path / FOLDERS[task]).rename(tmp_path / "moved")
    assert [len(split) for split in own("moved", source_split=[0.4, 0.3, 0.3]).splits.values()] == [4, 3, 3]
    assert own("moved").fingerprint() == made.fingerprint() | ({"folder": "moved"} if task == "sr" else {})
    with pytest.raises(UserError, match="too few for a split by"):
        own("moved", source_split=[0.9, 0.01, 0.09])
