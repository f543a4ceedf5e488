"""Texts of any data set that the library ``datasets`` opens: on the Hugging Face Hub, in a folder, or in a file."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cab import Task, UserError
from cab.errors import message_of
from cab.files.cache import checksums
from cab.files.disk import user_path
from cab.registry.names import is_generated
from cab.registry.registries import TASKS

SPLITS = ("train", "validation", "test")
A_FILE = re.compile(r"[*/]|\.(parquet|arrow|jsonl?|csv|tsv|txt)\b")
"""What a name of a file has, and that of a split has not."""
FILE_NAME = re.compile(r"\.(parquet|arrow|jsonl?|csv|tsv|txt|gz|zip|zst)$")
PARTS = "['train[:90%]','train[90%:95%]','train[95%:]']"


@dataclass(frozen=True)
class Rows:
    """Texts of a source.

    Attributes:
        name: name in messages.
        key: identification of the content.
        read: yields the texts in the chosen columns of each row of a split, one of :data:`SPLITS`.
    """

    name: str
    key: dict[str, Any]
    read: Callable[[str], Iterator[list[str]]]


@dataclass(kw_only=True, eq=False)
class TextTask(Task):
    """A task whose texts can be those of a data set of your own.

    Args:
        source: name of a data set on the Hub, a folder, or a file (Parquet, Arrow, JSON lines, CSV, text), read instead
            of the published files; ``dataset`` can then be a name of your own. Each text file is one document.
        source_config: configuration of the source, if it has several.
        source_revision: branch, tag or commit of the source on the Hub.
        source_splits: names of the training, validation and test split of the source; or parts of splits
            (``train[:90%]``), or files of the source (``part-*.parquet``).
        source_columns: columns that contain the texts.
    """

    dataset: str
    source: str | None = None
    source_config: str | None = None
    source_revision: str | None = None
    source_splits: Sequence[str] = SPLITS
    source_columns: Sequence[str]

    def check(self) -> None:
        for name in ("source_config", "source_revision", "source_splits", "source_columns"):
            value, usual = getattr(self, name), getattr(type(self), name)
            if isinstance(usual, tuple) and len(value) != len(usual):
                raise UserError(f"task.{name} has {len(usual)} names, such as [{','.join(usual)}], got {[*value]}")
            is_usual = value == usual or [*(value or ())] == [*(usual or ())]
            if self.source is None and not is_usual:
                raise UserError(f"task.{name} describes a source: set task.source as well")
        is_published = self.dataset in getattr(TASKS.entry_of(type(self)), "datasets", ())
        if self.source and is_published and (is_generated(self.dataset) or user_path(self.source).exists()):
            raise UserError(f"task.source={self.source} is not {self.dataset}; name your data, as in dataset=my_corpus")

    def open_source(self) -> Rows | None:
        """Open the source and check the first row of each split; None without a source.

        Raises:
            UserError: the source cannot be read, or lacks a configuration, split, column or row.
        """
        if self.source is None:
            return None
        names = dict(zip(SPLITS, self.source_splits, strict=True))
        path = user_path(self.source)
        is_local, title = path.exists(), str(path)
        is_on_hub = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", self.source) and not FILE_NAME.search(self.source)
        if not is_local and not is_on_hub:
            raise UserError(f"task.source={self.source}: there is no such folder or file")
        try:
            with _quiet():
                source = path if is_local else self.source
                splits, files = _open(source, self.source_config, self.source_revision, names)
        except UserError:
            raise
        except Exception as error:  # the library raises many kinds of exceptions
            place = title if is_local else f"'{title}', which is not a folder or file, from the hub"
            raise UserError(f"cannot read {place}: {_reason(error)}") from error
        rows = Rows(title, {}, lambda split: _texts(splits[split], self.source_columns, f"{title}, {names[split]}"))
        for split in SPLITS:
            if next(rows.read(split), None) is None:
                raise UserError(f"{title}, {names[split]}: the split is empty")
        chosen = {"config": self.source_config, "splits": names, "columns": [*self.source_columns]}
        named = {} if is_local else {"source": self.source}
        return Rows(title, {**named, **chosen, "files": _contents(files)}, rows.read)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars and warnings of ``datasets`` inside the block; its errors contain the reason."""
    import datasets

    has_bars = not datasets.are_progress_bars_disabled()
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    try:
        datasets.disable_progress_bars()
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        if has_bars:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _open(
    source: str | Path, config: str | None, revision: str | None, names: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the rows of each split, and the addresses of all files."""
    from datasets import load_dataset_builder

    options: dict[str, Any] = {"name": config, "revision": revision}
    are_files = [bool(A_FILE.search(name)) for name in names.values()]
    if any(are_files):
        if not all(are_files):
            raise UserError(f"task.source_splits names files of some splits only: {', '.join(names.values())}")
        options["data_files"], names = dict(names), {split: split for split in names}
    elif isinstance(source, Path) and source.is_file():
        source, options["data_files"] = source.parent, {"train": source.name}
    address = str(source.resolve() if isinstance(source, Path) else source)  # the folder "." has no name
    builder = load_dataset_builder(address, **options)
    if hasattr(builder.config, "sample_by"):  # of text files: not their lines
        builder = load_dataset_builder(address, **options, sample_by="document")
    files = [str(path) for paths in (builder.config.data_files or {}).values() for path in paths]
    if any("[" in name or "+" in name for name in names.values()):  # streams cannot be divided
        builder.download_and_prepare()
        return {split: builder.as_dataset(split=name) for split, name in names.items()}, files
    splits = builder.as_streaming_dataset()
    for name in names.values():
        if name not in splits:
            raise UserError(
                f"{source} has no split '{name}' (splits: {', '.join(map(str, splits))}); set "
                f"task.source_splits=[TRAIN,VALIDATION,TEST], or parts of one: {PARTS}"
            )
    return {split: splits[name] for split, name in names.items()}, files


def _texts(rows: Any, columns: Sequence[str], place: str) -> Iterator[list[str]]:
    """Yield the texts in the columns of each row; ``place`` is for messages."""
    try:
        for number, row in enumerate(rows, start=1):
            for column in columns:
                if column not in row:
                    raise UserError(
                        f"{place}, row {number}: column '{column}' is missing (columns: {', '.join(row)}); "
                        "set task.source_columns"
                    )
                if not isinstance(row[column], str):
                    raise UserError(f"{place}, row {number}: column '{column}' is not a text: {row[column]!r:.40}")
            yield [row[column] for column in columns]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot read {place}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the whole message of an exception on one line, with that of its cause."""
    text = " ".join(message_of(error).split()) or type(error).__name__
    hint = "; set task.source_config=NAME" if "config" in text.lower() else ""
    cause = _reason(error.__cause__) if error.__cause__ is not None else ""
    return f"{text}{hint}" if cause in text else f"{text}: {cause}"


def _contents(files: Sequence[str]) -> dict[str, str]:
    """Return what identifies the content of each file: its checksum, or its address with the commit on the Hub.

    Without either, the content is unknown; the result is then different in every call, so nothing is cached.
    """
    remote = [path for path in files if "://" in path]
    if not files or not all(re.match(r"hf://[^@]+@[0-9a-f]{40}/", path) for path in remote):
        return {"unknown": uuid.uuid4().hex}
    return {**checksums([Path(path) for path in files if path not in remote]), **dict.fromkeys(remote, "")}
