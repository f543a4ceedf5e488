"""What a command says of its cells while they run."""

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


@pytest.mark.parametrize(
    ("expected", "story"),
    [
        (12, [(0, "cached", " (1 of 12)"), (6, "completed", " (2 of 12, about 1 min left)"),
              (114, "completed", " (3 of 12, about 9 min left)")]),
        (2, [(60, "completed", " (1 of 2, about 1 min left)"), (0, "completed", " (2 of 2)")]),
        (1, [(5, "completed", "")]),
    ],
)  # fmt: skip
def test_the_time_left_is_told_from_the_first_trained_cell_on(expected, story, clock):
    report = Report(expected=expected, started=clock[0])
    for seconds, kind, progress in story:
        clock[0] += seconds
        report.add(Outcome("a cell", kind, None))
        assert report.progress() == progress


def test_a_cell_without_a_record_is_none_of_the_rest():
    report = Report(expected=3)
    report.add_error(UnsupportedError("no such cell"), "cab run a")
    report.add_error(UserError("a mistake"), "cab run b")
    report.add(Outcome("c", "completed", None))
    assert report.progress() == ""
    assert (report.left_out, report.failures) == (["no such cell"], ["cab run b: a mistake"])
