"""Where a run writes its numbers while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

from cab.errors import UserError
from cab.runner.cell import Cell


def make_loggers(cell: Cell, folder: Path) -> list[Any]:
    """A metrics.csv under log/ in the folder of the run for each attempt, and wandb where the configuration says."""
    name = cell.config["logger"]["name"]
    loggers: list[Any] = [CSVLogger(folder, name="log")]
    if name == "wandb":
        try:
            from lightning.pytorch.loggers import WandbLogger
        except ImportError:
            raise UserError("logger=wandb needs the extra: pip install 'cab-benchmark[wandb]'") from None
        loggers.append(
            WandbLogger(
                name=cell.title, project=cell.config["logger"]["project"], id=cell.hash, save_dir=folder, offline=True
            )
        )
    elif name != "csv":
        raise UserError(f"unknown logger '{name}': choose csv or wandb")
    return loggers
