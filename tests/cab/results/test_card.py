"""Cards of attentions: complete for every registered attention, equal to the tables, reachable from the page."""

import functools

import pytest

from cab.files.text_table import read_csv
from cab.records import verified
from cab.records.names import installed_code
from cab.registry import build
from cab.registry.build import state_bytes
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.results.card import DEFAULTS, Card, card

ENTRIES = [(registry, name) for registry in (ATTENTIONS, BACKBONES, TASKS) for name in registry.names()]
card_of = functools.cache(card)
"""Cards of the code as it is, each built once."""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Decode states are measured after fewer tokens."""
    monkeypatch.setattr(build, "state_bytes", lambda layer, tokens: state_bytes(layer, tokens // 32))


def rows(found: Card, title: str) -> list[tuple[str, ...]]:
    [section] = [section for section in found.sections if section.caption.startswith(title)]
    return [(row.label, *(cell.text for cell in cells)) for row, cells in section.lines]


@pytest.mark.parametrize(("registry", "name"), ENTRIES)
def test_every_entry_has_a_whole_card(registry, name):
    found, entry = card_of(name), registry.get(name)
    assert found.description
    assert all(value for _, value in found.facts)
    assert [option for option, _, _ in rows(found, "Options")] == list(entry.options)
    if registry is ATTENTIONS:
        assert len(found.description) > 20
        assert "Args:" not in found.description
        assert ("no decode state" in dict(found.facts)["Decode state"]) != any(p.is_causal for p in entry.patterns)
        assert all(section.rows or section.empty for section in found.sections)
        assert [pattern for pattern, _ in rows(found, "Verification")] == list(map(str, entry.patterns))


def test_a_card_has_the_numbers_of_its_attention():
    for row in read_csv(DEFAULTS):
        shown = {part: published for part, _, published, *_ in rows(card_of(row["attention"]), "Default")}
        assert shown[row["part"]] == ("as published" if row["default"] == row["published"] else row["published"])
    for name, share in (("vanilla", "100"), ("none", "0")):
        assert {shown for _, shown, *_ in rows(card_of(name), "Scores")} == {share}
    assert {ratio for _, _, ratio, *_ in rows(card_of("vanilla"), "Cost")} == {"1.00"}


def test_verification_depends_on_the_code(monkeypatch, tmp_path):
    monkeypatch.setattr(verified, "COMMITTED", tmp_path / "verified.csv")
    monkeypatch.setattr(verified, "remembered", lambda: tmp_path / "none.csv")
    for name, status in (("gla", "verified"), ("abc", "not with this code")):
        row = verified.VerifiedRow.of_today("gla", "CS", ATTENTIONS.get(name).cls, quick=False, reach={})
        verified.write_rows(tmp_path / "verified.csv", [row])
        assert rows(card("gla"), "Verification") == [("CS", status)]


def test_numbers_of_other_code_are_called_so(monkeypatch):
    for code in (installed_code("gla"), "of the original"):
        monkeypatch.setattr("cab.results.costs._committed_codes", lambda code=code: {("gla", code)})
        found = card("gla")
        is_edited = code == "of the original"
        notes = [section.remarks for section in found.sections if section.caption.startswith(("Cost", "Scores"))]
        assert notes == [["of other code than the installed one"] if is_edited else []] * 2


def test_a_card_is_printed_with_every_section(cab):
    text, page = cab("list", "gated_deltanet").out, cab("list", "gated_deltanet", "--markdown").out
    for section in card_of("gated_deltanet").sections:
        assert f"\n{section.caption}\n" in text
        assert f"\n## {section.caption}\n" in page
