"""The default engine, ``engine=torch``: CAB's training loop, in one process or several."""

from __future__ import annotations

from cab.backbone import Backbone
from cab.errors import UserError
from cab.runner.batches import Shares, StepBatches, training_batches
from cab.runner.cell import Cell
from cab.runner.engine import Run, Training
from cab.runner.processes import Processes
from engines.torch.checkpoints import averaged_steps
from engines.torch.loggers import check_logger, open_loggers
from engines.torch.loop import Loop
from engines.torch.parallel import Distributed, SingleProcess


def check(cell: Cell, processes: Processes) -> None:
    """Check the logger and the number of processes.

    Raises:
        UserError: the logger is unknown or not installed, or ``trainer.memory_length`` is set with several processes.
    """
    check_logger(cell.config.logger.name)
    if cell.config.trainer.memory_length and processes.count > 1:
        raise UserError("trainer.memory_length runs in one process only: start it without torchrun or srun")


def train(run: Run, backbone: Backbone) -> Training:
    """Train the backbone, or resume from the newest checkpoint in the folder of the run.

    Raises:
        DivergedError: the loss is NaN or infinite.
        Preempted: a signal requested a stop; the checkpoint is on disk.
    """
    config = run.cell.config.trainer
    dataset = run.cell.task.training_set
    order = make_order(len(dataset), run)  # type: ignore[arg-type]
    if run.observer is not None and run.observer.num_steps > order.num_steps:
        raise UserError(
            f"cannot observe {run.observer.num_steps} steps: training of this cell has {order.num_steps}; "
            "observe fewer steps or raise trainer.max_steps"
        )
    if config.checkpoint_selection == "average":
        averaged_steps(config, order.num_steps)
    is_alone = run.processes.count == 1
    processes = SingleProcess() if is_alone else Distributed(run.processes, config.strategy, run.device)
    loop = Loop(run, processes.prepare_network(backbone).to(run.device), order, processes)
    batches = training_batches(dataset, order, num_workers=config.num_workers, device=run.device)
    loggers = run.open_files.enter_context(open_loggers(run))
    with run.signals.waiting_for_step():
        steps = loop.train(batches, loggers)
    best_step = loop.history.best_step if config.checkpoint_selection == "best" else 0
    weights = processes.state_dict(loop.network)
    processes.close()
    backbone.to(run.device).eval()
    if run.processes.is_first:
        backbone.load_state_dict(loop.checkpoints.selected_weights(config, steps=steps, best_step=best_step) or weights)
    history = loop.history
    return Training(
        history.entries,
        steps,
        best_step,
        steps_to_solve=history.steps_to_solve,
        earlier_seconds=history.earlier_seconds,
        log_scores=loggers.write_scores,
    )


def make_order(num_items: int, run: Run) -> StepBatches:
    """Return the batches of the whole run, divided among its processes."""
    config = run.cell.config.trainer
    shares = Shares.cut(
        num_items=num_items,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        rank=run.processes.rank,
        num_processes=run.processes.count,
    )
    in_rows = config.memory_length > 0
    if in_rows and num_items < config.batch_size:
        raise UserError(
            f"trainer.memory_length needs one block per sequence of a batch: the training set has {num_items} blocks, "
            f"trainer.batch_size is {config.batch_size}; lower trainer.batch_size"
        )
    order = StepBatches(num_items=num_items, shares=shares, num_steps=0, seed=run.cell.config.seed, in_rows=in_rows)
    order.num_steps = config.num_steps(order.steps_per_epoch)
    return order
