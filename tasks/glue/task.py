"""GLUE protocol: fine-tune on sentences or sentence pairs and score on the labeled dev files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import SequenceClassifier
from cab.files.cache import checksums
from cab.metric import Metric
from cab.records.pretrained import Pretrained
from cab.records.record import Record
from cab.registry.options import Positive
from cab.task import Batches
from tasks.bpe import find_tokenizer, tokenizer_path, vocabulary_size
from tasks.corpus.tokens import BEGIN, END, NUM_SPECIAL, PAD, padding_or_none
from tasks.files import warn_of_left_out, warn_of_repeats
from tasks.glue.tables import (
    BEST_SCORE,
    FILE_LAYOUTS,
    PAIRS_VERSION,
    SYNTHETIC_COUNTS,
    find_files,
    generate_pairs,
    read_table,
)
from tasks.mlm.task import MLM

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAIN, HELD_OUT = "train", "held_out"
ENDINGS = {"dev": "", "dev_matched": "", "dev_mismatched": "_mm", HELD_OUT: f"_{HELD_OUT}"}
"""Evaluated splits, and the endings of their metrics."""


class Batch(NamedTuple):
    """Token sequences [B, N], right-padded with PAD, and their labels [B]."""

    tokens: Tensor
    labels: Tensor


class Rows(Dataset[Batch]):
    """Encoded examples; ``labels`` are class indices or scores."""

    def __init__(self, texts: Sequence[tuple[str, ...]], labels: ArrayLike, tokens: list[np.ndarray]) -> None:
        self.texts, self.labels, self.tokens = texts, np.array(labels), tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = [self.tokens[i] for i in indices]
        tokens = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
        for row, entries in zip(tokens, rows, strict=True):
            row[: len(entries)] = entries
        return Batch(torch.from_numpy(tokens), torch.from_numpy(self.labels[list(indices)]))


@register_task(
    "glue",
    paper="Wang et al. 2018",
    datasets="cola sst2 mrpc qqp mnli qnli rte stsb synthetic",
    backbones={"roberta_classifier": "NS"},
    in_index=False,
    report="tasks.glue.report:SECTION",
    options_from_task="mlm",
)
@dataclass(kw_only=True, eq=False)
class GLUE(Task):
    """Classify sentences or pairs: grammaticality, sentiment, paraphrase, entailment, similarity.

    Args:
        dataset: a GLUE data set, or synthetic: pairs about the facts of MLM's generated pages.
        pretrained: result of a finished ``mlm`` run to start from, or a folder of results with one for the same
            attention and seed; this run uses its network and dictionary. None: fresh weights, and a dictionary of the
            training sentences.
        tokenizer, vocab_size: for fresh weights, as in ``mlm``.
        max_length: maximum number of tokens; longer examples are truncated, as they are at the pretraining page length.
        validation_fraction: fraction of the training examples held out to select the checkpoint. 0: the test examples
            select it, as published.
        evaluation_batch_size: examples per batch in validation and test.
    """

    packages: ClassVar[Mapping[str, str]] = {"tokenizers": "text"}
    required_protocols: ClassVar = (SequenceClassifier,)

    dataset: str
    pretrained: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 8192
    max_length: int = 512
    validation_fraction: float = 0.1
    evaluation_batch_size: Positive = 64
    _start: Pretrained | None = field(default=None, init=False)

    @property
    def config_variant(self) -> str:
        start = "from scratch"
        if self._start is not None:
            record = self._start.record
            start = f"pretrained on {record.cell['dataset']} for {record.cost.steps} steps"
        return start if self.validation_fraction else f"{start}, chosen on dev"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = GLUE_METRICS[self.dataset]
        return tuple(
            Metric(name + ENDINGS[split], UNITS[name], True, primary=split != HELD_OUT and name == names[0])
            for split in self._evaluated
            for name in names
        )

    @property
    def _scored(self) -> tuple[str, ...]:
        return FILE_LAYOUTS[self.dataset].dev

    @property
    def _evaluated(self) -> tuple[str, ...]:
        return (*self._scored, HELD_OUT) if self.validation_fraction else self._scored

    @property
    def _classes(self) -> tuple[str, ...]:
        return FILE_LAYOUTS[self.dataset].classes

    def check(self) -> None:
        if not 0.0 <= self.validation_fraction < 1.0:
            raise UserError(f"task.validation_fraction must be from 0 to below 1, got {self.validation_fraction}")
        if self.max_length < 8:
            raise UserError(f"task.max_length must be at least 8, got {self.max_length}")
        if self.pretrained is not None and self.tokenizer is not None:
            raise UserError(
                "task.tokenizer is for fresh weights; task.pretrained has its dictionary: remove one of them"
            )

    def bind_config(self, cell: Mapping[str, Any]) -> None:
        """Raise UserError if ``task.pretrained`` has no run from which this cell can start."""
        if self.pretrained is not None:
            self._start = Pretrained.find(self.pretrained, cell, task="mlm")

    @property
    def initial_weights_id(self) -> Mapping[str, Any]:
        if self._start is None:
            return {}
        return {"pretrained": self._start.record.hash, "weights": checksums([self._start.weights])["weights.pt"]}

    def setup(self, data_root: Path | None) -> None:
        if self.dataset != "synthetic":
            files = find_files(self.dataset, data_root)
            self._key: dict[str, Any] = checksums(list(files.values()))
            splits = {split: read_table(path, FILE_LAYOUTS[self.dataset]) for split, path in files.items()}
            warn_of_left_out(files[TRAIN].parent, files.values(), r"^(train|dev(?!_ids)).*\.tsv$")
            pairs = {split: enumerate(each.texts, start=1) for split, each in splits.items()}
            warn_of_repeats("examples", {s: [(x, f"example {i} of {s}") for i, x in each] for s, each in pairs.items()})
        else:
            splits = {split: generate_pairs(split) for split in SYNTHETIC_COUNTS}
            self._key = {"generator": PAIRS_VERSION}
        if self._start is None:
            texts, self._positions = [text for pair in splits[TRAIN].texts for text in pair], self.max_length
            tokenizer = tokenizer_path(self.tokenizer, data_root)
            self.vocabulary = Vocabulary.of_sentences(
                texts, tokenizer=tokenizer, vocab_size=self.vocab_size, key=self._key
            )
        else:
            self.vocabulary, self._positions = Vocabulary.of_pretraining(self._start.record, data_root)
        longest = min(self._positions, self.max_length)
        rows = {split: Rows(x.texts, x.labels, self.vocabulary.encode(x.texts, longest)) for split, x in splits.items()}
        self.splits = {**rows, **_split(rows[TRAIN], self.validation_fraction)}

    def fingerprint(self) -> dict[str, Any]:
        counts = {split: len(rows) for split, rows in self.splits.items()}
        return {"files": self._key, "examples": counts, "dictionary": dict(self.vocabulary.key)}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        sizes = {"vocab_size": self.vocabulary.size, "max_length": self._positions}
        return {**sizes, "num_classes": len(self._classes) or 1}

    def load_initial_weights(self, backbone: Backbone) -> None:
        if self._start is not None:
            self._start.load(backbone)

    def _logits(self, backbone: Backbone, batch: Batch) -> Tensor:
        return backbone(batch.tokens, padding_or_none(batch.tokens)).float()

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the mean negative log-likelihood of the classes, or for scores the mean squared relative error."""
        logits = self._logits(backbone, batch)
        if self._classes:
            return F.cross_entropy(logits, batch.labels.long())
        return F.mse_loss(logits.squeeze(1), batch.labels.float() / BEST_SCORE)

    def _guesses(self, backbone: Backbone, batch: Batch) -> np.ndarray:
        logits = self._logits(backbone, batch).cpu()
        return (logits.argmax(dim=1) if self._classes else logits.squeeze(1) * BEST_SCORE).numpy()

    def _scores(self, backbone: Backbone, batches: Batches, split: str) -> dict[str, float]:
        def score(batch: Batch) -> list[float]:
            return self._guesses(backbone, batch).tolist()

        rows = batches.map(self.splits[split], self.evaluation_batch_size, score)
        guesses = np.array([*chain.from_iterable(rows)], dtype=np.int64 if self._classes else np.float32)
        return scores_of(self.dataset, guesses, self.splits[split].labels[: self.limit])

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return 1 minus the first metric."""
        split = HELD_OUT if self.validation_fraction else self._scored[0]
        return 1.0 - self._scores(backbone, batches, split)[GLUE_METRICS[self.dataset][0]]

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        return {
            name + ENDINGS[split]: value
            for split in self._evaluated
            for name, value in self._scores(backbone, batches, split).items()
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of predicting the most frequent training class, or the mean training score."""
        labels = self.splits[TRAIN].labels
        answer = np.bincount(labels.astype(int)).argmax() if self._classes else labels.mean()
        truths = {split: self.splits[split].labels[: self.limit] for split in self._scored}
        scores = {
            name + ENDINGS[split]: value
            for split, truth in truths.items()
            for name, value in scores_of(self.dataset, np.full(len(truth), answer), truth).items()
        }
        return {"commonest" if self._classes else "mean": scores}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        """Write the first examples of each test split with labels and predictions."""
        lines = []
        for split in self._scored:
            rows = self.splits[split]
            guesses = self._guesses(backbone, batches.first(rows, 20))
            for texts, label, guess in zip(rows.texts[:20], rows.labels, guesses, strict=False):
                shown = [self._classes[int(x)] if self._classes else f"{x:.2f}" for x in (label, guess)]
                lines.append("\t".join((split, *shown, *texts)))
        (folder / "answers.txt").write_text("split\ttruth\tguess\tsentences\n" + "\n".join(lines) + "\n")


def _split(rows: Rows, validation_fraction: float) -> dict[str, Rows]:
    """Split the training examples into training and held-out examples, identically in every run."""
    if not validation_fraction:
        return {}
    order = np.random.default_rng(0).permutation(len(rows))
    count = min(max(round(validation_fraction * len(rows)), 1), len(rows) - 1)
    chosen = {HELD_OUT: sorted(order[:count]), TRAIN: sorted(order[count:])}
    return {
        split: Rows([rows.texts[i] for i in indices], rows.labels[indices], [rows.tokens[i] for i in indices])
        for split, indices in chosen.items()
    }


GLUE_METRICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "synthetic"), ("accuracy",)),
    "cola": ("matthews",),
    "mrpc": ("f1", "accuracy"),
    "qqp": ("accuracy", "f1"),
    "stsb": ("pearson", "spearman"),
}
"""Per data set; the first metric is the one in Qin et al. 2022 (except for STS-B), and selects the checkpoint."""
UNITS = {"accuracy": "of examples", "f1": "of class 1"} | dict.fromkeys(
    ("matthews", "pearson", "spearman"), "correlation"
)


def accuracy(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return the fraction of correct predictions."""
    return float((guesses == truth).mean())


def f1(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return F1 of class 1; 0 if it is neither predicted nor true."""
    positives = int((guesses == 1).sum() + (truth == 1).sum())
    return 2 * int(((guesses == 1) & (truth == 1)).sum()) / positives if positives else 0.0


def correlation(name: str, guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return a correlation of scipy.stats; 0 if either input is constant, as scikit-learn defines Matthews'.

    Predictions that differ by the rounding errors of float32 are constant.
    """
    from scipy import stats

    rounding = 8 * np.finfo(np.float32).eps
    if len(truth) < 2 or any(np.ptp(x) <= rounding * np.abs(x).max() for x in (guesses, truth)):
        return 0.0
    return float(getattr(stats, name)(guesses, truth)[0])


FUNCTIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": partial(correlation, "pearsonr"),  # equal for two classes
    "pearson": partial(correlation, "pearsonr"),
    "spearman": partial(correlation, "spearmanr"),
}


def scores_of(dataset: str, guesses: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the metrics of a data set, by name."""
    return {name: FUNCTIONS[name](guesses, truth) for name in GLUE_METRICS[dataset]}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and the dictionary entry of each of its tokens; the dictionary has ``size`` entries."""

    tokenizer: Tokenizer
    dictionary: np.ndarray
    size: int
    key: Mapping[str, Any]

    @classmethod
    def of_sentences(cls, texts: Sequence[str], *, tokenizer: str | None, vocab_size: int, key: Any) -> Vocabulary:
        """Read a tokenizer, or train a byte-level BPE of ``vocab_size`` entries on ``texts``."""
        options: Any = {"vocab_size": vocab_size, "key": {"sentences": key}}
        bpe = find_tokenizer(tokenizer, lambda: iter(texts), **options)
        dictionary = NUM_SPECIAL + np.arange(vocabulary_size(bpe))
        return cls(bpe, dictionary, NUM_SPECIAL + len(dictionary), {"entries": len(dictionary)})

    @classmethod
    def of_pretraining(cls, record: Record, data_root: Path | None) -> tuple[Vocabulary, int]:
        """Recreate the vocabulary of an ``mlm`` run from its data; also return the tokens of its longest page.

        Raises:
            UserError: the data are missing or have changed.
        """
        options = {name: value for name, value in record.config["task"].items() if name != "name"}
        mlm = MLM(dataset=str(record.cell["dataset"]), **options)
        mlm.setup(data_root)
        if json.loads(json.dumps(mlm.fingerprint())) != record.data:
            raise UserError(
                f"the {record.cell['dataset']} data differ from those that {record.hash} was pretrained "
                "on, so its dictionary cannot be recreated: pretrain again"
            )
        corpus = mlm.corpus
        return cls(corpus.tokenizer, corpus.dictionary, mlm.mask + 1, {"pretraining": corpus.key}), mlm.block_len

    def encode(self, texts: Sequence[tuple[str, ...]], max_length: int) -> list[np.ndarray]:
        """Encode examples as RoBERTa does: begin, sentence, end; for pairs also end, second sentence, end.

        If an example exceeds ``max_length``, its longer sentence is truncated.
        """
        sides = [self.tokenizer.encode_batch(list(side), add_special_tokens=False) for side in zip(*texts, strict=True)]
        rows = []
        for sentences in zip(*sides, strict=True):
            entries = [self.dictionary[np.array(sentence.ids, dtype=np.int64)] for sentence in sentences]
            while sum(map(len, entries)) > max_length - 2 * len(entries):
                longer = max(range(len(entries)), key=lambda side: len(entries[side]))
                entries[longer] = entries[longer][:-1]
            first, *second = entries
            pair = [[END], *second, [END]] if second else []
            rows.append(np.concatenate([[BEGIN], first, [END], *pair]))
        return rows
