"""A number of results has one value, whichever command prints it and whichever other results are named."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.helpers.command import ROOT
from tests.helpers.printed_numbers import PrintedNumbers, printed_numbers
from tests.helpers.printed_tables import Number, latex_tables, number, numbers, text_tables
from tests.helpers.rehearsal import write_rehearsal

NumbersOf = Callable[[str], PrintedNumbers]
SOURCES = {
    "paper": "published",
    "rehearsal": "own",
    "rehearsal, paper": "own",
    "diverged": "own",
    "reproduced": "own",
    "reproduced, paper": "own",
    "mini": "reference",
    "core": "reference",
    "own, core": "own or reference",
}
"""Folders of results, and the source of rows that name none."""
SLOW = ("mini", "core", "own, core", "reproduced", "reproduced, paper")
OUTPUTS = {"score metrics", "score text", "table3", "table3 text", "table3 LaTeX", "table6", "leaderboard.csv", "page"}


def case(name: str, *values: object) -> ParameterSet:
    """A test of some sources."""
    marks = [pytest.mark.slow] if any(slow in name.split(" | ") for slow in SLOW) else []
    return pytest.param(*(values or (name,)), marks=marks, id=name)


@pytest.fixture(scope="module")
def numbers_of(tmp_path_factory: pytest.TempPathFactory) -> NumbersOf:
    """The numbers that all commands print of some sources, which are read once."""

    @functools.cache
    def read(sources: str) -> PrintedNumbers:
        folder = tmp_path_factory.mktemp("numbers")
        made: dict[str, Callable[[Path], Path]]
        made = {"rehearsal": write_rehearsal, "diverged": functools.partial(write_rehearsal, diverged=True), "own": own}
        paths = [made[n](folder / n) if n in made else Path("results", n) for n in sources.split(", ")]
        return printed_numbers(paths, folder / "leaderboard", SOURCES[sources])

    return read


def own(folder: Path) -> Path:
    """A third of the records of results/core as results of one's own."""
    folder.mkdir()
    for line in (ROOT / "results/core/records.jsonl").read_text().splitlines()[::3]:
        (folder / f"{json.loads(line)['hash']}.json").write_text(line)
    return folder


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("sources", [case(name) for name in SOURCES])
def test_a_number_has_one_value(sources: str, numbers_of: NumbersOf) -> None:
    book = numbers_of(sources)
    assert len(book.refused) == 1
    assert set(book.refused) <= {"score --score index --csv", "score --score K --csv"}  # results have one of them
    assert book.conflicts() == {}


@pytest.mark.parametrize(
    ("part", "whole", "of"),
    [
        case(f"{part} | {whole}", part, whole, of)
        for part, whole, of in (
            ("paper", "rehearsal, paper", ("published", "recomputed")),
            ("rehearsal", "rehearsal, paper", ("own",)),
            ("paper", "reproduced, paper", ("published", "recomputed")),
            ("reproduced", "reproduced, paper", ("own",)),
            ("core", "own, core", ("reference",)),
        )
    ],
)
def test_other_results_do_not_change_a_number(
    part: str, whole: str, of: tuple[str, ...], numbers_of: NumbersOf
) -> None:
    both = numbers_of(part).alongside(numbers_of(whole), of)
    assert len(both.values) > 100
    assert both.conflicts() == {}


@pytest.mark.parametrize("sources", [case(name) for name in SOURCES])
def test_outputs_share_names(sources: str, numbers_of: NumbersOf) -> None:
    """Otherwise, the tests above compare nothing."""
    book = numbers_of(sources)
    shared = book.shared()
    assert len(shared) > 400
    assert {output for name in shared for output in book.values[name]} >= OUTPUTS


def test_values_of_one_name_are_compared_within_their_printed_digits() -> None:
    book = PrintedNumbers("own")
    printed = {"a": ("0.979504", "0.980"), "b": ("0.979504", "0.979"), "c": ("1.5", "-"), "d": ("-", "")}
    for place, (one, other) in printed.items():
        book.add("one", ("own", "", "index", place), number(one))
        book.add("other", ("own", "", "index", place), number(other))
    assert {name[-1] for name in book.conflicts()} == {"b", "c"}


def test_tables_are_read_as_printed() -> None:
    text = """\
NS                all        sum  seeds
abc  ~    0.1 [-1, 2]  -1,234.50      2
s4d  ~              -          -      -
"""
    [table] = text_tables(text)
    assert table.header == ["NS", "", "all", "sum", "seeds"]
    assert table.rows == [["abc", "~", "0.1 [-1, 2]", "-1,234.50", "2"], ["s4d", "~", "-", "-", "-"]]
    assert number(table.rows[0][3]) == Number(-1234.5, 0.005)
    assert [value for value, _ in numbers(table.rows[0][2])] == [0.1, -1, 2]
    latex = r"""
% Table 3a (CS)
\begin{tabular}{lr}
attention & cd\_l1 \\
\midrule
abc & $-$0.5 \\
\end{tabular}
"""
    [table] = latex_tables(latex)
    assert (table.pattern, table.header, table.rows) == ("CS", ["attention", "cd_l1"], [["abc", "-0.5"]])
