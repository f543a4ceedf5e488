"""A number of results has one value, whichever command prints it."""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, Command

GOLDEN = ROOT / "tests/golden/output"
FOLDERS = ("results/reproduced", "results/paper")
Name = tuple[str, ...]
Row = Mapping[str, str]


class Numbers(defaultdict[Name, dict[str, float | None]]):
    """The value that each output has for a name: source, normalization, quantity and place; None: it has no value."""

    def __init__(self) -> None:
        super().__init__(dict)
        self.normalization: dict[str, str] = {}

    def add(self, output: str, source: str, name: Name, cell: str) -> None:
        value = float(cell) if cell not in ("", "nan") else None
        self[source, *name][output] = value if name[0] != "seeds" or value else None

    def scored(self, row: Row, source: str) -> str:
        """Source and normalization of an index; a table that states none has that of `cab score`."""
        stated = row.get("normalization") or self.normalization.get(source, "")
        return source if source == "published" else f"{source} {stated}"

    def conflicts(self) -> dict[Name, dict[str, float | None]]:
        def is_one(values: list[float | None]) -> bool:
            first, *others = (math.nan if value is None else value for value in values)
            return all(math.isclose(first, x, abs_tol=2e-6) or (math.isnan(first) and math.isnan(x)) for x in others)

        return {name: printed for name, printed in self.items() if not is_one([*printed.values()])}


def source_of(row: Row) -> str:
    return (row.get("source") or ("published" if row.get("preset") == "published" else "own")).partition(" (")[0]


def numbers_of(folders: Sequence[str], cab: Command, board: Path) -> Numbers:
    """Read what four commands print of these folders."""
    numbers = Numbers()
    for row in cab("score", "--score", "index", "--csv", *folders).rows:
        source = source_of(row)
        numbers.normalization[source] = row["normalization"]
        for quantity in ("index", "low", "high", "seeds"):
            name = quantity, row["pattern"], row["task"], row["attention"]
            numbers.add("score", numbers.scored(row, source), name, row[quantity])
    for row in cab("score", "--score", "metrics", "--csv", *folders).rows:
        place = "/".join(filter(None, (row[name] for name in ("task", "dataset", "config_variant", "backbone"))))
        for quantity, column in zip(("metric", "sd", "seeds"), ("mean", "sd", "seeds"), strict=True):
            name = quantity, row["pattern"], place, row["attention"], row["metric"]
            numbers.add("score", source_of(row), name, row[column])
    for table in ("table3", "table6"):
        for row in cab("paper", table, *folders, "--format", "csv").rows:
            is_index = row.get("metric", "index") == "index"
            place = row["task"] if is_index else f"{row['task']}/{row['dataset']}/{row['backbone']}"
            last = (row["attention"],) if is_index else (row["attention"], row["metric"])
            for source in row.keys() & {"own", "published", "recomputed"}:
                label = numbers.scored(row, source) if is_index else source
                name = "index" if is_index else "metric", row["pattern"], place, *last
                numbers.add(table, label, name, row[source])
    cab("leaderboard", "--out", board, *folders)
    for row in csv.DictReader(io.StringIO((board / "leaderboard.csv").read_text())):
        source = source_of(row)
        for column, cell in row.items():
            place, _, quantity = column.rpartition(".") if "." in column else ("all", "", column)
            if quantity in ("index", "low", "high"):
                name = quantity, row["pattern"], place, row["attention"]
                numbers.add("leaderboard", numbers.scored(row, source), name, cell)
            elif place.count("/") > 1 and "_" not in quantity and quantity != "params":
                folder, _, last = column.rpartition("/")
                backbone, metric, *rest = last.split(".")
                name = rest[0] if rest else "metric", row["pattern"], f"{folder}/{backbone}", row["attention"], metric
                if cell or name[0] != "sd":
                    numbers.add("leaderboard", source, name, cell)
    return numbers


def test_means_and_indices_of_all_tables_agree(cab, tmp_path, monkeypatch):
    """Also those of one folder, whichever other is named with it."""
    monkeypatch.chdir(ROOT)
    numbers = numbers_of(FOLDERS, cab, tmp_path)
    shared = [printed for printed in numbers.values() if len(printed) > 1]
    assert len(shared) > 400
    assert {output for printed in shared for output in printed} == {"score", "table3", "table6", "leaderboard"}
    for folder, source in zip(FOLDERS, ("own", "published"), strict=True):
        alone = numbers_of([folder], cab, tmp_path / source)
        both = [name for name in alone.keys() & numbers.keys() if name[0].startswith(source)]
        assert len(both) > 100
        for name in both:
            numbers[name] |= {f"{output} alone": value for output, value in alone[name].items()}
    assert numbers.conflicts() == {}


def test_gains_of_the_suite_agree():
    """In the stored outputs of one pattern, which tests/golden compares with those of the commands."""
    with (GOLDEN / "leaderboard_core_suite.csv").open() as file:
        suite = {row["attention"]: row for row in csv.DictReader(file) if row["own"] == "no"}
    compared = 0
    with (GOLDEN / "score_core_csv.txt").open() as file:
        for row in csv.DictReader(file):
            for quantity in ("K", "low", "high", "bound", "seeds", "reached_90"):
                column = f"{row['pattern']}.{row['ability'].replace(' ', '_')}.{quantity}"
                if row[quantity] and suite.get(row["attention"], {}).get(column):
                    assert float(row[quantity]) == pytest.approx(float(suite[row["attention"]][column]), abs=2e-6)
                    compared += 1
    assert compared > 100
