"""What may be left out because it passed before: the same code, the same checks, the same torch, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from cab.records import verified
from cab.records.verified import COLUMNS, COMMITTED, Row, read_rows, write_rows
from tests.helpers.attentions import trust
from tests.helpers.attentions.trust import split, subjects

PAIRS = list(subjects())
VANILLA = [pair for pair in PAIRS if pair[0] == "vanilla"]


@pytest.fixture
def rows(tmp_path):
    """Rows of today for every pair, and a function that writes them and says what runs."""
    made = [Row.of_today(*pair, subject, quick=False, reach={}) for pair, subject in subjects().items()]

    def split_by(rows, *, quick=True, seed="1"):
        path = tmp_path / "verified.csv"
        write_rows(path, rows)
        return split(quick=quick, path=path, seed=seed)

    return made, split_by


def test_a_part_is_drawn_by_the_seed_and_verified_in_full(rows):
    made, split_by = rows
    assert split_by(made).runs == {}
    by_seed = [split_by(made, quick=False, seed=str(seed)) for seed in range(120)]
    assert all(set(pairs.runs.values()) <= {"drawn"} for pairs in by_seed)
    assert 0.5 * len(PAIRS) < sum(len(pairs.runs) for pairs in by_seed) < 2 * len(PAIRS)
    assert len({frozenset(pairs.runs) for pairs in by_seed}) > 30
    assert split_by(made, quick=False, seed="3") == by_seed[3]


def test_what_has_no_row_runs(rows):
    made, split_by = rows
    assert set(VANILLA) <= split_by([row for row in made if row.attention != "vanilla"]).runs.keys()


def test_the_quick_form_is_not_the_whole(rows):
    made, split_by = rows
    quick = [dataclasses.replace(row, mode=verified.QUICK) for row in made]
    assert "new" not in split_by(quick).runs.values()
    assert set(split_by(quick, quick=False).runs.values()) == {"new"}


def test_committed_rows_are_of_registered_pairs():
    """After an attention is renamed or taken out, so are its rows."""
    committed = read_rows(COMMITTED)
    assert COMMITTED.read_text().startswith(",".join(COLUMNS) + "\n")
    assert len({(row.attention, row.pattern) for row in committed}) == len(committed)
    assert {(row.attention, row.pattern) for row in committed} <= set(PAIRS)


def test_tests_of_options_are_slow_where_the_code_has_passed(monkeypatch):
    monkeypatch.setattr(trust, "split", lambda quick: trust.Split({("abc", "CS"): "new"}, set()))  # noqa: ARG005
    assert trust.slow_unless_new("gla", "abc") == []
    assert [mark.name for mark in trust.slow_unless_new("gla")] == ["slow"]
