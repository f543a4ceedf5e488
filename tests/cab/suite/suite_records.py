"""Records of the suite's LSTF cell of pattern CS."""

from __future__ import annotations

from cab.records.record import Record
from cab.records.results import MINI_DIR
from cab.suite.results import read_suite
from tests.cab.made_records import make_record

_DATA = next(
    r for each in read_suite(MINI_DIR) for runs in each.runs.values() for r in runs.values() if r.cell["task"] == "lstf"
).data


def lstf_record(attention: str, mse: float, seed: int, **changes: object) -> Record:
    """The mean squared error rises by 0.001 per seed."""
    mse += 0.001 * seed
    names = {"dataset": "synthetic", "pattern": "CS", "attention": attention, "seed": seed, "data": _DATA, **changes}
    return make_record({"mse": mse, "mae": mse / 2}, baselines={"ridge": {"mse": 0.92}}, **names)
