"""The default engine, ``engine=torch``: CAB's training loop, in one process or several."""

from __future__ import annotations

from cab.errors import UserError
from cab.runner.cell import Cell
from cab.runner.processes import Processes
from engines.torch.loggers import check_logger
from engines.torch.loop import train

__all__ = ["check", "train"]


def check(cell: Cell, processes: Processes) -> None:
    """Raise UserError for a logger that is not installed, or a recurrent task with several processes."""
    check_logger(cell.config.logger.name)
    if cell.task.recurrent and processes.count > 1:
        raise UserError(f"task={cell.config.task.name} runs in one process only: start it without torchrun or srun")
