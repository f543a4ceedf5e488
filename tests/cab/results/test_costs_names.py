"""Names of attentions in tables of costs."""

from __future__ import annotations

import dataclasses

import pytest

from cab.results.costs import cost_name
from tests.helpers.suite_records import suite_record


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("abc", "abc"),
        ("abc(tuned)", "abc"),
        ("abc(tuned) [0123abcd]", "abc"),
        ("abc [mixed code]", "abc"),
        ("x(y=[[1], [2]])", "x(y=[[1], [2]])"),
    ],
)
def test_neither_a_learning_rate_nor_other_code_is_in_the_name(label: str, name: str) -> None:
    record = suite_record("probe", "abc", 80)
    assert cost_name(dataclasses.replace(record, cell={**record.cell, "attention": label})) == name
