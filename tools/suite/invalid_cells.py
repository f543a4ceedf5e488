"""Write the cells of the suite that do not measure attention according to the reference results.

``python -m tools.suite.invalid_cells`` writes configs/suite/invalid.csv; `cab score --check` prints the reasons.
"""

from __future__ import annotations

import csv

from cab import load_results
from cab.records.files import REFERENCE_DIRS
from cab.results.retained import suite_runs
from cab.results.validity import INVALID_FILE, checks_frame, invalid


def invalid_rows() -> list[list[str]]:
    """Return the header, and one row per cell with the reason."""
    found = invalid(checks_frame(suite_runs(load_results(REFERENCE_DIRS))))
    return [["task", "backbone", "pattern", "reason"], *([*cell.split(), reason] for cell, reason in found.items())]


if __name__ == "__main__":
    with INVALID_FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(invalid_rows())
