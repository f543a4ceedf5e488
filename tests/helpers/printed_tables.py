"""Tables as commands print them (CSV, aligned text, LaTeX, HTML), as rows of cells, and the numbers of a cell."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterator
from typing import NamedTuple

PATTERN = re.compile(r"\b(NS|CS|NC|CC)\b")
NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
HEADER = re.compile(r"attention|(K, )?(NS|CS|NC|CC)\b.*")
MEMBERS = re.compile(r"  \w+( \([^)]*\))?: ")
"""A line below an index table, with the metrics that a task averages."""


class Number(NamedTuple):
    """A printed number and half a unit of its last printed digit."""

    value: float
    half: float

    def is_close(self, other: Number) -> bool:
        tolerance = self.half + other.half + 1e-9 * max(abs(self.value), abs(other.value), 1)
        return abs(self.value - other.value) <= tolerance


class PrintedTable(NamedTuple):
    caption: str
    header: list[str]
    rows: list[list[str]]

    @property
    def pattern(self) -> str:
        found = PATTERN.search(self.header[0]) or PATTERN.search(self.caption)
        assert found is not None, self.caption
        return found[0]


def number(cell: str) -> Number | None:
    """The first number of a cell; None if it has none."""
    found = NUMBER.search(cell)
    if found is None:
        return None
    decimals, exponent = len(found[1] or ".") - 1, int((found[2] or "e0")[1:])
    return Number(float(found[0].replace(",", "")), 0.5 * 10.0 ** (exponent - decimals))


def numbers(cell: str) -> list[Number]:
    """All numbers of a cell, such as those of ``0.2 [-1.0, 1.2]`` and ``1.06 ± 0.01 (2)``."""
    return [read for found in NUMBER.finditer(cell) if (read := number(found[0]))]


def of_csv(cell: str) -> Number | None:
    """A number of a CSV file, which has six decimals or all digits."""
    try:
        return Number(float(cell), 1e-6) if cell and cell != "nan" else None
    except ValueError:
        return None


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def text_tables(text: str) -> Iterator[PrintedTable]:
    """Aligned tables, which blank lines separate; columns are separated by two spaces in every line."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not MEMBERS.match(line)]
        start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
        if start is not None:
            spans = _columns(lines[start:])
            header, *rows = [[line[a:b].strip() for a, b in spans] for line in lines[start:]]
            yield PrintedTable("\n".join(lines[:start]), header, rows)


def _is_header(line: str) -> bool:
    cells = re.split(r"\s{2,}", line.strip())
    return len(cells) > 1 and bool(HEADER.fullmatch(cells[0]))


def _columns(lines: list[str]) -> list[tuple[int, int]]:
    width = max(map(len, lines))
    used = [any(line[i : i + 1].strip() for line in lines) for i in range(width)]
    used[:2] = [True, True]  # the indented labels
    text = "".join("x" if is_used else " " for is_used in used)
    return [found.span() for found in re.finditer(r"x+( x+)*", text)]


def latex_tables(text: str) -> Iterator[PrintedTable]:
    blocks = re.findall(r"((?:^%[^\n]*\n)*)\\begin\{tabular\}(.*?)\\end\{tabular\}", text, flags=re.M | re.S)
    for caption, body in blocks:
        plain = body.replace("$-$", "-").replace(r"\_", "_").replace(r"\%", "%")
        lines = re.findall(r"^(.* & .*?) ?\\\\", plain, flags=re.M)
        header, *rows = [[cell.strip() for cell in line.split(" & ")] for line in lines]
        yield PrintedTable(caption, header, rows)


def html_tables(page: str) -> dict[str, PrintedTable]:
    """The tables of a page that have an ID."""
    found = {}
    for name, body in re.findall(r"<table[^>]*\bid=\"([^\"]+)\"[^>]*>(.*?)</table>", page, flags=re.S):
        lines = [_cells(row) for row in re.findall(r"<tr.*?</tr>", body, flags=re.S)]
        groups = lines.pop(0) if "colspan" in body else [""] * len(lines[0])
        header = [
            f"{group}: {label}" if " / " in group else label for group, label in zip(groups, lines[0], strict=True)
        ]
        found[name] = PrintedTable(name.replace("-", " "), header, lines[1:])
    return found


def _cells(row: str) -> list[str]:
    """The texts of a row, that of a cell above several columns for each of them."""
    cells = re.findall(r"<t[hd]\b([^>]*)>(.*?)</t[hd]>", row, flags=re.S)
    spans = [int((re.findall(r'colspan="(\d+)"', attributes) or [1])[0]) for attributes, _ in cells]
    return [_plain(text) for span, (_, text) in zip(spans, cells, strict=True) for _ in range(span)]


def _plain(cell: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", cell)).split())
