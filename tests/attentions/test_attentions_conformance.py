"""The conformance suite on every registered attention, in every pattern it claims; none is left out.

A pair that `results/verified.csv` says passed, of this code, these checks and this torch, is trusted, but for those
that each night draws again (:mod:`tests.helpers.attentions.trust`). Time is not measured here, where other
work shares the processor: `cab verify` does that.
"""

import pytest

from cab.verification import run_checks, select_checks, subject_of
from cab.verification.check import Check
from tests.helpers.attentions.trust import SEED, pairs_to_run

QUICK, WHOLE = select_checks(quick=True), [check for check in select_checks() if not check.is_timed]


def failures(name: str, pattern: str, checks: list[Check]) -> list[str]:
    results = list(run_checks(subject_of(name, pattern, options={}), checks))
    assert results
    return [f"{result.check}: {result.detail}" for result in results if not result.passed]


def cases(*, quick: bool) -> list[object]:
    """The pairs that run; of one that is drawn again, at night, the id says with which seed."""
    again = {"new": "", "drawn": f"-CAB_CONFORMANCE_SEED={SEED}"}
    marks = {"new": (), "drawn": pytest.mark.nightly}
    runs = pairs_to_run(quick=quick).items()
    return [pytest.param(*pair, id="-".join(pair) + again[reason], marks=marks[reason]) for pair, reason in runs]


@pytest.mark.parametrize(("name", "pattern"), cases(quick=True))
def test_conformance(name, pattern):
    assert not failures(name, pattern, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern"), cases(quick=False))
def test_conformance_in_full(name, pattern):
    assert not failures(name, pattern, WHOLE)
