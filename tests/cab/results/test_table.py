"""A table in each of its forms, and why values are missing."""

import math

import pandas as pd

from cab.results.formats import gain, numbers
from cab.results.table import Column, Row, Table


def test_every_form_of_a_table_has_the_same_texts():
    """The best verified value is bold; a row that is not verified is neither bold nor tinted."""
    results = {"K": [100.0, 30.0, 90.0], "low": math.nan, "bound": [math.nan, 41.0, 120.0], "seeds": 3, "reached_90": 3}
    frame = pd.DataFrame({**results, "verdict": ["solved", "worse", "undecided"], "note": ["", "unfinished", ""]})
    cells = [gain(row) for row in frame.to_dict("records")]
    assert [cell.text for cell in cells] == ["3 of 3 solved", "≥ 30 (≤ 41) ▼", "90 ?"]
    errors = numbers([2.0, 1.0, 3.0])
    rows = [Row("a_b"), Row("c", verified="no"), Row("d")]
    table = Table(rows, [Column("K", cells, "higher"), Column("mse", errors, "lower", marks_best=True)])
    assert table.to_text().splitlines()[2].split() == ["†", "c", "≥", "30", "(≤", "41)", "▼", "1.000"]
    assert "| a\\_b | 3 of 3 solved | **2.000** |" in table.to_markdown()
    assert r"a\_b & 3 of 3 solved & \textbf{2.000} \\" in table.to_latex()
    assert r"\dag{} c & $\geq$ 30 ($\leq$ 41) $\bigtriangledown$ & 1.000 \\" in table.to_latex()
    html = str(table.to_html())
    assert '<td data-value="30.0" title="unfinished">≥ 30 (≤ 41) ▼</td>' in html
    assert '<td data-value="100.0" class="match">3 of 3 solved</td>' in html
    assert table.to_csv() == "attention,K,mse\na_b,100.0,2.0\nc,30.0,1.0\nd,90.0,3.0\n"
    [note] = table.notes
    assert [note.count(sign) for sign in "▼?*≥†"] == [1, 1, 0, 1, 1]
