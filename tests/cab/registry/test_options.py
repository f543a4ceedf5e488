"""Values against annotations."""

from __future__ import annotations  # an annotation that only the type checker sees is a text

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest
from annotated_types import Interval

from cab.config.compose import compose
from cab.errors import UserError
from cab.files.disk import sanitize_csv_cell
from cab.registry.options import PositiveFloat, annotations_of, checked_options
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.runner.cell import Cell


@pytest.mark.parametrize(
    ("kind", "fit", "unfit"),
    [
        (bool, [True, False, "yes", "No"], [None, "maybe", 2, [True]]),
        (int, [0, 3, np.int64(3)], [1.0, "1", "8", None, True, [1], -1]),
        (float, [0, 0.5, -2.5, np.float32(1)], ["0.5", None, True, float("nan"), float("inf"), 10**400]),
        (str, ["", "a"], [3, None, ["a"]]),
        (int | None, [None, 3], ["3", 2.5, False, -3]),
        (str | int | None, [None, 3, "epoch"], [2.5, [1]]),
        (Literal["M", "S"], ["M", "S"], ["X", None, 1]),
        (Sequence[int], [[], [1, 2], (3,)], ["12", 3, [1.5], None, [1, -2]]),
        (tuple[float, float], [[1, 2], (0.5, -2)], [[1], [1, 2, 3], 1, ["a", "b"]]),
        (tuple[int, ...], [[], [1, 2, 3]], [[1, "2"], 1]),
        (tuple[float, int], [(0.5, 2)], [(0.5, 2.5), 0.5]),
        (Mapping[str, Any], [{}, {"a": 1}], [3, "a", [1]]),
        (Annotated[int, Interval(ge=1, le=3)] | None, [1, 3, None], [0, 4]),
        (Any, [None, 3, "a", object], []),
    ],
    ids=str,
)
def test_what_fits_an_annotation(kind, fit, unfit):
    for value in fit:
        checked_options({"size": value}, {"size": kind}, "attention")
    for value in unfit:
        with pytest.raises(UserError, match=r"^attention\.size: .*, got ") as raised:
            checked_options({"size": value}, {"size": kind}, "attention")
        assert "\n" not in str(raised.value)


def test_an_annotation_is_prepared_once_for_all_cells(monkeypatch):
    prepared, adapter = list[Any](), pydantic.TypeAdapter
    monkeypatch.setattr("pydantic.TypeAdapter", lambda kind: prepared.append(kind) or adapter(kind))
    for value in (1, 2.0, 3):
        checked_options({"epochs": value}, {"epochs": Annotated[int | float, Interval(ge=0, le=17)]})
    assert len(prepared) == 1


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 5, 5.0),
        (PositiveFloat | None, 5, 5.0),
        (tuple[float, ...], [1, 0.5], [1.0, 0.5]),
        (Sequence[int], (1, 2), (1, 2)),
        (int | float, 5.0, 5),
        (int | float, 0.5, 0.5),
        (str | float, "5", "5"),
        (bool, "yes", True),
        (bool, "off", False),
        (bool, "TRUE", True),
        (int, np.int64(3), 3),
        (Annotated[int, ["a list that has no hash"]], 3, 3),
    ],
    ids=str,
)
def test_a_value_has_one_form(kind, value, expected):
    found = checked_options({"size": value}, {"size": kind})["size"]
    assert (type(found), repr(found)) == (type(expected), repr(expected))


@pytest.mark.parametrize(
    ("kind", "default", "message"),
    [
        (int, 16, "^size: Input should be a valid integer, got 'many'; for example size=16$"),
        (Sequence[int], (1, 2), r"got 'many'; for example size=\[1,2\]$"),
        (Literal["a", "b"] | int | None, None, "^size: Input should be 'a' or 'b' or .* valid integer, got 'many'$"),
    ],
)
def test_a_message_has_all_alternatives_the_value_and_the_default(kind, default, message):
    with pytest.raises(UserError, match=message):
        checked_options({"size": "many"}, {"size": kind}, defaults={"size": default})


def test_a_member_of_an_enum_is_refused_with_what_to_write():
    speed = Enum("speed", ["FAST", "EXACT"])
    with pytest.raises(UserError, match=r"^attention\.size: .*annotate it with Literal\['fast', 'exact'\]"):
        checked_options({"size": speed["FAST"]}, {"size": speed}, "attention")


def test_a_whole_number_is_one_configuration():
    cell = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=sinkhorn", "pattern=CS", "preset=smoke"]
    options = "attention.temperature={0} trainer.lr_decay_epochs={0} trainer.max_grad_norm={0}"
    whole, decimal = (Cell.from_config(compose([*cell, *options.format(one).split()])) for one in ("1", "1.0"))
    assert (whole.hash, whole.label) == (decimal.hash, decimal.label)
    assert isinstance(whole.config.attention.options["temperature"], float)


def test_every_default_of_ours_fits_its_annotation():
    for registry in (ATTENTIONS, BACKBONES, TASKS):
        for entry in registry:
            kinds = entry.kinds
            assert not [name for name in entry.options if kinds[name] is Any], entry.name
            entry.check_options(entry.options, registry.kind)


def test_an_annotation_of_the_type_checker_alone_is_not_checked():
    def build(*, size: Nowhere = 3, depth: int = 2) -> None:  # noqa: F821
        raise NotImplementedError

    assert annotations_of(build) == {"size": Any, "depth": int}


def test_a_spreadsheet_runs_nothing_and_numbers_and_names_stay_what_they_are():
    """tests/cab/results/test_page.py has whole tables."""
    for formula in ("=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "=HYPERLINK(1)"):
        assert sanitize_csv_cell(formula) == f"'{formula}", formula
    for harmless in ("-0.5", "+1e-3", "-", "abc(n=3)", "", 3, None, "-inf"):
        assert sanitize_csv_cell(harmless) == harmless, harmless
