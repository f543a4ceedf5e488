"""Table 13 against the registry: every claim has a verdict, and no verdict contradicts what is registered."""

from __future__ import annotations

from collections import Counter

import pytest

from cab.cli.main import main
from cab.paper.published import rows
from cab.paper.taxonomy import LEFT_OUT, UNDEFINED, UNSOUND, TaxonomyRow, known_verdicts, taxonomy
from cab.registry.registries import ATTENTIONS

VERDICTS = list(taxonomy())


def test_it_has_every_model_in_every_pattern() -> None:
    models = [row["model"] for row in rows("taxonomy.csv")]
    assert len(models) == 44
    assert Counter(verdict.model for verdict in VERDICTS) == dict.fromkeys(models, 4)
    names, reasons = known_verdicts()
    assert set(names) == set(models)
    assert {model for model, _ in reasons} <= set(models)


def test_every_claim_has_a_verdict() -> None:
    assert all(verdict.verdict for verdict in VERDICTS if verdict.claimed == "yes")


def test_verdicts_are_the_registrys() -> None:
    for verdict in VERDICTS:
        built = verdict.attention and verdict.pattern in map(str, ATTENTIONS.get(verdict.attention).patterns)
        assert bool(built) == verdict.verdict.startswith(("verified", "built", "unsound as")), verdict
        if verdict.verdict in (UNSOUND, UNDEFINED, LEFT_OUT):
            assert verdict.reason
            assert not built


def row(model: str, pattern: str) -> TaxonomyRow:
    [found] = [verdict for verdict in VERDICTS if (verdict.model, verdict.pattern) == (model, pattern)]
    return found


@pytest.mark.parametrize(
    ("model", "pattern", "claimed", "verdict"),
    [
        ("ABC", "CS", "yes", "verified"),
        ("cosFormer", "CS", "no", "verified, not claimed"),
        ("Nystromformer", "CS", "no", "unsound"),
        ("ETC", "CS", "yes", "unsound"),
        ("Flowformer", "CC", "yes", "unsound"),
        ("SAC", "NS", "yes", "left out"),
        ("XCiT", "CC", "no", ""),
    ],
)
def test_verdicts_by_hand(model: str, pattern: str, claimed: str, verdict: str) -> None:
    assert (row(model, pattern).claimed, row(model, pattern).verdict) == (claimed, verdict)


def test_the_command_prints_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "taxonomy", "--csv"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("model,attention,pattern,claimed,verdict")
    assert len(printed) == 1 + 4 * 44
