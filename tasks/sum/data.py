"""Documents and their summaries: Multi-News's files, a data set on the hub, or generated ones; encoded once."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.data.sources import how_to_get
from cab.files.cache import checksums, prepared, progress
from tasks.hub import stream
from tasks.sum.synthetic import generate_pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

PARTS = ("train", "val", "test")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
"""First entries of a tokenizer that is trained here, as in BART's."""
SEPARATOR = "|||||"


def clean(text: str) -> str:
    """Line breaks and document separators of both editions of Multi-News in one form."""
    return text.replace("NEWLINE_CHAR", "\n").replace("story_separator_special_tag", SEPARATOR).strip()


class Pairs(ABC):
    """Streams (documents, summary) pairs; ``key`` identifies their content."""

    key: dict[str, Any]

    @abstractmethod
    def read(self, part: str) -> Iterator[tuple[str, str]]:
        """The pairs of ``part``, one of :data:`PARTS`."""


class FolderPairs(Pairs):
    """``{train,val,test}.src.cleaned`` (or ``.src``) and ``.tgt``, one example a line.

    Args:
        bring: how to get the files, for the message that one is missing.
        empty: what an example without a document or a summary does: ``stop``, or ``skip``, which leaves it out and
            warns with the number of those left out.

    Raises:
        ValueError: a file that is missing, files of different length, or an empty line, with file and line.
    """

    def __init__(self, folder: Path, *, bring: str, empty: str = "stop") -> None:
        self.empty = empty
        self.files = {part: self._find(folder, part, bring) for part in PARTS}
        self.key = {**checksums([path for pair in self.files.values() for path in pair]), "empty": empty}

    @staticmethod
    def _find(folder: Path, part: str, bring: str) -> tuple[Path, Path]:
        sources = [folder / f"{part}.src.cleaned", folder / f"{part}.src"]
        source = next((path for path in sources if path.is_file()), None)
        target = folder / f"{part}.tgt"
        if source is None or not target.is_file():
            missing = sources[0] if source is None else target
            raise UserError(
                f"no {missing.name} in {folder}: {bring}; Multi-News's layout is {{train,val,test}}.src.cleaned and "
                ".tgt; point data_root at the parent of its folder 'sum', or use dataset=synthetic"
            )
        return source, target

    def read(self, part: str) -> Iterator[tuple[str, str]]:
        source, target = self.files[part]
        left_out = 0
        with source.open(encoding="utf-8") as sources, target.open(encoding="utf-8") as targets:
            for line, pair in enumerate(_in_step(source, sources, target, targets), start=1):
                text, summary = clean(pair[0]), clean(pair[1])
                lacking = source if not text.replace(SEPARATOR, "").strip() else target if not summary else None
                if lacking is None:
                    yield text, summary
                    continue
                left_out += 1
                if self.empty == "stop":
                    what = "document" if lacking is source else "summary"
                    raise UserError(f"{lacking}, line {line}: the {what} is empty; task.empty=skip leaves it out")
        if left_out:
            log.warning("left out %d examples of %s without a document or a summary", left_out, part)


def _in_step(source: Path, sources: Iterator[str], target: Path, targets: Iterator[str]) -> Iterator[tuple[str, str]]:
    try:
        yield from zip(sources, targets, strict=True)
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise UserError(f"{source} or {target.name} is not UTF-8 text") from None
        raise UserError(f"{source} and {target.name} differ in their number of lines: one is cut short") from None


class HubPairs(Pairs):
    """A data set on the hub with columns ``document`` and ``summary``, as Multi-News has them, streamed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parts, self.key = stream(name, {"train": "train", "val": "validation", "test": "test"})

    def read(self, part: str) -> Iterator[tuple[str, str]]:
        for number, row in enumerate(self._parts[part], start=1):
            pair = clean(row["document"]), clean(row["summary"])
            if not all(pair):
                raise UserError(f"{self.name}, {part}, row {number}: the document or the summary is empty")
            yield pair


class SyntheticPairs(Pairs):
    """Pairs that :func:`generate_pair` writes."""

    counts: ClassVar[dict[str, int]] = {"train": 8000, "val": 64, "test": 128}

    def __init__(self) -> None:
        self.key = {"generator": 10, "first": list(generate_pair(0)), "counts": self.counts}

    def read(self, part: str) -> Iterator[tuple[str, str]]:
        first = sum(self.counts[before] for before in PARTS[: PARTS.index(part)])
        for number in range(self.counts[part]):
            yield generate_pair(first + number)


def find_pairs(dataset: str, source: str | None, data_root: Path | None, *, empty: str = "stop") -> Pairs:
    """The pairs of a data set: generated, of the hub where ``source`` names one, else under ``data_root``.

    Raises:
        ValueError: no folder is given, or it lacks a file.
    """
    if dataset == "synthetic":
        return SyntheticPairs()
    if source is not None:
        return HubPairs(source)
    if data_root is None:
        raise UserError(
            f"dataset '{dataset}' needs its files: {how_to_get(dataset, None)}; point data_root (or CAB_DATA) at a "
            "folder with sum/train.src.cleaned and so on, or use dataset=synthetic"
        )
    folders = [data_root / name for name in ("sum", "sum/data", "multi_news", "multi_news/data")]
    folder = next((folder for folder in folders if (folder / "train.tgt").is_file()), folders[0])
    return FolderPairs(folder, bring=how_to_get(dataset, data_root), empty=empty)


class EncodedPairs(Dataset[dict[str, Tensor | None]]):
    """Pairs of one part as tokens, cut to the lengths, read through memory maps.

    A batch is ``source`` [B, M] and ``target`` [B, N + 1] (begin token, summary, end token), filled with padding, and
    the masks of what is padding, None where nothing is. With ``ends`` ``targets`` every summary ends, and no document;
    with ``short`` those documents and summaries do that, with their end, need not be cut.
    """

    def __init__(
        self, pairs: Pairs, part: str, tokenizer: Tokenizer, *, source_len: int, target_len: int, ends: str = "targets"
    ) -> None:
        self.part, self.ends = part, ends
        self.begin, self.pad, self.end = special_tokens(tokenizer)
        key = {"pairs": pairs.key, "part": part, "tokenizer": tokenizer.to_str(), "lengths": [source_len, target_len]}
        key |= {} if ends == "targets" else {"ends": ends}
        folder = prepared("sum", key, lambda folder: self._encode(pairs, tokenizer, folder, source_len, target_len))
        self.tokens = np.memmap(folder / "tokens.bin", dtype="int32", mode="r")
        self.bounds = np.load(folder / "bounds.npy", mmap_mode="r")
        self.texts = folder / "texts.jsonl"

    def _encode(self, pairs: Pairs, tokenizer: Tokenizer, folder: Path, source_len: int, target_len: int) -> None:
        bounds = [0]
        with (folder / "tokens.bin").open("wb") as file, (folder / "texts.jsonl").open("w") as texts:
            for text, summary in progress(pairs.read(self.part), f"encoding {self.part}"):
                source = tokenizer.encode(text, add_special_tokens=False).ids
                target = tokenizer.encode(summary, add_special_tokens=False).ids
                if self.ends == "targets":
                    ended = source[:source_len], [*target[: target_len - 1], self.end]
                else:
                    ended = [*source, self.end][:source_len], [*target, self.end][:target_len]
                for ids in (ended[0], [self.begin, *ended[1]]):
                    np.array(ids, dtype="int32").tofile(file)
                    bounds.append(bounds[-1] + len(ids))
                texts.write(json.dumps([text, summary]) + "\n")
        if len(bounds) == 1:
            raise UserError(f"the {self.part} part has no examples")
        np.save(folder / "bounds.npy", np.array(bounds, dtype=np.int64))

    def __len__(self) -> int:
        return (len(self.bounds) - 1) // 2

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor | None]:
        source, source_padding = self._batch([2 * i for i in indices])
        target, target_padding = self._batch([2 * i + 1 for i in indices])
        return {
            "source": source,
            "source_padding": source_padding,
            "target": target,
            "target_padding": target_padding,
        }

    def _batch(self, numbers: list[int]) -> tuple[Tensor, Tensor | None]:
        rows = [torch.from_numpy(self.tokens[self.bounds[i] : self.bounds[i + 1]].astype(np.int64)) for i in numbers]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
        lengths = torch.tensor([len(row) for row in rows])
        padding = torch.arange(batch.shape[1]) >= lengths.unsqueeze(1)
        return batch, padding if bool(padding.any()) else None

    def read_texts(self) -> Iterator[tuple[str, str]]:
        """The documents and summaries as they were, in order."""
        with self.texts.open() as lines:
            for line in lines:
                text, summary = json.loads(line)
                yield text, summary


def special_tokens(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Ids of the begin, padding and end token; UserError for a tokenizer that lacks one."""
    begin, pad, end = (tokenizer.token_to_id(token) for token in SPECIAL[:3])
    if begin is None or pad is None or end is None:
        raise UserError(f"the tokenizer lacks special tokens: give one with {', '.join(SPECIAL[:3])}")
    return begin, pad, end
