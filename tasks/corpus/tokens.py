"""Token files: books are encoded once and read in chunks."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cab.files.cache import digest_of, prepared, progress
from tasks.bpe import WORD_TOKENS, find_tokenizer, vocabulary_size
from tasks.corpus.books import Books
from tasks.files import SPLITS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BEGIN, PAD, END, UNKNOWN_ENTRY = range(4)
"""The first entries of the dictionary, as in fairseq; END follows every line."""
NUM_SPECIAL = 4
SPECIAL_TEXTS = ("<|begin|>", "<|pad|>", "<|end|>", "<|unknown|>")
"""Texts of these entries in the files of an exported tokenizer."""
CHUNK = 1 << 20  # tokens processed at once
TOKENS_VERSION = 4  # of the reading and encoding; increase when they change


@dataclass(frozen=True)
class TokenFile:
    """Raw tokens on disk, read instead of memory-mapped: mapped pages would count as memory of the process."""

    path: Path
    dtype: str

    def __len__(self) -> int:
        return self.path.stat().st_size // np.dtype(self.dtype).itemsize

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens ``start`` to ``stop``, fewer at the end of the file."""
        size = np.dtype(self.dtype).itemsize
        return np.fromfile(self.path, self.dtype, count=max(0, stop - start), offset=start * size)


@dataclass(frozen=True)
class Corpus:
    """Token files of the three splits, and the dictionary of tokens that occur in training, as in fairseq.

    Attributes:
        files: raw tokens of each split; ``end_of_line`` follows every line.
        dictionary: maps raw tokens to entries; tokens that do not occur in training are UNKNOWN.
        counts: frequency of each entry in training.
        ends: per split, the cumulative number of tokens at the end of each book.
        words: per split, the number of words separated by white space, for some corpora including line ends.
        unknown: per split, the number of tokens that are not in the dictionary.
    """

    files: dict[str, TokenFile]
    end_of_line: int
    dictionary: np.ndarray
    counts: np.ndarray
    ends: dict[str, np.ndarray]
    words: dict[str, int]
    unknown: dict[str, int]
    tokenizer: Tokenizer
    key: dict[str, Any]

    @property
    def size(self) -> int:
        """Number of entries of the dictionary, rounded up to a multiple of 8 as in fairseq."""
        return -(-len(self.counts) // 8) * 8

    def read(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return entries ``start`` to ``stop`` of a split, int64."""
        return self.dictionary[self.files[split].read(start, stop)]

    def chunks(self, split: str) -> Iterator[np.ndarray]:
        """Yield all entries of a split in chunks."""
        for start in range(0, len(self.files[split]), CHUNK):
            yield self.read(split, start, start + CHUNK)

    def books(self, split: str) -> Iterator[Tensor]:
        """Yield the entries [n] of each book of a split."""
        for begin, end in itertools.pairwise([0, *self.ends[split].tolist()]):
            yield torch.from_numpy(self.read(split, begin, end))

    def save_tokenizer(self, folder: Path, *, max_length: int) -> None:
        """Write the files of :class:`cab.registry.modeling_cab.CABTokenizer`."""
        entries = {token: int(self.dictionary[number]) for token, number in self.tokenizer.get_vocab().items()}
        known = {token: entry for token, entry in entries.items() if entry >= NUM_SPECIAL}
        about = {
            "tokenizer_class": "CABTokenizer",
            "auto_map": {"AutoTokenizer": ["modeling_cab.CABTokenizer", None]},
            "model_max_length": max_length,
            "bos_token": SPECIAL_TEXTS[END],  # it precedes the first token of a text
            "eos_token": SPECIAL_TEXTS[END],
            "pad_token": SPECIAL_TEXTS[PAD],
            "unk_token": SPECIAL_TEXTS[UNKNOWN_ENTRY],
        }
        self.tokenizer.save(str(folder / "tokenizer.json"))
        for name, content in (
            ("entries.json", {**{token: entry for entry, token in enumerate(SPECIAL_TEXTS)}, **known}),
            ("tokenizer_config.json", about),
        ):
            (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    def text(self, entries: list[int]) -> str:
        """Decode dictionary entries to text; END becomes a line break, masks and padding are dropped."""
        raw = {int(entry): token for token, entry in enumerate(self.dictionary) if entry >= NUM_SPECIAL}
        lines: list[list[int]] = [[]]
        for entry in entries:
            if entry == END:
                lines.append([])
            elif entry in raw:
                lines[-1].append(raw[entry])
        return "\n".join(self.tokenizer.decode(line) for line in lines)


def read_corpus(books: Books, *, tokenizer: str | None, vocab_size: int) -> Corpus:
    """Return the corpus of the books, from the cache if available.

    Args:
        tokenizer: path for :func:`tasks.bpe.read_bpe`, or ``words``; None trains a tokenizer on the training split.
        vocab_size: number of entries of a trained tokenizer.
    """
    training_key = {"books": books.key.get("train", books.key), "version": TOKENS_VERSION}
    options: Any = {"vocab_size": vocab_size, "key": training_key}
    bpe = find_tokenizer(tokenizer, lambda: books.readable("train"), **options)
    vocabulary = {} if tokenizer in (None, WORD_TOKENS) else {"tokenizer": digest_of(bpe.get_vocab())}
    key = {"books": books.key, "tokenizer": bpe.to_str(), "version": TOKENS_VERSION}
    folder = prepared("corpus", key, lambda folder: _encode(books, bpe, folder))
    about = json.loads((folder / "about.json").read_text())
    files = {split: TokenFile(folder / f"{split}.bin", about["dtype"]) for split in SPLITS}
    raw_counts = np.load(folder / "counts.npy")
    end_of_line = vocabulary_size(bpe)
    dictionary = np.full(end_of_line + 1, UNKNOWN_ENTRY, dtype=np.int64)
    occurring = np.flatnonzero(raw_counts[:end_of_line])
    dictionary[occurring] = NUM_SPECIAL + np.arange(len(occurring))
    dictionary[end_of_line] = END
    counts = np.concatenate([np.zeros(NUM_SPECIAL, dtype=np.int64), raw_counts[occurring]])
    counts[END] = raw_counts[end_of_line]
    return Corpus(
        files=files,
        end_of_line=end_of_line,
        dictionary=dictionary,
        counts=counts,
        ends={split: np.array(ends) for split, ends in about["ends"].items()},
        words=about["words"],
        unknown={split: _count_unknown(files[split], dictionary) for split in SPLITS[1:]},
        tokenizer=bpe,
        key={"books": books.key, "tokens": {split: len(file) for split, file in files.items()}, **vocabulary},
    )


def _encode(books: Books, tokenizer: Tokenizer, folder: Path) -> None:
    """Write each split's tokens and book ends, with the end of line after each line, and count the training tokens."""
    end_of_line = vocabulary_size(tokenizer)
    dtype = "uint16" if end_of_line < 2**16 else "uint32"
    words = {}
    ends: dict[str, list[int]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        counts = np.zeros(end_of_line + 1, dtype=np.int64)
        words[split] = 0
        with (folder / f"{split}.bin").open("wb") as file:
            for book in progress(books.readable(split), f"encoding {split}"):
                lines = book.removesuffix("\n").split("\n")
                words[split] += len(book.split()) + len(lines) * books.counts_line_ends
                for start in range(0, len(lines), 1000):
                    encoded = tokenizer.encode_batch(lines[start : start + 1000], add_special_tokens=False)
                    tokens = np.concatenate([np.array([*line.ids, end_of_line], dtype=dtype) for line in encoded])
                    tokens.tofile(file)
                    counts += np.bincount(tokens, minlength=len(counts))
                ends[split].append(file.tell() // np.dtype(dtype).itemsize)
        if split == "train":
            np.save(folder / "counts.npy", counts)
    (folder / "about.json").write_text(json.dumps({"dtype": dtype, "words": words, "ends": ends}))


def _count_unknown(file: TokenFile, dictionary: np.ndarray) -> int:
    starts = range(0, len(file), CHUNK)
    return sum(int((dictionary[file.read(start, start + CHUNK)] == UNKNOWN_ENTRY).sum()) for start in starts)


def padding_or_none(tokens: Tensor) -> Tensor | None:
    """Return the padding mask of ``tokens``; None without padding."""
    padding = tokens == PAD
    return padding if bool(padding.any()) else None


def perplexity(mean: float) -> float:
    """Return exp of a mean loss in nats, infinity on overflow, NaN for NaN."""
    return math.inf if mean >= 700 else math.exp(mean)  # which overflows at 710


def unigram_loss(corpus: Corpus, split: str) -> float:
    """Return the mean negative log-likelihood of a split under add-one smoothed training frequencies."""
    counts = corpus.counts.astype(np.float64) + 1.0
    cost = -np.log(counts / counts.sum())
    total = sum(float(cost[chunk].sum()) for chunk in corpus.chunks(split))
    return total / len(corpus.files[split])
