"""`cab paper`: the remarks of its tables."""

from __future__ import annotations

import pytest

from cab.cli.main import main


def test_a_printed_count_may_be_rounded_or_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "params", "--backbone", "sr3"]) == 0
    rows = [line.split(maxsplit=6) for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[2]: row[6] for row in rows if len(row) > 6} == {"longshort": "agrees, truncated in print"}
    assert ["NS", "sr3", "longshort", "99,657,043", "99.65", "M"] in [row[:6] for row in rows]
