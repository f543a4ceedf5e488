"""Vocabulary of GLUE: that of the pretrained network, or one trained on the sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cab import UserError
from cab.records.record import Record
from tasks.bpe import find_tokenizer, vocabulary_size
from tasks.corpus.tokens import BEGIN, END, NUM_SPECIAL
from tasks.mlm.task import MLM

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
