"""Generated data never change: checksums of what each generator makes, on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cab.registry.registries import TASKS
from tasks.corpus.facts import NAMES
from tasks.glue.tables import generate_pairs
from tasks.lm.task import generate_book
from tasks.lra.images import generated_shapes
from tasks.lra.listops import Shape, generated_trees
from tasks.lra.rows import Source
from tasks.lra.text import generated_pairs, generated_reviews
from tasks.lstf.synthetic import synthetic_series
from tasks.mlm.task import generate_book as generate_pages
from tasks.pcc.synthetic import generate_shape
from tasks.sr.data import render
from tasks.sum.data import generate_pair
from tasks.tts.synthetic import generate_utterance
from tests.tasks.probe.test_probe import small


def examples(source: Source) -> Any:
    return [(split, [*rows]) for split, rows in source.read()]


def rounded(x: np.ndarray) -> bytes:
    """Without the last digits, in which processors differ."""
    return (np.round(x, 3) + 0.0).astype(np.float32).tobytes()


def spoken(number: int) -> Any:
    phonemes, durations, wave = generate_utterance(number)
    return phonemes, durations, rounded(wave)


def probe(name: str) -> Any:
    return {split: made.digest for split, made in small(name).splits.items()}


COUNTS = (20, 5, 5)
MAKERS: dict[str, Callable[[], Any]] = {
    "lm": lambda: [generate_book(i, names=names) for i in range(4) for names in (16, 32)],
    "mlm": lambda: [generate_pages(i, names=names) for i in range(4) for names in (16, 32)],
    "sum": lambda: [generate_pair(i) for i in range(20)],
    "glue": lambda: [generate_pairs("dev"), NAMES],
    "listops": lambda: examples(generated_trees(Shape(4, 5, 5, 40), COUNTS)),
    "text": lambda: examples(generated_reviews(128, COUNTS)),
    "retrieval": lambda: examples(generated_pairs(32, COUNTS)),
    "image": lambda: examples(generated_shapes(12, COUNTS)),
    "sr": lambda: [render(i, low, high).tobytes() for i in range(4) for low, high in ((6, 12), (8, 16))],
    "pcc": lambda: [rounded(cloud) for i in range(6) for cloud in generate_shape(i)],
    "tts": lambda: [spoken(i) for i in range(5)],
    "lstf": lambda: [(rounded(s.values[:9000]), rounded(s.calendar[:9000])) for s in map(synthetic_series, (6, 8))],
    **{f"probe {name}": lambda name=name: probe(name) for name in TASKS.get("probe").datasets},  # type: ignore[misc]
}
EXPECTED = {
    "lm": "315619abb1483a80",
    "mlm": "d720233543425e02",
    "sum": "1cb85fa6abf4a684",
    "glue": "3969ae4155b6901f",
    "listops": "89ff5574bcfe7d36",
    "text": "5446e238abe0d125",
    "retrieval": "ee0df6e965bda3f4",
    "image": "4fa8a6bfd6f3848b",
    "sr": "74739a7c98b60dd4",
    "pcc": "4a0bcdcdef93890c",
    "tts": "9c1010567ca42466",
    "lstf": "2be505b62db15bfd",
    "probe recall": "a9b309c47d5fc66b",
    "probe noisy": "07ceacadddf9a345",
    "probe copying": "f84f341d3d9d040d",
    "probe compression": "6c2243f04ff07e35",
    "probe mad_recall": "8ec58892786cbaf3",
    "probe mad_noisy": "80c92f6b2e140f39",
    "probe mad_fuzzy": "f2103377b87c57b3",
    "probe mad_copying": "d6f3a7864c11730c",
    "probe mad_memorization": "7f1e3d4db85c7fc8",
    "probe mqar": "9dd6cd8546df98da",
    "probe copy": "5713bca08f27fc0f",
    "probe reverse": "0ae2e84c4a3fe209",
    "probe addition": "cb15f835dace37c8",
    "probe parity": "661671a51a74ceb8",
    "probe modulo3": "9a4ef807d61d30ef",
    "probe s3": "8a639b50702d1503",
    "probe s5": "67c1b459e66e7250",
}


@pytest.mark.parametrize("name", MAKERS)
def test_generated_data_never_change(name: str) -> None:
    assert hashlib.sha256(repr(MAKERS[name]()).encode()).hexdigest()[:16] == EXPECTED[name]
