"""Data sets of a user, opened by the library ``datasets``: what each command reads, and the error of each mistake."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cab import UserError
from cab.config.compose import compose
from cab.registry.registries import TASKS
from cab.runner.cell import Cell
from tasks.source import PARTS, SPLITS, Rows, TextTask
from tasks.sum.data import find_pairs
from tests.helpers.data.own import write_own_folders

TEXT = {split: f"the {split} text" for split in SPLITS}


def parquet(path: Path, **columns: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    from datasets import Dataset

    Dataset.from_dict(columns).to_parquet(str(path))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet with two configurations, JSON lines, CSV, text files in splits, and one folder of text files."""
    root = tmp_path_factory.mktemp("own")
    for config in ("en", "de"):
        for split, text in TEXT.items():
            parquet(root / "two" / config / f"{split}.parquet", text=[f"{text} {config}"], title=["a title"])
    configs = "".join(f"- config_name: {config}\n  data_dir: {config}\n" for config in ("en", "de"))
    (root / "two/README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for folder in ("json", "csv", "files"):
        (root / folder).mkdir()
    for split, name in zip(SPLITS, ("train", "dev", "test"), strict=True):
        (root / f"json/{name}.jsonl").write_text(json.dumps({"body": TEXT[split], "title": f"a {split} title"}))
        (root / f"csv/{name}.csv").write_text(f"text,number\n{TEXT[split]},3\n")
        (root / f"files/part-{name}-1.jsonl").write_text(json.dumps({"text": TEXT[split]}))
        (root / "text" / split).mkdir(parents=True)
        for number in range(2):
            (root / "text" / split / f"{number}.txt").write_text(f"{TEXT[split]}\n\nof {number}")
    (root / "flat").mkdir()
    for number in range(10):
        (root / f"flat/{number}.txt").write_text(f"document {number}\nhas two lines")
    (root / "one.jsonl").write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(10)))
    return root


def opened(source: str, *, task: str = "lm", dataset: str = "mine", **options: Any) -> Rows:
    made = TASKS.get(task).build(dataset=dataset, source=source, **{f"source_{k}": v for k, v in options.items()})
    assert isinstance(made, TextTask)
    made.check()
    rows = made.open_source()
    assert rows is not None
    return rows


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("two", {"config": "en"}, [["the validation text en"]]),
        ("two", {"config": "de", "columns": ["title"]}, [["a title"]]),
        ("two/en", {}, [["the validation text en"]]),
        ("json", {"columns": ["body"]}, [["the validation text"]]),
        ("csv", {}, [["the validation text"]]),
        ("files", {"splits": [f"part-{x}-*.jsonl" for x in ("train", "dev", "test")]}, [["the validation text"]]),
        ("text", {}, [[f"the validation text\n\nof {number}"] for number in range(2)]),
        ("text", {"splits": ["validation", "train", "test"]}, [[f"the train text\n\nof {n}"] for n in range(2)]),
        ("flat", {"splits": ["train[:80%]", "train[80%:90%]", "train[90%:]"]}, [["document 8\nhas two lines"]]),
        ("one.jsonl", {"splits": ["train[:8]", "train[8:9]", "train[9:]"]}, [["line 8"]]),
    ],
)  # fmt: skip
def test_a_source_is_read(
    source: str, options: dict[str, Any], expected: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    assert list(opened(str(data / source), **options).read("validation")) == expected


def test_a_column_per_document_and_summary(data: Path) -> None:
    rows = opened(str(data / "json"), task="sum", columns=["body", "title"])
    assert list(find_pairs("mine", rows, None).read("val")) == [("the validation text", "a validation title")]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("two", {}, r"cannot read /.*two: Config name is missing.*\['en', 'de'\].*set task.source_config=NAME"),
        ("two", {"config": "fr"}, "cannot read /.*two: .*'fr' not found.*en.*set task.source_config=NAME"),
        ("nowhere", {}, "task.source=/.*nowhere: there is no such folder or file"),
        ("json", {}, r"json, train, row 1: column 'text' is missing \(columns: body, title\); set task.source_columns"),
        ("csv", {"columns": ["number"]}, "csv, train, row 1: column 'number' is not a text: 3"),
        ("flat", {}, r"flat has no split 'validation' \(splits: train\); set task.source_splits=\[TRAIN,"),
        ("json", {"splits": ["train", "dev.jsonl", "test"]}, "names files of some splits only: train, dev.jsonl, test"),
        ("json", {"splits": ["train", "test"]}, r"task.source_splits has 3 values, such as \[train,validation,test\]"),
        ("json", {"columns": ["body", "title"]}, r"task.source_columns has 1 value, such as \[text\]"),
        ("json", {"splits": ["a.jsonl", "b.jsonl", "c.jsonl"]}, "cannot read /.*json: .*[Uu]nable to find"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(source: str, options: dict[str, Any], message: str, data: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        opened(str(data / source), **options)
    assert "hub" not in str(error.value)


@pytest.mark.parametrize(("folder", "source"), [("", "one.jsonl"), ("flat", "."), ("", "./flat")])
def test_a_source_in_the_working_folder(
    folder: str, source: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.chdir(data / folder)
    rows = opened(source, splits=["train", "train", "train"])
    assert len(list(rows.read("train"))) == 10


@pytest.mark.parametrize("source", ["nothing.jsonl", "./nothing", "../nothing", "texts/train.csv"])
def test_the_name_of_a_file_is_not_looked_up_on_the_hub(source: str) -> None:
    with pytest.raises(UserError, match="there is no such folder or file"):
        opened(source)


@pytest.mark.parametrize("task", ["lm", "mlm", "sum"])
def test_generated_data_have_no_source_and_a_source_is_named(task: str) -> None:
    with pytest.raises(UserError, match="is not synthetic; name your data"):
        opened("somewhere", task=task, dataset="synthetic")
    published = next(name for name in TASKS.get(task).datasets if "synthetic" not in name)
    with pytest.raises(UserError, match=f"is not {published}; name your data"):
        opened(str(Path(__file__).parent), task=task, dataset=published)
    with pytest.raises(UserError, match=r"task\.source_config describes a source: set task\.source"):
        TASKS.get(task).build(dataset="mine", source_config="en").check()


RUN = ["task=lm", "attention=vanilla", "pattern=CS", "preset=smoke"]


def test_the_name_is_that_of_the_record(data: Path) -> None:
    splits = f"task.source_splits={PARTS}"
    cell = Cell.from_config(compose([*RUN, "dataset=my_corpus", f"task.source={data / 'flat'}", splits]))
    assert cell.key["dataset"] == "my_corpus"
    assert list(cell.config.task.options["source_splits"]) == ["train[:90%]", "train[90%:95%]", "train[95%:]"]


def test_a_path_has_one_spelling(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)

    def cell(source: str, *overrides: str) -> Cell:
        return Cell.from_config(compose([*RUN, "dataset=mine", f"task.source={source}", *overrides]))

    assert len({cell(source).hash for source in ("json", "./json", "json/", "././/json//")}) == 1
    assert len({cell(source, "task.tokenizer=json").hash for source in ("two/en", "two//en/")}) == 1
    assert cell("json", "task.tokenizer=./two/en/").hash == cell("json", "task.tokenizer=two/en").hash
    (data / "gpt2").mkdir()
    assert cell("json", "task.tokenizer=./gpt2").config.task.options["tokenizer"] == "./gpt2"  # gpt2 is a published one
    for source in ("me/books", "./nothing", "nothing/", "hf://a//b"):  # not paths
        assert cell(source).config.task.options["source"] == source


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset='my corpus'", "task.source=x"], "unknown dataset 'my corpus'.*a name of your own is a letter, and"),
        (["dataset=my_corpus"], "unknown dataset 'my_corpus'.*for data of your own, set task.source"),
        (["dataset=my_corpus", "task.source=null"], "unknown dataset 'my_corpus'"),
        (["dataset=etth1", "task.source=somewhere"], r"task 'lm' has no dataset 'etth1'"),
        (["dataset=my_synthetic", "task.source=somewhere"], "unknown dataset 'my_synthetic'"),
    ],
)
def test_a_name_of_your_own_needs_a_source(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cell.from_config(compose([*RUN, *overrides]))


def test_the_library_is_quiet_while_it_opens_a_source(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import datasets
    from huggingface_hub.utils.logging import get_logger

    def load(*_: Any, **__: Any) -> Any:
        get_logger("huggingface_hub.utils._http").warning("Retrying in 8s")
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    opened(str(data / "flat"), splits=["train[:80%]", "train[80%:90%]", "train[90%:]"])
    monkeypatch.setattr("datasets.load_dataset_builder", load)
    with pytest.raises(UserError, match="no network"):
        opened("me/books")
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()
    assert logging.getLogger("huggingface_hub").level == logging.WARNING


# --- the hub ---


def on_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], files: Callable[[str], list[str]]) -> list[Any]:
    """Replace the hub, which has a data set with these rows in each split; return the calls."""
    from datasets import Dataset

    asked = []

    def load(path: str, **options: Any) -> Any:
        asked.append((path, options))
        splits = {split: Dataset.from_list(rows).to_iterable_dataset() for split in SPLITS}
        config = SimpleNamespace(data_files={"train": files(path)})
        return SimpleNamespace(config=config, as_streaming_dataset=lambda: splits)

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    return asked


def test_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"document": "NEWLINE_CHAR news", "summary": "– short"}]
    asked = on_hub(monkeypatch, rows, lambda name: [f"hf://datasets/{name}@main/a"])
    source = opened("me/news", task="sum", dataset="multi_news", config="en", revision="v1")
    assert list(find_pairs("multi_news", source, None).read("val")) == [("news", "– short")]
    assert asked == [("me/news", {"name": "en", "revision": "v1"})]
    assert source.key["source"] == "me/news"


def test_the_key_contains_what_the_content_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of local files, the commit on the Hub; without either, no two calls have the same key."""
    file = tmp_path / "train.parquet"

    def key(*files: str, **options: Any) -> Any:
        on_hub(monkeypatch, [{"text": "a", "b": "c"}], lambda _: [*files])
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


def test_an_error_of_the_hub_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network\n  at all")

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    with pytest.raises(UserError, match=r"'me/books', which is not a folder or file, from the hub: no network at all$"):
        opened("me/books")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    write_own_folders(folder)
    return folder


SIZES = {"pcc": {"partial_points": 50, "complete_points": 80}, "sr": {"low_resolution": 4, "high_resolution": 16}}
FOLDERS = {"pcc": "shapes", "sr": "photos", "tts": "voice"}


def own(task: str, source: Path, **options: Any) -> Any:
    made = TASKS.get(task).build(dataset="mine", source=str(source), **SIZES.get(task, {}), **options)
    made.check()
    made.setup(None)
    return made


@pytest.mark.parametrize("task", FOLDERS)
def test_a_folder_is_divided_by_names(task: str, folders: Path, tmp_path: Path) -> None:
    made = own(task, folders / FOLDERS[task])
    assert [len(split) for split in made.splits.values()] == [7, 1, 2]
    shutil.copytree(folders / FOLDERS[task], tmp_path / "moved")
    moved = own(task, tmp_path / "moved", source_split=[0.4, 0.3, 0.3])
    assert [len(split) for split in moved.splits.values()] == [4, 3, 3]
    expected = made.fingerprint() | ({"folder": "moved"} if task == "sr" else {})
    assert own(task, tmp_path / "moved").fingerprint() == expected


@pytest.mark.parametrize(
    ("task", "place", "options", "message"),
    [
        ("pcc", "", {"source_split": [0.9, 0.01, 0.09]}, "has 10 complete clouds, too few for a split by"),
        ("sr", "", {"source_split": [0.5, 0.5]}, r"task.source_split has 3 values, such as \[0.7,0.1,0.2\]"),
        ("sr", "", {"num_held_out": 2}, "task.num_held_out applies to ffhq"),
        ("tts", "nowhere", {}, "task.source=.*nowhere: there is no such folder; name one that exists"),
    ],
)
def test_options_of_a_folder_are_checked(
    task: str, place: str, options: dict[str, Any], message: str, folders: Path
) -> None:
    with pytest.raises(UserError, match=message):
        own(task, folders / FOLDERS[task] / place, **options)
