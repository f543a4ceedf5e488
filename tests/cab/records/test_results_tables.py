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


@pytest.mark.parametrize("seed", ["-5", "1.5", "9" * 450, "one", " 1", "²"])
def test_a_seed_is_a_natural_number(seed: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(CSV.replace("value\n", "value,seed\n").replace(",1\n", f",1,{seed}\n"))
    with pytest.raises(UserError, match=r"table\.csv, line 2: .*seed a natural number"):
        load_results(tmp_path / "table.csv")


def test_columns_occur_once(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(CSV.replace("value\n", "value,value\n").replace(",1\n", ",1,2\n"))
    with pytest.raises(UserError, match=r"line 1: the column 'value' occurs more than once"):
        load_results(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("NS,T,b,d,m,maybe,abc,1", "higher_is_better 1 or 0, got 'maybe'"),
        ("NS,T,b,d,m,1,abc,lots", "line 2: .*'lots'"),
        ("NS,T,b,d,m,1,abc,1e400", "line 2: value must be a finite number or empty.*'1e400'"),
        ("NS,T,b,d,m,1,abc,nan", "line 2: value must be a finite number or empty.*'nan'"),
        ('NS,T,b,d,m,1,abc,"0,5"', "line 2: .*'0,5'"),
        ("XX,T,b,d,m,1,abc,1", "line 2: the pattern must be one of NS, CS, NC, CC, got 'XX'"),
        ("ns,T,b,d,m,1,abc,1", "line 2: the pattern must be one of"),
        ("NS,T,b,d,m,1,,1", "line 2: no attention"),
        ("NS,T,b,d,m,1, ,1", "line 2: no attention"),
        ("NS,T,b,d,m,1,abc", "line 2: 7 values for 8 columns"),
        ("NS,T,b,d,m,1,abc,1,9", "line 2: 9 values for 8 columns"),
        ("NS;T;b;d;m;1;abc;1", "line 2: 1 values for 8 columns"),
        ("NS,T,b,d,m,1,abc,1\nNS,T,b,d,m,1,abc,2", "line 3: the result of line 2 again"),
        ('NS,T,b,d,m,1,"abc,1', "numbers.csv cannot be read as CSV"),
    ],
)
def test_broken_published_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(f"pattern,task,backbone,dataset,metric,higher_is_better,attention,value\n{line}\n")
    with pytest.raises(UserError, match=message):
        load_results(path)
