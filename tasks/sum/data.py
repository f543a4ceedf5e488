"""Documents and summaries: Multi-News's files, a source, or generated pairs; encoded once.

A generated summary combines facts of all documents. Each word of a document is one token that encodes one fact: what
each of twelve people keeps, for three the thing (``annalamp``), for nine its color (``annared``); the thing of each of
ten colors (``redlamp``); and the change of each thing (``lampring``), on one cycle of twelve, because on a cycle of
six, five steps forward would equal one back. The summary states what each person keeps, in name order (``kept``), and
then follows six of the things through five changes (``changed``). docs/reference/tasks.md explains the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from cab import UserError
from cab.data.sources import fetch_hint
from cab.files.cache import checksums, prepared, progress
from cab.files.text_table import counted
from tasks.corpus.facts import THINGS, USUAL_NAMES
from tasks.files import VAL_SPLITS, find_data, read_lines, warn_of_left_out
from tasks.source import Rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
"""First entries of a trained tokenizer, as in BART's."""
SEPARATOR = "|||||"
SUM_VERSION = 3  # of the reading; increase when it changes
NUM_PAIRS = {"train": 8000, "val": 64, "test": 128}
"""Generated pairs per split."""


def clean(text: str) -> str:
    """Unify the line breaks and document separators of both editions of Multi-News."""
    return text.replace("NEWLINE_CHAR", "\n").replace("story_separator_special_tag", SEPARATOR).strip()


@dataclass(frozen=True)
class Pairs:
    """Pairs of documents and their summary; ``read`` yields those of a split, ``key`` identifies their content."""

    key: dict[str, Any]
    read: Callable[[str], Iterator[tuple[str, str]]]


def find_pairs(dataset: str, source: Rows | None, data_root: Path | None, *, empty: str = "stop") -> Pairs:
    """Return the pairs of ``source`` if it is given, generated pairs, or files under ``data_root``.

    Args:
        empty: ``stop`` at an example without a document or summary, or ``skip`` it, with a warning that counts them.
    """
    if source is not None:
        return source_pairs(source, empty=empty)
    if dataset == "synthetic":
        return generated_pairs()
    return file_pairs(find_data(dataset, data_root, "train.tgt").parent, empty=empty)


def file_pairs(folder: Path, *, empty: str = "stop") -> Pairs:
    """Read ``{train,val,test}.src.cleaned`` (or ``.src``) and ``.tgt``, one example per line.

    Raises:
        UserError: a file is missing, files differ in length, or a line is empty, with file and line.
    """
    files = {split: _split_files(folder, split) for split in VAL_SPLITS}
    warn_of_left_out(folder, [path for pair in files.values() for path in pair], r"\.(src|tgt)")
    key = checksums([path for pair in files.values() for path in pair])
    return Pairs({**key, "empty": empty}, lambda split: _complete(_lines_of(*files[split]), split, empty))


def source_pairs(source: Rows, *, empty: str = "stop") -> Pairs:
    """Read the documents and summaries of a source, see :class:`tasks.source.TextTask`."""

    def read(split: str) -> Iterator[Example]:
        for number, (text, summary) in enumerate(source.read({"val": "validation"}.get(split, split)), start=1):
            place = f"{source.name}, {split}, row {number}"
            yield Example(place, place, clean(text), clean(summary))

    return Pairs({**source.key, "empty": empty}, lambda split: _complete(read(split), split, empty))


class Example(NamedTuple):
    """A document and its summary, with the place of both for messages."""

    document_place: str
    summary_place: str
    document: str
    summary: str


def _complete(examples: Iterable[Example], split: str, empty: str) -> Iterator[tuple[str, str]]:
    """Yield the examples that have a document and a summary."""
    skipped = 0
    for document_place, summary_place, text, summary in examples:
        has_document = bool(text.replace(SEPARATOR, "").strip())
        if has_document and summary:
            yield text, summary
            continue
        skipped += 1
        if empty == "stop":
            place, kind = (summary_place, "summary") if has_document else (document_place, "document")
            raise UserError(f"{place}: the {kind} is empty; set task.empty=skip to skip it")
    if skipped:
        log.warning("skipped %s of %s without a document or a summary", counted(skipped, "example"), split)


def _split_files(folder: Path, split: str) -> tuple[Path, Path]:
    sources = [folder / f"{split}.src.cleaned", folder / f"{split}.src"]
    source, target = next((path for path in sources if path.is_file()), sources[0]), folder / f"{split}.tgt"
    for path in (source, target):
        if not path.is_file():
            raise UserError(
                f"no {path.name} in {folder}: Multi-News's layout is {{train,val,test}}.src.cleaned and .tgt; "
                f"{fetch_hint('multi_news', folder.parent)}, or use dataset=synthetic"
            )
    return source, target


def _lines_of(source: Path, target: Path) -> Iterator[Example]:
    """Yield the document and the summary of each line."""
    for (line, text), (_, summary) in zip_longest(read_lines(source), read_lines(target), fillvalue=(0, None)):
        if text is None or summary is None:
            raise UserError(f"{source} and {target.name} differ in their number of lines: one is truncated")
        yield Example(f"{source}, line {line}", f"{target}, line {line}", clean(text), clean(summary))


def generated_pairs() -> Pairs:
    """Return :data:`NUM_PAIRS` pairs of :func:`generate_pair`."""

    def read(split: str) -> Iterator[tuple[str, str]]:
        start = sum(NUM_PAIRS[earlier] for earlier in VAL_SPLITS[: VAL_SPLITS.index(split)])
        return map(generate_pair, range(start, start + NUM_PAIRS[split]))

    return Pairs({"generator": 10, "first": list(generate_pair(0)), "counts": NUM_PAIRS}, read)


class EncodedPairs(Dataset[dict[str, Tensor | None]]):
    """Tokenized pairs of one split, truncated, read through memory maps.

    A batch is ``source`` [B, M], ``target`` [B, N + 1] (begin token, summary, end token), right-padded, and their
    padding masks, None without padding. With ``ends`` ``targets``, every summary has an end token and no document; with
    ``short``, all documents and summaries that fit including an end token have one.
    """

    def __init__(
        self, pairs: Pairs, split: str, tokenizer: Tokenizer, *, source_len: int, target_len: int, ends: str = "targets"
    ) -> None:
        self.split, self.ends = split, ends
        self.begin, self.pad, self.end = special_tokens(tokenizer)
        tokenizer.encode_special_tokens = True  # a text that has the name of one is a text
        key: dict[str, Any] = {
            "pairs": pairs.key,
            "part": split,
            "tokenizer": tokenizer.to_str(),
            "ends": ends,
            "names": 1,
        }
        key |= {"lengths": [source_len, target_len], "version": SUM_VERSION}
        folder = prepared("sum", key, lambda folder: self._encode(pairs, tokenizer, folder, source_len, target_len))
        self.tokens = np.memmap(folder / "tokens.bin", dtype="int32", mode="r")
        self.bounds = np.load(folder / "bounds.npy", mmap_mode="r")
        self.digests: np.ndarray = np.load(folder / "digests.npy")  # of the documents
        self.texts = folder / "texts.jsonl"

    def _encode(self, pairs: Pairs, tokenizer: Tokenizer, folder: Path, source_len: int, target_len: int) -> None:
        bounds, digests = [0], []
        with (folder / "tokens.bin").open("wb") as file, (folder / "texts.jsonl").open("w") as texts:
            for number, row in enumerate(progress(pairs.read(self.split), f"encoding {self.split}"), start=1):
                source, target = (tokenizer.encode(text, add_special_tokens=False).ids for text in row)
                if found := {self.begin, self.pad, self.end}.intersection([*source, *target]):
                    raise UserError(
                        f"example {number} of {self.split}: the tokenizer reads a word as "
                        f"'{tokenizer.id_to_token(min(found))}', which ends or pads a text: remove the word"
                    )
                if self.ends == "targets":
                    ended = source[:source_len], [*target[: target_len - 1], self.end]
                else:
                    ended = [*source, self.end][:source_len], [*target, self.end][:target_len]
                for ids in (ended[0], [self.begin, *ended[1]]):
                    np.array(ids, dtype="int32").tofile(file)
                    bounds.append(bounds[-1] + len(ids))
                texts.write(json.dumps(row) + "\n")
                digests.append(hashlib.sha256(row[0].encode(errors="surrogatepass")).digest()[:8])
        if len(bounds) == 1:
            raise UserError(f"the {self.split} split has no examples")
        np.save(folder / "bounds.npy", np.array(bounds, dtype=np.int64))
        np.save(folder / "digests.npy", np.frombuffer(b"".join(digests), dtype=np.uint64))

    def __len__(self) -> int:
        return (len(self.bounds) - 1) // 2

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor | None]:
        batch: dict[str, Tensor | None] = {}
        for offset, name in enumerate(("source", "target")):
            numbers = [2 * i + offset for i in indices]
            rows = [self.tokens[self.bounds[i] : self.bounds[i + 1]].astype(np.int64) for i in numbers]
            tokens = pad_sequence([*map(torch.from_numpy, rows)], batch_first=True, padding_value=self.pad)
            padding = torch.arange(tokens.shape[1]) >= torch.tensor([len(row) for row in rows]).unsqueeze(1)
            batch |= {name: tokens, f"{name}_padding": padding if bool(padding.any()) else None}
        return batch

    def read_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the original documents and summaries, in order."""
        with self.texts.open() as lines:
            yield from (tuple(json.loads(line)) for line in lines)


def special_tokens(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Return the ids of the begin, padding and end token; raise UserError if one is missing."""
    begin, pad, end = (tokenizer.token_to_id(token) for token in SPECIAL_TOKENS[:3])
    if begin is None or pad is None or end is None:
        raise UserError(f"the tokenizer lacks special tokens: give one with {', '.join(SPECIAL_TOKENS[:3])}")
    return begin, pad, end


COLORS = ("red", "green", "blue", "white", "black", "brown", "pink", "grey", "gold", "purple")
CHANGING_THINGS, KEPT_THINGS, FOLLOWED_THINGS = THINGS[:12], THINGS[:8], THINGS[:6]
PEOPLE = USUAL_NAMES[:12]
DIRECT, CHANGES = 3, 5
SUMMARY_WORDS = 56  # all levels end with it
SUM_LEVELS = {
    "kept": slice(2, 25, 2),
    "changed_once": slice(26, 32),
    "changed_more": slice(32, 44),
    "changed": slice(44, 56),
}
"""Words per summary."""


def generate_pair(number: int) -> tuple[str, str]:
    """Generate documents and summary ``number``, deterministically."""
    rng = random.Random(f"pair {number}")
    of_color = {color: rng.choice(KEPT_THINGS) for color in COLORS}
    circle = shuffled(CHANGING_THINGS, rng)
    becomes = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    labels = {name: rng.choice(COLORS) for name in shuffled(PEOPLE, rng)}
    labels |= {name: rng.choice(KEPT_THINGS) for name in shuffled(PEOPLE, rng)[:DIRECT]}
    documents = (
        ["Kept", *(name + what for name, what in labels.items())],
        ["Coloured", *(color + of_color[color] for color in shuffled(COLORS, rng))],
        ["Changed", *(thing + becomes[thing] for thing in shuffled(CHANGING_THINGS, rng))],
    )
    kept = [word for name in PEOPLE for word in (name, of_color.get(labels[name], labels[name]))]
    forms, changed = list(FOLLOWED_THINGS), []
    for _ in range(CHANGES):
        forms = [becomes[form] for form in forms]
        changed += forms
    return " ||||| ".join(" ".join(words) for words in documents), " ".join(["Kept", *kept, "changed", *changed])


def shuffled(words: tuple[str, ...], rng: random.Random) -> list[str]:
    """Return the words in random order."""
    return rng.sample(words, len(words))
