import pytest

from cab import Pattern, UserError
from cab.config.compose import check_overrides, compose

CELL = ["task=lstf", "dataset=synthetic", "attention=abc", "preset=smoke"]


@pytest.mark.parametrize("pattern", Pattern)
def test_a_pattern_is_named_in_words_too(pattern):
    words = f"{'causal' if pattern.is_causal else 'noncausal'}_{'cross' if pattern.is_cross else 'self'}"
    assert Pattern.parse(words) is Pattern.parse(str(pattern)) is Pattern.parse(pattern) is pattern


@pytest.mark.parametrize(
    ("name", "near"),
    [("cs", "CS"), ("Noncausal_Self", "noncausal_self"), ("causal", "causal_self"), ("", ""), ("XYZ", "")],
)
def test_an_unknown_name_is_refused_with_those_that_exist(name, near):
    hint = (
        f"': did you mean '{near}'? Known: CC, CS, NC, NS, causal_" if near else r"' \(known: CC, CS, NC, NS, causal_"
    )
    with pytest.raises(UserError, match=f"unknown pattern '{name}{hint}".replace("?", r"\?")):
        Pattern.parse(name)


def test_both_names_are_the_same_run():
    assert compose([*CELL, "pattern=noncausal_cross"]) == compose([*CELL, "pattern=NC"])
    assert "pattern=NC,CS" in check_overrides([*CELL, "pattern=noncausal_cross,CS"], sweep=True)
