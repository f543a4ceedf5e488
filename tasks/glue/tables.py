"""Data sets of GLUE (Wang et al. 2018) in their official files: tab-separated, without quoting."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path

from cab import UserError
from cab.data.sources import fetch_hint
from tasks.corpus.facts import NAMES, THINGS
from tasks.files import find_data, read_lines

log = logging.getLogger(__name__)

BEST_SCORE = 5.0


@dataclass(frozen=True)
class Layout:
    """Files of a data set.

    Attributes:
        columns: columns of train.tsv, named as in its header.
        texts, label: names of the columns to read.
        classes: names of the labels in order; empty for scores from 0 to 5.
        dev: the labeled files for evaluation; ``dev_columns`` are their columns if they differ.
        has_header: whether the first line names the columns.
        leaves_out_short: whether the official files contain broken lines with too few columns, which are skipped.
    """

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
    "cola": Layout(("source", "label", "mark", "sentence"), ("sentence",), "label", has_header=False),
    "sst2": Layout(("sentence", "label"), ("sentence",), "label"),
    "mrpc": Layout(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String"), "Quality"),
    "qqp": Layout(
        ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        ("question1", "question2"),
        "is_duplicate",
        leaves_out_short=True,
    ),
    "mnli": Layout(
        (*_MNLI, "label1", "gold_label"),
        _PAIR,
        "gold_label",
        ("contradiction", "neutral", "entailment"),
        ("dev_matched", "dev_mismatched"),
        (*_MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"),
    ),
    "qnli": Layout(("index", "question", "sentence", "label"), ("question", "sentence"), "label", ENTAILMENT),
    "rte": Layout(("index", *_PAIR, "label"), _PAIR, "label", ENTAILMENT),
    "stsb": Layout(_STSB, _PAIR, "score", ()),
}


@dataclass(frozen=True)
class Examples:
    """One or two sentences per example, and a label: a class index, or a score from 0 to 5."""

    texts: list[tuple[str, ...]]
    labels: list[float]

    def __len__(self) -> int:
        return len(self.labels)


def find_files(name: str, data_root: Path | None) -> dict[str, Path]:
    """Return the files ``train`` and those of the layout's ``dev``; raise UserError if one is missing."""
    layout = LAYOUTS[name]
    train = find_data(name, data_root, "train.tsv")
    files = {"train": train, **{split: train.with_name(f"{split}.tsv") for split in layout.dev}}
    for path in files.values():
        if not path.is_file():
            raise UserError(f"no {path.name} of {name} at {path.parent}: {fetch_hint(name, data_root)}")
    return files


def read_table(path: Path, layout: Layout) -> Examples:
    """Read the examples of a file with LF or CRLF line ends; UserError for a line that the official file lacks.

    Sentences may be empty; labels may not. The known broken lines of some files are skipped, with a warning that counts
    them.
    """
    columns = layout.columns_of(path.stem)
    lines = [line for _, line in read_lines(path)] or [""]
    if layout.has_header:
        _check_header(path, lines[0].split("\t"), layout, columns)
    places, label = [columns.index(text) for text in layout.texts], columns.index(layout.label)
    texts, labels, short = [], [], []
    for number, line in enumerate(lines[layout.has_header :], layout.has_header + 1):
        fields = line.split("\t")
        if len(fields) < len(columns) and layout.leaves_out_short:
            short.append(number)
            continue
        if len(fields) != len(columns):
            raise UserError(
                f"{path}, line {number}: {len(fields)} columns, but the official file has {len(columns)}: "
                "download it again"
            )
        texts.append(tuple(fields[place].strip() for place in places))
        labels.append(_label(f"{path}, line {number}", fields[label], layout.classes))
    if short:
        log.warning("%s: skipped %d lines with missing columns, the first is line %d", path, len(short), short[0])
    if not labels:
        raise UserError(f"{path} has no examples: download it again")
    return Examples(texts, labels)


def _check_header(path: Path, names: list[str], layout: Layout, columns: tuple[str, ...]) -> None:
    """Raise UserError if the columns to read are not where the official file has them."""
    if len(names) != len(columns):
        raise UserError(f"{path}, line 1: {len(names)} columns, and the header of the official file has {len(columns)}")
    for name in (*layout.texts, layout.label):
        actual = names[columns.index(name)]
        if actual != name:
            raise UserError(f"{path}, line 1: expected the column '{name}', got '{actual:.40}'")


def _label(where: str, field: str, classes: tuple[str, ...]) -> float:
    if classes:
        if field not in classes:
            raise UserError(f"{where}: unknown label '{field:.40}' (known: {', '.join(classes)})")
        return float(classes.index(field))
    try:
        score = float(field)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= BEST_SCORE:
        raise UserError(f"{where}: the score must be a number from 0 to {BEST_SCORE:g}, got '{field:.40}'")
    return score


SYNTHETIC_CLASSES = ("others", "same")
NUM_FACTS = len(NAMES) // 2
"""Number of facts in the first sentence, and of names in the second."""
SYNTHETIC_COUNTS = {"train": 8192, "dev": 512}
VERSION = 1


def generate_pairs(split: str) -> Examples:
    """Generate the pairs of a split, deterministically; the classes alternate."""
    rng = random.Random(f"pairs {VERSION} {split}")
    labels = [number % 2 for number in range(SYNTHETIC_COUNTS[split])]
    return Examples([_pair(rng, is_same=bool(label)) for label in labels], [float(label) for label in labels])


def _pair(rng: random.Random, *, is_same: bool) -> tuple[str, str]:
    names = rng.sample(NAMES, len(NAMES))
    stated, others = names[:NUM_FACTS], names[NUM_FACTS:]
    facts = " ".join(name + rng.choice(THINGS) for name in stated)
    listed = rng.sample(stated, NUM_FACTS) if is_same else others
    return f"Kept {facts}", f"Listed {' '.join(listed)}"
