"""Table 13 against the registry: every claim has a verdict, and no verdict contradicts what is registered."""

from __future__ import annotations

from collections import Counter

from cab.paper.published import rows
from cab.paper.taxonomy import LEFT_OUT, UNDEFINED, UNSOUND, known_verdicts, taxonomy
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
