"""What a result does not need, such as plots, cannot lose it; and code that fails in its own way leaves a record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from cab.records.record import Record, Status
from cab.runner.provenance import ResourceUsage
from engines.torch.loggers import Loggers
from tests.helpers.runs.troubled import Troubled, trained


class Odd(BaseException):
    """Not an Exception, as those of some frameworks."""

    def __str__(self) -> str:
        return "half of a pair: \ud83d"


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("owner", "method", "title"),
    [
        (Troubled, "save_plots", "the plots"),
        (ResourceUsage, "memory", "the measurement of the cost"),
    ],
)
@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("bad backend"), "ValueError: bad backend"), (SystemExit(3), r"ExitError: .*sys\.exit\(3\)")],
)
def test_optional_output_that_fails_is_a_warning_in_the_record(
    owner, method, title, error, text, troubled, tmp_path, monkeypatch
):
    expected = trained(troubled(f"results_dir={tmp_path / 'expected'}"))
    monkeypatch.setattr(owner, method, fails(error))
    record = trained(troubled())
    assert (record.status, record.metrics) == (Status.FINISHED, expected.metrics)
    [warning] = Record.read(tmp_path / f"{record.hash}.json").engine_facts["warnings"]
    assert warning.startswith(f"{title} failed: ")
    assert re.search(text, warning)


def test_a_logger_that_fails_at_the_end_loses_nothing(troubled, monkeypatch, caplog):
    monkeypatch.setattr(Loggers, "write_record", fails(SystemExit(3)))
    assert trained(troubled()).status is Status.FINISHED
    assert "a logger failed: ExitError" in caplog.text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Odd(), r"ExitError: the code raised Odd: half of a pair: \ud83d"),
        (MuteError(), "MuteError"),
        (
            RuntimeError("cannot build it:\n  ValueError: 3 heads\nsee the log"),
            "RuntimeError: cannot build it: ValueError: 3 heads",
        ),
    ],
)
def test_an_error_of_any_code_is_a_failed_record(error, text, troubled, tmp_path, monkeypatch):
    monkeypatch.setattr(Troubled, "evaluate", fails(error))
    record = trained(troubled())
    assert (record.status, record.error) == (Status.FAILED, text)
    assert (tmp_path / record.hash / "traceback.txt").exists()
