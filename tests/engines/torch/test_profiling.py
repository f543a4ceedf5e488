"""``profile=true``: what it leaves, and what it does not change."""

from __future__ import annotations

import csv

import pytest

from engines.torch.profiling import STEP_PARTS
from tests.helpers.runs.troubled import trained


def test_a_profile_adds_up_and_changes_no_score(troubled, tmp_path, uncut):
    record = trained(troubled("profile=true"))
    assert (record.hash, record.metrics, record.history) == (uncut.hash, uncut.metrics, uncut.history)
    assert (tmp_path / record.hash / "trace.json").exists()
    with (tmp_path / record.hash / "profile.csv").open(newline="") as file:
        parts = {row["name"]: float(row["seconds"]) for row in csv.DictReader(file) if row["kind"] == "part"}
    assert list(parts) == [*STEP_PARTS, "other", "step"]
    assert sum(parts.values()) == pytest.approx(2 * parts["step"], rel=1e-3)
    assert min(parts["forward"], parts["backward"], parts["optimizer"]) > 0
