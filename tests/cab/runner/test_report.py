"""What a command says of its cells while they run."""

from __future__ import annotations

import time

import pytest

from cab.errors import UnsupportedError, UserError
from cab.runner.report import Outcome, Report


@pytest.fixture
def clock(monkeypatch):
    """Seconds, for a test to set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_told_from_the_first_trained_cell_on(clock):
    report = Report(expected=12, started=clock[0])
    report.add(Outcome("a", "cached", None))
    assert report.progress() == " (1 of 12)"
    clock[0] += 6
    report.add(Outcome("b", "completed", None))
    assert report.progress() == " (2 of 12, about 1 min left)"
    clock[0] += 114
    report.add(Outcome("c", "completed", None))
    assert report.progress() == " (3 of 12, about 9 min left)"


def test_the_last_cell_leaves_no_time(clock):
    report = Report(expected=2, started=clock[0])
    clock[0] += 5
    for title in "ab":
        report.add(Outcome(title, "completed", None))
    assert report.progress() == " (2 of 2)"


def test_a_cell_without_a_record_is_none_of_the_rest():
    report = Report(expected=3)
    report.add_error(UnsupportedError("no such cell"), "cab run a")
    report.add_error(UserError("a mistake"), "cab run b")
    report.add(Outcome("c", "completed", None))
    assert report.progress() == ""
    assert (report.left_out, report.failures) == (["no such cell"], ["cab run b: a mistake"])


def test_a_single_cell_has_no_count():
    report = Report()
    report.add(Outcome("a", "completed", None))
    assert report.progress() == ""
