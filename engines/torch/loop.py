"""The training loop, for one process and for several."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import logging
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cab.backbone import Backbone
from cab.errors import Preempted, UserError, optional
from cab.files.text_table import counted
from cab.kernels import device_kernels, used
from cab.runner.batches import SeededItems, Shares, StepBatches, mix_seed, on_device, training_batches
from cab.runner.engine import Run, Training
from cab.runner.evaluation import DeviceBatches
from cab.task import Task
from cab.training import after_optimizer_step, auxiliary_loss, on_device_of
from engines.torch.checkpoints import (
    Checkpoints,
    Entry,
    LossMean,
    TrainingState,
    averaged_steps,
    checkpoint_files,
)
from engines.torch.loggers import Loggers
from engines.torch.optimizer import clip_gradients, make_scheduler, whole, whole_state_dict
from engines.torch.parallel import Distributed, SingleProcess
from engines.torch.recurrent_memory import RecurrentMemory
from engines.torch.speed import Speed

log = logging.getLogger(__name__)


class Objective(nn.Module):
    """The task's loss and the auxiliary losses of the network's modules: what is differentiated in each process."""

    def __init__(self, task: Task, model: Backbone, memory: RecurrentMemory | None) -> None:
        super().__init__()
        self.task, self.model, self.memory = task, model, memory

    def forward(self, batch: Any, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the task's loss with the weights of its means, and the auxiliary loss or None."""
        memory, task, model = self.memory, self.task, self.model
        means = task.loss(model, batch) if memory is None else memory.loss(task, model, batch)
        if weights is not None:
            means = means * weights
        return functools.reduce(operator.add, means.flatten().unbind()), auxiliary_loss(model)


class MicroBatch(NamedTuple):
    """A micro-batch of a step.

    Attributes:
        number: its index in the run.
        batch: the examples, on the CPU.
        weights: what the means of its loss are multiplied with; None for 1.
    """

    number: int
    batch: Any
    weights: Tensor | None


def train(run: Run, backbone: Backbone) -> Training:
    """Train the backbone, or resume from the newest checkpoint in the folder of the run."""
    config, task = run.cell.config.trainer, run.cell.task
    order = make_order(len(task.training_set), run)  # type: ignore[arg-type]
    is_single = run.processes.count == 1
    processes = SingleProcess() if is_single else Distributed(run.processes, config.strategy, run.device)
    network = processes.prepare_network(backbone, run.device)
    facts: dict[str, Any] = {}
    if run.device.type != "cpu" and is_single and not config.compile and run.observer is None:
        with optional("the names of GPU kernels"):  # before the optimizer has memory: a peak of training is larger
            facts["device_kernels"] = launched_kernels(run, network, order)
    checkpoints = Checkpoints(run.folder, run.processes, processes)
    state = resume(run, network, order, processes, checkpoints)
    order.start = state.step
    model: Any = torch.compile(network) if config.compile else network
    objective = processes.prepare_objective(
        Objective(task, model, state.memory), lambda: leaves_unused(run, network, order)
    )
    loader = training_batches(task.training_set, order, num_workers=config.num_workers, device=run.device)
    loggers = run.open_files.enter_context(contextlib.closing(Loggers(run, order)))
    speed = Speed(run, order, network)
    with run.signals.waiting_for_step(), frozen_objects(), used() as uses:
        run_steps(run, objective, iter(loader), order, state, processes, checkpoints, loggers, speed)
    facts |= {"kernels": uses.counts, **speed.facts()}
    history = state.history
    best_step = history.best_step if config.checkpoint_selection == "best" else 0
    last_weights = whole_state_dict(network)
    backbone.to(run.device).eval()
    if run.processes.is_first:
        selected = checkpoints.selected_weights(config, steps=state.step, best_step=best_step)
        backbone.load_state_dict(selected or last_weights)
    processes.broadcast_weights(backbone)
    return Training(
        history.entries,
        state.step,
        best_step,
        steps_to_solve=history.steps_to_solve,
        earlier_seconds=history.earlier_seconds,
        log_record=loggers.write_record,
        facts=facts,
    )


def run_steps(
    run: Run,
    objective: nn.Module,
    batches: Iterator[Any],
    order: StepBatches,
    state: TrainingState,
    processes: SingleProcess,
    checkpoints: Checkpoints,
    loggers: Loggers,
    speed: Speed,
) -> None:
    """Run the remaining steps.

    The random numbers of a step depend on (seed, step) alone. Validation, checkpoint and stop follow each other in this
    order, so that a resumed run passes through the same states.
    """
    config, task, device, observer = run.cell.config.trainer, run.cell.task, run.device, run.observer
    network, optimizer, scaler, history = state.network, state.optimizer, state.scaler, state.history
    scheduler = make_scheduler(optimizer, config, steps_per_epoch=order.steps_per_epoch, start=state.step)
    averaged = averaged_steps(config, order.num_steps) if config.checkpoint_selection == "average" else []
    accumulate = order.shares.accumulate
    rate = config.rate(order.steps_per_epoch)
    timed = step_timer(run, order)
    epoch = None
    network.train()
    speed.start(state.step)
    for step in loggers.steps:
        if history.ends_training:
            break
        completed = step + 1
        is_logged = completed % config.log_every == 0 or history.is_due(completed)
        if epoch != step // order.steps_per_epoch:
            epoch = step // order.steps_per_epoch
            task.begin_epoch(network, epoch)
        if state.memory is not None and step % order.steps_per_epoch == 0:
            state.memory.reset()
        losses = []
        with timed("step"):
            with timed("batch"):
                pieces = micro_batches(batches, order, task, network, processes)
            for piece, (number, batch, weights) in enumerate(pieces):
                with timed("batch"):
                    batch = on_device(batch, device)
                torch.manual_seed(mix_seed(order.seed, number))
                with processes.micro_batch(objective, is_last=piece == accumulate - 1):
                    with timed("forward"), run.cell.config.autocast(device):
                        loss, auxiliary = objective(batch, weights)
                    with timed("backward"):
                        total = loss if auxiliary is None else loss + auxiliary
                        scaler.scale(total / accumulate).backward()
                history.add_losses(loss, auxiliary, completed, accumulate)
                state.interval.add(loss, completed, accumulate)
                losses.append(loss.detach())
            with timed("optimizer"):
                scaler.unscale_(optimizer)
                if observer is not None:
                    observer.on_gradients(completed, torch.stack(losses).mean())
                if config.max_grad_norm or is_logged:
                    norm = clip_gradients(optimizer, config.max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                after_optimizer_step(network)
                optimizer.zero_grad()

        state.step = completed
        history.check_losses(completed)
        if is_logged:
            numbers: Entry = {
                "loss": processes.mean(state.interval.mean()),  # waits for the device
                "learning_rate": config.learning_rate * rate(step),
                "gradient_norm": float(whole(norm)),
                **speed.row(completed),
            }
        if history.is_due(completed):
            score = validate(run, network, completed) if config.validate_every is not None else None
            entry = history.add(completed, score)
            if config.checkpoint_selection == "best" and history.best_step == completed:
                checkpoints.save_weights(whole_state_dict(network), checkpoints.weights("best", completed))
            numbers = {**entry, **numbers}
        if is_logged:
            loggers.write(completed, numbers)
            state.interval = LossMean()
        if completed in averaged:
            checkpoints.save_weights(whole_state_dict(network), checkpoints.weights("average", completed))
        stop = stop_signal(run, processes, completed)
        is_last = completed == order.num_steps or history.ends_training
        if completed % config.checkpoint_every == 0 or is_last or stop:
            checkpoints.save(state.state_dict(), step=completed, best_step=history.best_step)
        if is_logged:
            speed.start(completed)
        if stop:
            raise Preempted(stop)
        if observer is not None and completed == observer.num_steps:
            break


@contextlib.contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude all objects from garbage collection that exist before the block, so that no step waits for them."""
    gc.collect()  # else garbage is kept, too
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def of_copy(run: Run, network: Backbone, order: StepBatches) -> tuple[Backbone, Callable[[], None]] | None:
    """Return a copy of the network and a function that computes its gradients of the next micro-batch, if any."""
    draw, task, device = next(iter(order), None), run.cell.task, run.device
    if draw is None:
        return None
    network = copy.deepcopy(network).train()
    _, batch = SeededItems(task.training_set, order.seed).__getitems__(draw)

    def compute_gradients() -> None:
        with run.cell.config.autocast(device):
            losses = Objective(task, network, None)(on_device(batch, device), None)
        sum(loss for loss in losses if loss is not None).backward()

    return network, compute_gradients


def leaves_unused(run: Run, network: Backbone, order: StepBatches) -> bool:
    """Return whether the next step gives no gradient to a parameter; a copy of the network computes one micro-batch."""
    trial = of_copy(run, network, order)
    if trial is None:
        return False
    network, compute_gradients = trial
    compute_gradients()
    return any(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


def launched_kernels(run: Run, network: Backbone, order: StepBatches) -> list[str]:
    """Return the names of the GPU kernels of a first micro-batch of a copy of the network, forward and backward."""
    trial = of_copy(run, network, order)
    return [] if trial is None else device_kernels(trial[1])


def micro_batches(
    batches: Iterator[Any], order: StepBatches, task: Task, network: Backbone, processes: SingleProcess
) -> list[MicroBatch]:
    """Return the micro-batches of the next step in this process.

    Their weights are such that the mean of the losses of all micro-batches, over all processes, is the loss of the
    whole batch: a mean over more values counts more.
    """
    pieces = list(itertools.islice(batches, order.shares.accumulate))
    counts = []
    for number, batch in pieces if order.shares.pieces > 1 else ():
        torch.manual_seed(mix_seed(order.seed, number))
        if (count := task.loss_counts(network, batch)) is not None:
            counts.append(count.double())
    if not counts:
        return [MicroBatch(number, batch, None) for number, batch in pieces]
    own = on_device_of(next(network.parameters()), torch.stack(counts))
    weights = (own * order.shares.pieces / processes.sum(own.sum(dim=0)).clamp(min=1)).float()
    return [MicroBatch(number, batch, weight) for (number, batch), weight in zip(pieces, weights, strict=True)]


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
    in_rows = run.cell.task.recurrent
    if in_rows and num_items < config.batch_size:
        raise UserError(
            f"recurrent training needs one block per sequence of a batch: the training set has "
            f"{counted(num_items, 'block')}, trainer.batch_size is {config.batch_size}; lower trainer.batch_size"
        )
    order = StepBatches(num_items=num_items, shares=shares, num_steps=0, seed=run.cell.config.seed, in_rows=in_rows)
    order.num_steps = config.num_steps(order.steps_per_epoch)
    if run.observer is not None and run.observer.num_steps > order.num_steps:
        raise UserError(
            f"cannot observe {counted(run.observer.num_steps, 'step')}: training of this cell has {order.num_steps}; "
            "observe fewer steps or raise trainer.max_steps"
        )
    return order


def resume(
    run: Run, network: Backbone, order: StepBatches, processes: SingleProcess, checkpoints: Checkpoints
) -> TrainingState:
    """Return the state of the newest usable checkpoint, or of step 0.

    A checkpoint that does not fit may have been loaded in part, so the initial weights are kept for step 0.
    """
    initial = copy.deepcopy(network.state_dict()) if checkpoint_files(run.folder) else {}
    state = TrainingState(run, network, order, processes)
    if checkpoints.restore_newest(state.load_state_dict):
        log.info("resuming from step %d", state.step, extra={"run": run.cell.title})
    elif initial:
        network.load_state_dict(initial)
        state = TrainingState(run, network, order, processes)
    return state


def step_timer(run: Run, order: StepBatches) -> Callable[[str], AbstractContextManager[Any]]:
    """Return a context manager that measures a part of a step with ``profile=true``, and does nothing without."""
    if not run.cell.config.profile:
        return contextlib.nullcontext
    from engines.torch.profiling import StepProfile

    return StepProfile(run, order).timed


def validate(run: Run, network: Backbone, step: int) -> float:
    """Return the task's validation score after ``step``.

    The processes share the batches, unless each has a part of the weights only.
    """
    task, config = run.cell.task, run.cell.config
    processes = run.processes if config.trainer.strategy == "ddp" else None
    batches = DeviceBatches(run.device, processes=processes, seed=mix_seed(config.seed, step), limit=task.limit)
    network.eval()
    with torch.no_grad(), config.autocast(run.device):
        score = task.validate(network, batches)
    network.train()
    return score


def stop_signal(run: Run, processes: SingleProcess, step: int) -> int:
    """Return the signal that requests a stop, or 0. Several processes exchange it every tenth step."""
    received = run.signals.received or 0
    if run.processes.count == 1:
        return received
    return int(processes.max(received)) if step % 10 == 0 else 0
