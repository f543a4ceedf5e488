"""Which verifications `results/verified.csv` makes superfluous, and which of these each night repeats all the same.

Of attentions whose code has passed, the tests of options and kernels are slow as well.
CAB_CONFORMANCE_SEED draws what is repeated; `make test-nightly` sets it to the day.
"""

import functools
import hashlib
import os
from pathlib import Path

import pytest

from cab.records.verified import COMMITTED, read_rows
from cab.registry.registries import ATTENTIONS

SEED = os.environ["CAB_CONFORMANCE_SEED"]
SHARE = 120  # one in so many of the trusted is repeated, in full

Pair = tuple[str, str]


@functools.cache
def subjects() -> dict[Pair, type]:
    """The class of every registered attention, for every pattern it claims."""
    return {(e.name, str(pattern)): e.cls for e in ATTENTIONS for pattern in e.patterns}


def pairs_to_run(*, quick: bool, path: Path = COMMITTED, seed: str = SEED) -> dict[Pair, str]:
    """The pairs to verify by the rows of ``path``, each ``new`` or ``drawn``; all others are trusted."""
    rows = {(row.attention, row.pattern): row for row in read_rows(path)}
    runs = {}
    for pair, subject in subjects().items():
        if pair not in rows or not rows[pair].holds(subject, quick=quick):
            runs[pair] = "new"
        elif not quick and _is_drawn(pair, seed):
            runs[pair] = "drawn"
    return runs


def slow_unless_new(*names: str) -> list[pytest.MarkDecorator]:
    """`slow` for tests that can only break with the code of these attentions, unless some of it has not passed yet."""
    return [] if _new().intersection(names) else [pytest.mark.slow]


@functools.cache
def _new() -> set[str]:
    return {name for name, _ in pairs_to_run(quick=True)}


def _is_drawn(pair: Pair, seed: str) -> bool:
    digest = hashlib.sha256(" ".join([seed, *pair]).encode()).digest()
    return int.from_bytes(digest[:4]) % SHARE == 0


def summary() -> str:
    """What became of the pairs, for the last lines of a run."""
    forms = []
    for name, quick in (("quick", True), ("whole", False)):
        reasons = list(pairs_to_run(quick=quick).values())
        trusted = len(subjects()) - len(reasons)
        forms.append(f"{name}: {trusted} trusted, {reasons.count('new')} new, {reasons.count('drawn')} drawn")
    return f"conformance by {COMMITTED.name}, CAB_CONFORMANCE_SEED={SEED}: {'; '.join(forms)}"
