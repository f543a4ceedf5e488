"""The data sets of GLUE (Wang et al. 2018) in their official files: columns between tabs, quotes like other letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from cab import UserError
from cab.data.sources import how_to_get

log = logging.getLogger(__name__)

FOLDERS = ("glue", "glue_data", ".")
"""Below the data root, each with a folder for every data set."""
BEST_SCORE = 5.0


@dataclass(frozen=True)
class Layout:
    """The files of a data set.

    Attributes:
        folder: where they lie.
        columns: of train.tsv, named as in its header.
        texts, label: which of them are read.
        classes: what the labels are called, in the order of their numbers; empty where they are scores from 0 to 5.
        dev: the labelled files that are scored, and ``dev_columns`` theirs where they differ.
        has_header: whether the first line names the columns.
        leaves_out_short: whether the official files have broken lines, with too few columns, that are left out.
    """

    folder: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    label: str
    classes: tuple[str, ...] = ("0", "1")
    dev: tuple[str, ...] = ("dev",)
    dev_columns: tuple[str, ...] = ()
    has_header: bool = True
    leaves_out_short: bool = False

    def columns_of(self, file: str) -> tuple[str, ...]:
        return self.dev_columns if self.dev_columns and file in self.dev else self.columns


ENTAILMENT = ("entailment", "not_entailment")
_PARSES = tuple(f"sentence{i}_{kind}" for kind in ("binary_parse", "parse") for i in (1, 2))
_MNLI = ("index", "promptID", "pairID", "genre", *_PARSES, "sentence1", "sentence2")
_STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score")
_PAIR = ("sentence1", "sentence2")

LAYOUTS = {
    "cola": Layout("CoLA", ("source", "label", "mark", "sentence"), ("sentence",), "label", has_header=False),
    "sst2": Layout("SST-2", ("sentence", "label"), ("sentence",), "label"),
    "mrpc": Layout(
        "MRPC", ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String"), "Quality"
    ),
    "qqp": Layout(
        "QQP",
        ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        ("question1", "question2"),
        "is_duplicate",
        leaves_out_short=True,
    ),
    "mnli": Layout(
        "MNLI",
        (*_MNLI, "label1", "gold_label"),
        _PAIR,
        "gold_label",
        ("contradiction", "neutral", "entailment"),
        ("dev_matched", "dev_mismatched"),
        (*_MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"),
    ),
    "qnli": Layout("QNLI", ("index", "question", "sentence", "label"), ("question", "sentence"), "label", ENTAILMENT),
    "rte": Layout("RTE", ("index", *_PAIR, "label"), _PAIR, "label", ENTAILMENT),
    "stsb": Layout("STS-B", _STSB, _PAIR, "score", ()),
}


@dataclass(frozen=True)
class Examples:
    """Sentences, one or two an example, and the label of each: the number of its class, or a score from 0 to 5."""

    texts: list[tuple[str, ...]]
    labels: list[float]

    def __len__(self) -> int:
        return len(self.labels)


def find_files(name: str, data_root: Path | None) -> dict[str, Path]:
    """The files ``train`` and those of the layout's ``dev``; UserError where one is not there."""
    layout = LAYOUTS[name]
    if data_root is None:
        raise UserError(f"dataset '{name}' needs its files: {how_to_get(name, None)}; then data_root=FOLDER")
    homes = [data_root / folder / layout.folder for folder in FOLDERS]
    home = next((each for each in homes if each.is_dir()), homes[0])
    files = {part: home / f"{part}.tsv" for part in ("train", *layout.dev)}
    for path in files.values():
        if not path.is_file():
            raise UserError(
                f"no {path.name} of {name} at {home}: {how_to_get(name, data_root)}; or use dataset=synthetic"
            )
    return files


def read_table(path: Path, layout: Layout) -> Examples:
    """The examples of a file, whose lines end in LF or CRLF.

    A sentence may be empty. A label may not, and no line may have more or fewer columns than the official file, but for
    the broken lines of some files: these are left out, with a warning that counts them.

    Raises:
        ValueError: naming the file and the line.
    """
    columns = layout.columns_of(path.stem)
    lines = _lines(path)
    first = 0
    if layout.has_header:
        _check_header(path, lines[0].split("\t"), layout, columns)
        first = 1
    places, label = [columns.index(text) for text in layout.texts], columns.index(layout.label)
    texts, labels, short = [], [], []
    for number, line in enumerate(lines[first:], first + 1):
        fields = line.split("\t")
        if len(fields) < len(columns) and layout.leaves_out_short:
            short.append(number)
            continue
        if len(fields) != len(columns):
            raise UserError(f"{path}, line {number}: {len(fields)} columns, and the official file has {len(columns)}")
        texts.append(tuple(fields[place].strip() for place in places))
        labels.append(_label(f"{path}, line {number}", fields[label], layout.classes))
    if short:
        log.warning("%s: left out %d lines with columns missing, first line %d", path, len(short), short[0])
    if not labels:
        raise UserError(f"{path} has no example")
    return Examples(texts, labels)


def _lines(path: Path) -> list[str]:
    """Lines end at line feeds alone: sentences hold other characters that Python would take for ends of lines."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: byte {error.start} is not UTF-8 text") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _check_header(path: Path, names: list[str], layout: Layout, columns: tuple[str, ...]) -> None:
    """UserError where the columns that are read do not stand where they stand in the official file."""
    if len(names) != len(columns):
        raise UserError(f"{path}, line 1: {len(names)} columns, and the header of the official file has {len(columns)}")
    for name in (*layout.texts, layout.label):
        found = names[columns.index(name)]
        if found != name:
            raise UserError(f"{path}, line 1: no header, or another: '{found:.40}' stands where '{name}' should")


def _label(where: str, field: str, classes: tuple[str, ...]) -> float:
    if classes:
        if field not in classes:
            raise UserError(f"{where}: the label is '{field:.40}', none of {', '.join(classes)}")
        return float(classes.index(field))
    try:
        score = float(field)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= BEST_SCORE:
        raise UserError(f"{where}: the score is '{field:.40}', no number from 0 to {BEST_SCORE:g}")
    return score
