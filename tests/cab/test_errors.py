"""The reason of an exception of other code is one line, however the code writes it."""

from __future__ import annotations

import pytest

from cab.errors import first_line


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


CIRCLE = ValueError("a")
CIRCLE.__cause__ = caused(ValueError("b"), CIRCLE)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n\n  one  \ntwo"), "one"),
        (ValueError("validation failed:\n    3 heads\nsee"), "validation failed: 3 heads"),
        (ValueError("validation failed:"), "validation failed:"),
        (ValueError(), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (MuteError(), "MuteError"),
        (ValueError("half \ud83d"), r"half \ud83d"),
        (caused(ValueError("cannot build"), TypeError("3 heads")), "cannot build: 3 heads"),
        (caused(ValueError("cannot build (3 heads)"), TypeError("3 heads")), "cannot build (3 heads)"),
        (caused(ValueError("failed\n3 heads"), TypeError("3 heads")), "failed"),
        (caused(ValueError("cannot build"), MuteError()), "cannot build: MuteError"),
        (CIRCLE, "a: b: a: b"),
    ],
)
def test_the_reason_is_one_line(error: BaseException, text: str) -> None:
    assert first_line(error) == text
