"""Where a run writes its numbers while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

from cab.runner.cell import Cell


def make_loggers(cell: Cell, folder: Path) -> list[Any]:
    """A metrics.csv under log/ in the folder of the run for each attempt, and wandb where the configuration says."""
    loggers: list[Any] = [CSVLogger(folder, name="log")]
    if cell.config["logger"]["name"] == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        project = cell.config["logger"]["project"]
        loggers.append(WandbLogger(name=cell.title, project=project, id=cell.hash, save_dir=folder, offline=True))
    return loggers
