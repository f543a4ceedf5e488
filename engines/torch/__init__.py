"""``engine=torch``, the default: our own training loop, on one process or several."""

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
from engines.torch.parallel import ManyProcesses, OneProcess


def check(cell: Cell, processes: Processes) -> None:
    """UserError for a logger that is not there, and for memories that several processes would have to put together."""
    check_logger(cell.config["logger"]["name"])
    if cell.trainer.memory_length and processes.count > 1:
        raise UserError("trainer.memory_length remembers in one process: start it without torchrun or srun")


def train(run: Run, backbone: Backbone) -> Training:
    """Train, or go on from the newest checkpoint in the folder of the run.

    Raises:
        Diverged: the loss is no number.
        Preempted: a signal asked to stop; the checkpoint is on disk.
    """
    config = run.cell.trainer
    dataset = run.cell.task.training_set
    order = make_order(len(dataset), run)  # type: ignore[arg-type]
    if config.checkpoint_selection == "average":
        averaged_steps(config, order.num_steps)
    is_alone = run.processes.count == 1
    processes = OneProcess() if is_alone else ManyProcesses(run.processes, config.strategy, run.device)
    loop = Loop(run, processes.network_to_train(backbone).to(run.device), order, processes)
    batches = training_batches(dataset, order, num_workers=config.num_workers, device=run.device)
    with open_loggers(run) as loggers, run.signals.waiting_for_step():
        steps = loop.train(batches, loggers)
    best_step = loop.history.best_step if config.checkpoint_selection == "best" else 0
    weights = processes.weights(loop.network)
    processes.end()
    backbone.to(run.device).eval()
    if run.processes.is_first:
        backbone.load_state_dict(loop.checkpoints.kept_weights(config, steps=steps, best_step=best_step) or weights)
    return Training(loop.history.entries, steps, best_step, loop.history.earlier_seconds)


def make_order(num_items: int, run: Run) -> StepBatches:
    """The batches of the whole run, cut for these processes."""
    config = run.cell.trainer
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
            f"trainer.memory_length: the {num_items} blocks of the training part are fewer than the rows of "
            f"trainer.batch_size={config.batch_size}; lower it"
        )
    order = StepBatches(num_items=num_items, shares=shares, num_steps=0, seed=run.cell.config["seed"], in_rows=in_rows)
    order.num_steps = config.num_steps(order.steps_per_epoch)
    return order
