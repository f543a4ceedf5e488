"""What the steps on a GPU measure, as far as a CPU can show it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cab.errors import Preempted
from cab.registry.build import without_memory
from cab.runner.engine import make_backbone
from tools.gpu import measurements


def test_lm_has_the_size_of_the_paper() -> None:
    """122,319,360 parameters (Table 14), blocks of 8,192 tokens, at least four."""
    cell = measurements.lm_cell("vanilla", (), "cpu")
    with without_memory():
        network = make_backbone(cell, has_memory=False)
    assert sum(weights.numel() for weights in network.parameters()) == 122_319_360
    assert cell.task.training_set[0].shape == (8193,)
    assert len(cell.task.training_set) >= 4  # type: ignore[arg-type]


def test_a_run_of_table_3_that_is_stopped_is_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is that of preset paper, seed and data set are those of the item."""
    configs: list[Mapping[str, Any]] = []

    def stop(config: Mapping[str, Any], *, command: str) -> None:
        assert "attention=abc seed=3" in command
        configs.append(config)
        raise Preempted(signal.SIGTERM)

    monkeypatch.setattr(measurements, "run_cell", stop)
    for device in ("cuda", "cpu"):
        with pytest.raises(KeyboardInterrupt):
            measurements.table3("3 abc ettm1 S", device, tmp_path)
    on_gpu, on_cpu = (config["trainer"] for config in configs)
    assert (on_gpu["max_epochs"], on_gpu["batch_size"], on_gpu["patience"]) == (6, 32, 3)
    assert (on_cpu["max_epochs"], on_cpu["max_steps"]) == (None, 2)
    assert configs[0]["results_dir"] == str(tmp_path / "records")
