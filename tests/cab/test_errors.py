"""The reason of an exception of other code is one line, however the code writes it."""

import pytest

from cab.errors import first_line, nearest_name, unknown_name


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
def test_the_reason_is_one_line(error, text):
    assert first_line(error) == text


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("nc", ["CC", "NC", "NS"], "NC"),
        ("Informer", ["former", "informer"], "informer"),
        ("VANILLA", ["axial", "vanilla"], "vanilla"),
        ("Trainer.LR", ["trainer.learning_rate", "trainer.lr_min"], "trainer.learning_rate"),
        ("ecl", ["ECL"], "ECL"),
        ("zzz", ["abc"], None),
    ],
)
def test_the_nearest_name_is_found_in_any_case(name, known, near):
    assert nearest_name(name, known) == near


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (["b", "a"], "unknown part 'xyz' (known: a, b)"),
        ([], "unknown part 'xyz' (known: none)"),
        (["Xyz"], "unknown part 'xyz': did you mean 'Xyz'? Known: Xyz"),
        ([*map(str, range(20))], "unknown part 'xyz' (nearest of 20: "),
        (["XY", *map(str, range(20))], "unknown part 'xyz': did you mean 'XY'? Nearest of 21: XY, "),
    ],
)
def test_an_unknown_name_has_one_colon_before_its_hint(known, text):
    assert str(unknown_name("part", "xyz", known)).startswith(text)
