"""Published results in CSV files, with the mistakes that a spreadsheet makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cab import UserError, load_results
from cab.cli.main import main
from cab.results.costs import load_costs

CSV = "pattern,task,backbone,dataset,metric,higher_is_better,attention,value\nNS,T,b,d,m,1,café,1\n"
UNREADABLE = {
    "utf-16": CSV.encode("utf-16"),
    "latin-1": CSV.encode("latin-1"),
    "binary": bytes(range(256)) * 9,
    "long field": CSV.replace("café", "a" * 140_000).encode(),
}


@pytest.mark.parametrize("read", [load_results, load_costs])
@pytest.mark.parametrize("name", [*UNREADABLE, "pipe"])
def test_a_table_that_cannot_be_read_is_one_line(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(UNREADABLE[name]) if name in UNREADABLE else os.mkfifo(path)
    with pytest.raises(UserError, match=r"table\.csv") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_the_byte_order_mark_of_a_spreadsheet_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(CSV.encode("utf-8-sig"))
    assert load_results(tmp_path / "table.csv")["attention"].tolist() == ["café"]


def test_line_breaks_of_names_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f'NS,T,b,"d\ne",m,1,{name},{value}' for value, name in enumerate(["vanilla", *"abcd"])]
    (tmp_path / "table.csv").write_text("\n".join([CSV.splitlines()[0], *rows]))
    assert main(["score", str(tmp_path / "table.csv")]) == 0
    assert "  T: m of b d\ufffde\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [("NS,T,b,d,m,maybe,abc,1", "higher_is_better 1 or 0, got 'maybe'"), ("NS,T,b,d,m,1,abc,lots", "line 2: .*'lots'")],
)
def test_broken_published_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(f"pattern,task,backbone,dataset,metric,higher_is_better,attention,value\n{line}\n")
    with pytest.raises(UserError, match=message):
        load_results(path)
