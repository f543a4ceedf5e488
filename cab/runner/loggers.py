"""Where a run writes its numbers while it trains."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.runner.cell import Cell

LOGGERS = ("csv", "tensorboard", "wandb")


def check_logger(name: str) -> None:
    """UserError for a logger that is not there."""
    if name not in LOGGERS:
        raise UserError(f"unknown logger '{name}': choose {', '.join(LOGGERS)}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} needs the extra: pip install 'cab-benchmark[{name}]'")


@contextlib.contextmanager
def open_loggers(cell: Cell, folder: Path) -> Iterator[list[Any]]:
    """The loggers of a run, closed at its end: the next cell of a sweep must not write into this one's."""
    loggers = make_loggers(cell, folder)
    try:
        yield loggers
    finally:
        for logger in loggers:
            logger.finalize("success")
        if cell.config["logger"]["name"] == "wandb":
            import wandb

            wandb.finish()


def make_loggers(cell: Cell, folder: Path) -> list[Any]:
    """A metrics.csv under log/ in the folder of the run for each attempt, and what the configuration asks for."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

    options = cell.config["logger"]
    loggers: list[Any] = [CSVLogger(folder, name="log")]
    if options["name"] == "tensorboard":
        loggers.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    if options["name"] == "wandb":
        offline = os.environ.get("WANDB_MODE", "offline") != "online"
        loggers.append(
            WandbLogger(
                name=cell.title,
                project=options["project"],
                group=options["group"],
                id=cell.hash,
                save_dir=folder,
                offline=offline,
            )
        )
    return loggers
