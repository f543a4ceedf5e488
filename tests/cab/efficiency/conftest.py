import csv

import pytest

from cab.efficiency import machine, protocols, workload
from tests.helpers.command import Printed


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One call per round, no collection of garbage, and the machine's own rates from small products and copies."""
    monkeypatch.setattr(protocols, "release_memory", lambda _: None)
    monkeypatch.setattr(protocols, "MAX_CALLS", 1)
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)


@pytest.fixture
def efficiency(cab, tmp_path, monkeypatch):
    """Measure small layers with the command: the rows of its file, which is in a new folder, and what it printed."""
    small = ["--batch-size", 2, "--embed-dim", 8, "--num-heads", 2, "--device", "cpu", "--repeats", 2]

    def measured(*arguments: object, verifies: bool = False) -> tuple[list[dict[str, str]], Printed]:
        monkeypatch.setattr(workload, "DECODED", 2)
        out = tmp_path / "made" / "costs.csv"
        printed = cab("efficiency", *small, "--out", out, *arguments, *([] if verifies else ["--no-verify"]))
        return list(csv.DictReader(out.open(newline=""))), printed

    return measured
