"""Generated data never change: checksums of what each generator makes, on any machine."""

import hashlib
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from cab.registry.registries import TASKS
from tasks.corpus.facts import USUAL_NAMES
from tasks.glue.tables import generate_pairs
from tasks.lm.task import generate_book
from tasks.lra.images import generated_shapes
from tasks.lra.listops import Shape, generated_trees
from tasks.lra.rows import Source
from tasks.lra.text import generated_pairs, generated_reviews
from tasks.lstf.synthetic import synthetic_series
from tasks.mlm.task import generate_book as generate_pages
from tasks.pcc.data import generate_shape
from tasks.sr.data import render
from tasks.sum.data import generate_pair
from tasks.tts.synthetic import generate_utterance
from tests.helpers.tasks.records import FEW
from tests.tasks.probe.test_probe import small


def examples(source: Source) -> Any:
    return [(split, [*rows]) for split, rows in source.read()]


def rounded(x: Any) -> Any:
    """With arrays without the last digits, in which processors differ."""
    if isinstance(x, np.ndarray):
        return (np.round(x, 3) + 0.0).astype(np.float32).tobytes()
    return type(x)(map(rounded, x)) if type(x) in (list, tuple) else x


SIZES = {place: resolve_name(f"tasks.{place}") for place in FEW}
"""As they are before a fixture makes them small."""
COUNTS = (20, 5, 5)
MAKERS = {
    "sizes": ("ddcde20d201e13a6", lambda: [*SIZES.items()]),
    "lm": ("315619abb1483a80", lambda: [generate_book(i, names=names) for i in range(4) for names in (16, 32)]),
    "mlm": ("d720233543425e02", lambda: [generate_pages(i, names=names) for i in range(4) for names in (16, 32)]),
    "sum": ("1cb85fa6abf4a684", lambda: [generate_pair(i) for i in range(20)]),
    "glue": ("8ec9efecd52b48a0", lambda: [generate_pairs("dev"), USUAL_NAMES]),
    "listops": ("89ff5574bcfe7d36", lambda: examples(generated_trees(Shape(4, 5, 5, 40), COUNTS))),
    "text": ("5446e238abe0d125", lambda: examples(generated_reviews(128, COUNTS))),
    "retrieval": ("ee0df6e965bda3f4", lambda: examples(generated_pairs(32, COUNTS))),
    "image": ("4fa8a6bfd6f3848b", lambda: examples(generated_shapes(12, COUNTS))),
    "sr": ("74739a7c98b60dd4", lambda: [render(i, n, 2 * n).tobytes() for i in range(4) for n in (6, 8)]),
    "pcc": ("4a0bcdcdef93890c", lambda: [cloud for i in range(6) for cloud in generate_shape(i)]),
    "tts": ("9c1010567ca42466", lambda: [generate_utterance(i) for i in range(5)]),
    "lstf": ("176cbbeed93131b2", lambda: [(x.values[:9000], x.calendar[:9000]) for x in map(synthetic_series, (6, 8))]),
}
PROBES = """
    recall=a9b309c4 noisy=07ceacad copying=f84f341d compression=6c2243f0 mad_recall=8ec58892 mad_noisy=80c92f6b
    mad_fuzzy=f2103377 mad_copying=d6f3a786 mad_memorization=7f1e3d4d mqar=9dd6cd85 copy=5713bca0 reverse=0ae2e84c
    addition=cb15f835 parity=661671a5 modulo3=9a4ef807 s3=8a639b50 s5=67c1b459
"""


def digest(made: Any) -> str:
    return hashlib.sha256(repr(rounded(made)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", MAKERS)
def test_generated_data_never_change(name):
    expected, make = MAKERS[name]
    assert digest(make()) == expected


@pytest.mark.parametrize("name", TASKS.get("probe").datasets)
def test_generated_probes_never_change(name):
    found = digest({split: made.digest for split, made in small(name).splits.items()})
    assert f"{name}={found[:8]}" in PROBES.split()
