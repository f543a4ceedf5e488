"""Data sets of GLUE (Wang et al. 2018) in their official files: tab-separated, without quoting."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path

from cab import UserError
from cab.data.sources import fetch_hint
from cab.files.text_table import counted
from tasks.corpus.facts import THINGS, USUAL_NAMES
from tasks.files import find_data, read_lines, read_number

log = logging.getLogger(__name__)

BEST_SCORE = 5.0  # similarity in STS-B


@dataclass(frozen=True)
class Layout:
    """Files of a data set.

    Attributes:
        texts, label: columns to read, named as in the header.
        classes: names of the labels in order; empty for scores from 0 to 5.
        dev: the labeled files for evaluation.
        columns: the columns of files without a header.
        leaves_out_short: whether the official files contain broken lines with too few columns, which are skipped.
    """

    texts: tuple[str, ...]
    label: str = "label"
    classes: tuple[str, ...] = ("0", "1")
    dev: tuple[str, ...] = ("dev",)
    columns: tuple[str, ...] = ()
    leaves_out_short: bool = False


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("contradiction", "neutral", "entailment")

FILE_LAYOUTS = {
    "cola": Layout(("sentence",), columns=("source", "label", "mark", "sentence")),
    "sst2": Layout(("sentence",)),
    "mrpc": Layout(("#1 String", "#2 String"), "Quality"),
    "qqp": Layout(("question1", "question2"), "is_duplicate", leaves_out_short=True),
    "mnli": Layout(PAIR, "gold_label", INFERENCE, dev=("dev_matched", "dev_mismatched")),
    "qnli": Layout(("question", "sentence"), classes=ENTAILMENT),
    "rte": Layout(PAIR, classes=ENTAILMENT),
    "stsb": Layout(PAIR, "score", classes=()),
    "synthetic": Layout((), classes=("others", "same")),  # without files
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
    layout = FILE_LAYOUTS[name]
    train = find_data(name, data_root, "train.tsv")
    files = {"train": train, **{split: train.with_name(f"{split}.tsv") for split in layout.dev}}
    for path in files.values():
        if not path.is_file():
            raise UserError(f"no {path.name} of {name} at {path.parent}: {fetch_hint(name, data_root)}")
    return files


def read_table(path: Path, layout: Layout) -> Examples:
    """Read the examples of a file with LF or CRLF line ends; UserError for a line that does not fit.

    Sentences may be empty; labels may not. The known broken lines of some files are skipped, with a warning that counts
    them.
    """
    lines = [line for _, line in read_lines(path)] or [""]
    columns = layout.columns or tuple(lines[0].split("\t"))
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise UserError(f"{path}, line 1: the column '{repeated}' occurs more than once: download it again")
    for name in (*layout.texts, layout.label):
        if name not in columns:
            raise UserError(
                f"{path}, line 1: no column '{name}' (columns: {', '.join(columns):.80}): download it again"
            )
    places, label = [columns.index(text) for text in layout.texts], columns.index(layout.label)
    texts, labels, short = [], [], []
    for number, line in enumerate(lines, start=1):
        if number == 1 and not layout.columns:
            continue
        fields = line.split("\t")
        if len(fields) < len(columns) and layout.leaves_out_short:
            short.append(number)
            continue
        if len(fields) != len(columns):
            raise UserError(
                f"{path}, line {number}: {counted(len(fields), 'column')}, expected {len(columns)}: download it again"
            )
        texts.append(tuple(fields[place].strip() for place in places))
        labels.append(_label(f"{path}, line {number}", fields[label], layout.classes))
    if short:
        log.warning("%s: skipped %s with missing columns, from line %d", path, counted(len(short), "line"), short[0])
    if not labels:
        raise UserError(f"{path} has no examples: download it again")
    return Examples(texts, labels)


def _label(where: str, field: str, classes: tuple[str, ...]) -> float:
    if classes:
        if field not in classes:
            raise UserError(f"{where}: unknown label '{field:.40}' (known: {', '.join(classes)})")
        return float(classes.index(field))
    try:
        score = read_number(field)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= BEST_SCORE:
        raise UserError(f"{where}: the score must be a number from 0 to {BEST_SCORE:g}, got '{field:.40}'")
    return score


NUM_FACTS = len(USUAL_NAMES) // 2
"""Number of facts in the first sentence, and of names in the second."""
SYNTHETIC_COUNTS = {"train": 8192, "dev": 512}
PAIRS_VERSION = 1  # increase when the generated pairs change


def generate_pairs(split: str) -> Examples:
    """Generate the pairs of a split, deterministically; the classes alternate."""
    rng = random.Random(f"pairs {PAIRS_VERSION} {split}")
    labels = [number % 2 for number in range(SYNTHETIC_COUNTS[split])]
    return Examples([_pair(rng, is_same=bool(label)) for label in labels], [float(label) for label in labels])


def _pair(rng: random.Random, *, is_same: bool) -> tuple[str, str]:
    names = rng.sample(USUAL_NAMES, len(USUAL_NAMES))
    stated, others = names[:NUM_FACTS], names[NUM_FACTS:]
    facts = " ".join(name + rng.choice(THINGS) for name in stated)
    listed = rng.sample(stated, NUM_FACTS) if is_same else others
    return f"Kept {facts}", f"Listed {' '.join(listed)}"
