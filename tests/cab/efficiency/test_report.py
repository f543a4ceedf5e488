"""Printed costs are the numbers of the CSV file, in the unit of the title of their table."""

import re

import pytest

from cab.efficiency.cost import Cost
from cab.efficiency.report import tables

MEASURED = {
    "seconds": 0.25,
    "bytes": 3 * 2**20,
    "relative_to_softmax": 0.5,
    "pairs_kept": 0.125,
    "host_seconds": 0.006,
    "busy": 0.75,
    "power": 350.0,
    "joules_per_token": 0.004,
    "roof": "memory",
    "roof_share": 0.4,
    "speedup_vs_padded": 1.5,
    "bytes_vs_padded": 0.7,
    "change": "faster",
    "seconds_vs_former": 0.9,
    "bytes_vs_former": 0.8,
    "best_third_party": "abc@theirs",
    "seconds_without_projections": 0.125,
}
TIMES, CHOICE, GPU = ["ms", "250 (0.50)"], ["%", "12.5"], ["ms", "6 / 75 / 350 / 4"]
CHANGE, ROOF, PACKED = ["changes", "0.90 / 0.80"], ["%", "40 m"], ["speedup", "1.50 / 0.70"]


@pytest.mark.parametrize(
    ("phase", "protocol", "expected"),
    [
        ("forward", "cab", [TIMES, ["MiB", "3.0"], CHOICE, GPU, CHANGE, ROOF, PACKED, ["ms", "125 50 / 3 6"]]),
        ("decode", "cab", [TIMES, ["KiB", "3072.0"], CHOICE, GPU, CHANGE, ROOF, PACKED, ["ms", "125 50 / 3 6"]]),
        ("forward+backward", "lra", [["steps", "4 (2.00)"], ["MiB", "3 (0.25)"]]),
    ],
)
def test_cells_are_numbers_in_their_unit(phase, protocol, expected):
    ours = Cost("abc", "CS", phase, 64, protocol=protocol, **MEASURED)
    theirs = Cost("abc@theirs", "CS", phase, 64, bytes=6 * 2**20, seconds_without_projections=0.05)
    softmax = Cost("vanilla", "CS", phase, 64, bytes=12 * 2**20)
    found = []
    for table in tables([ours, theirs, softmax]).split("\n\n"):
        title, *_ = table.partition(f"CS {phase}: ")[2].split()
        [cell] = re.findall(r"^abc(?: \(theirs\))? +(.+)$", table, flags=re.MULTILINE)
        found.append([title, cell])
    assert found == expected
