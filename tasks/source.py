"""Texts of any data set that the library ``datasets`` opens: on the Hugging Face Hub, in a folder, or in a file."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cab import Task, UserError
from cab.errors import message_of
from cab.files.cache import checksums
from cab.files.disk import user_path
from cab.files.text_table import counted
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from tasks.files import SPLITS, warn_of_left_out, warn_of_repeats

A_FILE = re.compile(r"[*/]|\.(parquet|arrow|jsonl?|csv|tsv|txt)\b")
"""What a name of a file has, and that of a split has not."""
FILE_NAME = re.compile(r"\.(parquet|arrow|jsonl?|csv|tsv|txt|gz|zip|zst)$")
PARTS_EXAMPLE = "['train[:90%]','train[90%:95%]','train[95%:]']"


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
        check_source(self)

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


@dataclass(kw_only=True, eq=False)
class OwnTask(Task):
    """A task that can read a file or folder of your own.

    Args:
        source: file or folder, read instead of the published files; ``dataset`` can then be a name of your own.
        source_split: shares of the source for training, validation and test.
    """

    dataset: str
    source: str | None = None
    source_split: Sequence[float] = (0.7, 0.1, 0.2)

    def check(self) -> None:
        check_source(self)
        if min(self.source_split) <= 0 or not math.isclose(sum(self.source_split), 1):
            raise UserError(f"task.source_split has positive shares with sum 1, got {[*self.source_split]}")

    def own_folder(self) -> Path | None:
        """Return the folder of the source; None without a source."""
        if self.source is not None and not user_path(self.source).is_dir():
            is_file = user_path(self.source).is_file()
            reason = "this is a file; name its folder" if is_file else "there is no such folder; name one that exists"
            raise UserError(f"task.source={self.source}: {reason}")
        return None if self.source is None else user_path(self.source)

    def parts_of(self, names: Sequence[str], kind: str, *, splits: Sequence[str] = SPLITS) -> dict[str, list[str]]:
        """Divide files into training, validation and test, in an order that depends on their names alone."""
        ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        ends = [round(len(names) * share) for share in itertools.accumulate(self.source_split)]
        parts = {split: ordered[start:end] for split, start, end in zip(splits, [0, *ends], ends, strict=False)}
        if not all(parts.values()):
            raise UserError(
                f"task.source={self.source} has {counted(len(names), kind)}, too few for a split by "
                f"{[*self.source_split]}; add some, or set task.source_split"
            )
        return parts


def check_source(task: Any) -> None:
    """Raise UserError unless the options ``source_*`` of a task fit its ``source``, which has a name of its own."""
    described = ("config", "revision", "splits", "columns", "date", "target", "split")  # not the length source_len
    for option in dataclasses.fields(task):
        if option.name not in [f"source_{name}" for name in described]:
            continue
        value, usual = getattr(task, option.name), cast(Any, option.default)
        if isinstance(usual, tuple) and usual and len(value) != len(usual):
            example = ",".join(map(str, usual))
            raise UserError(
                f"task.{option.name} has {counted(len(usual), 'value')}, such as [{example}], got {[*value]}"
            )
        is_usual = value == usual or list(value or ()) == list(usual or ())
        if task.source is None and not is_usual:
            raise UserError(f"task.{option.name} describes a source: set task.source as well")
    is_published = task.dataset in getattr(TASKS.entry_of(type(task)), "datasets", ())
    if task.source and is_published and (is_generated(task.dataset) or user_path(task.source).exists()):
        raise UserError(f"task.source={task.source} is not {task.dataset}; name your data, as in dataset=my_data")


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
    folder = source if isinstance(source, Path) and source.is_dir() else None
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
    found = {str(split): [str(path) for path in paths] for split, paths in (builder.config.data_files or {}).items()}
    files = [path for paths in found.values() for path in paths]
    read = {split: re.findall(r"[\w.-]+", re.sub(r"\[.*?\]", "", name)) for split, name in names.items()}
    used = {split: [path for part in parts for path in found.get(part, ())] for split, parts in read.items()}
    if folder is not None and not any(are_files):
        warn_of_left_out(folder, [Path(path) for paths in used.values() for path in paths])
    if not any("://" in path for path in files) and all("[" not in name for name in names.values()):
        files = list(dict.fromkeys(files))
        sums = dict(zip(files, checksums(list(map(Path, files))).values(), strict=True))
        warn_of_repeats("files", {split: [(sums[path], path) for path in paths] for split, paths in used.items()})
    if any("[" in name or "+" in name for name in names.values()):  # streams cannot be divided
        builder.download_and_prepare()
        return {split: builder.as_dataset(split=name) for split, name in names.items()}, files
    splits = builder.as_streaming_dataset()
    for name in names.values():
        if name not in splits:
            raise UserError(
                f"{source} has no split '{name}' (splits: {', '.join(map(str, splits))}); set "
                f"task.source_splits=[TRAIN,VALIDATION,TEST], or parts of one: {PARTS_EXAMPLE}"
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
