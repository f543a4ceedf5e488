"""``profile=true`` and ``trainer.float32_matmul_precision``: what they leave, and what they do not change."""

from __future__ import annotations

import csv

import pytest
import torch

from cab.records.record import Record
from engines.torch.profiling import STEP_PARTS
from tests.helpers.runs.troubled import Troubled, trained


def test_a_profile_adds_up_and_changes_no_score(troubled, tmp_path, uncut):
    record = trained(troubled("profile=true"))
    assert (record.hash, record.metrics, record.history) == (uncut.hash, uncut.metrics, uncut.history)
    assert (tmp_path / record.hash / "trace.json").exists()
    with (tmp_path / record.hash / "profile.csv").open(newline="") as file:
        parts = {row["name"]: float(row["seconds"]) for row in csv.DictReader(file) if row["kind"] == "part"}
    assert list(parts) == [*STEP_PARTS, "other", "step"]
    assert sum(parts.values()) == pytest.approx(2 * parts["step"], rel=1e-3)
    assert min(parts["forward"], parts["backward"], parts["optimizer"]) > 0


def test_products_are_as_exact_as_the_cell_says(troubled, tmp_path, monkeypatch):
    seen = []
    loss = Troubled.loss
    note = lambda self, *given: seen.append(torch.get_float32_matmul_precision()) or loss(self, *given)  # noqa: E731
    monkeypatch.setattr(Troubled, "loss", note)
    record = trained(troubled("trainer.float32_matmul_precision=high"))
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"
    assert Record.read(tmp_path / f"{record.hash}.json").config["trainer"]["float32_matmul_precision"] == "high"
