"""The loop: epochs announced, averaged weights, losses, precision, an end when the cell is solved, memories of rows."""

import copy
import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attentions.softmax import VanillaAttention
from cab import UserError, register_attention
from cab.config.compose import compose
from cab.records.files import weights_path
from cab.records.record import Record, Status
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone, open_run
from cab.runner.processes import Processes
from cab.runner.run import run_cell
from cab.training import ParamGroupOverride
from engines.torch import check, checkpoints
from engines.torch.checkpoints import LossMean, average_weights
from engines.torch.loop import leaves_unused, make_order
from engines.torch.parallel import SingleProcess
from engines.torch.recurrent_memory import RecurrentMemory
from tasks.lm.recurrent import RecurrentLMTask
from tasks.probe.task import Probe
from tests.helpers.runs.fixtures import troubled_config
from tests.helpers.runs.troubled import Troubled, trained
from tests.helpers.tasks.layouts import write_books

EVERY = ("trainer.validate_every=2", "trainer.checkpoint_every=1", "trainer.schedule=linear")
RECURRENT = ["task=lm_recurrent", "dataset=pg19", "backbone=gpt2", "pattern=CS", "preset=smoke", "device=cpu"]
RECURRENT += ["attention=transformer_xl", "attention.segment=32", "attention.memory=64", "backbone.positions=none"]
RECURRENT += ["backbone.dropout=0.2", "task.block_len=32", "task.context_lengths=[64]", "task.memory_length=32"]
RECURRENT += ["trainer.validate_every=null", "trainer.checkpoint_selection=last"]


def test_worker_processes_change_no_number(troubled, uncut):
    record = trained(troubled("trainer.num_workers=2"))
    assert (record.hash, record.metrics, record.history) == (uncut.hash, uncut.metrics, uncut.history)


def test_epochs_are_announced_again_after_a_resume(troubled, monkeypatch):
    epochs: list[list[int]] = []
    monkeypatch.setattr(Troubled, "setup", lambda self, _: epochs.append(self.epochs))
    run_cell(troubled("trainer.checkpoint_every=2", trouble="crash"), command="")
    run_cell(troubled("trainer.checkpoint_every=2", "retry=[failed]"))
    assert epochs == [[0], [0, 1, 2]]  # three batches an epoch, eight steps; the second run resumes from step 2


def test_a_run_resumes_with_micro_batches_of_another_size(troubled, tmp_path, monkeypatch):
    """Batches of four, at once until the memory is used up, then one by one: the same steps, but for rounding."""
    cell = ["task=probe", "dataset=recall", "backbone=mixer", "attention=vanilla"]
    cell += ["task.examples=40", "task.test_examples=20"]
    options = [*cell, "trainer.validate_every=8", "trainer.checkpoint_every=4"]
    uncut = trained(troubled(*options, f"results_dir={tmp_path / 'uncut'}"))
    loss, sizes = Probe.loss, []

    def counting(self, backbone, batch):
        if torch.is_grad_enabled():
            sizes.append(len(batch.answers))
        if len(sizes) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, backbone, batch)

    monkeypatch.setattr(Probe, "loss", counting)
    cut = trained(troubled(*options))
    retried = trained(troubled(*options, "retry=[oom]", "trainer.micro_batch_size=1"))
    assert (cut.status, retried.status, retried.hash) == ("oom", "finished", uncut.hash)
    assert sizes == [4] * 5 + [1] * 16
    [one], [two] = uncut.history, retried.history
    assert two == pytest.approx(one, abs=1e-4)
    assert retried.metrics[0].value == pytest.approx(uncut.metrics[0].value, rel=1e-4)


class Learning(VanillaAttention):
    """Asks everything of a training loop: a loss of its own, a buffer that learns, a rate of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {"gate": ParamGroupOverride(learning_rate=0.5, weight_decay=0.0)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **extras: Any) -> Tensor:
        self.add_loss(self.gate.sum() * 0.25)
        self.accumulate_statistics(seen=torch.ones(()))
        return super().attend(query, key, value, *rest, **extras)

    def update_buffers(self, *, seen: Tensor) -> None:
        self.seen += seen  # type: ignore[operator]


@pytest.mark.usefixtures("registers")
def test_what_an_attention_asks_of_training_is_done_once_a_step(troubled, tmp_path):
    """Its loss is added in every micro-batch, its buffer learns from all of them, its parameter has its own rate."""
    register_attention("learning", patterns="CS", complexity="n^2", paper="none")(Learning)
    options = ["trainer.micro_batch_size=2", "trainer.validate_every=4", "trainer.checkpoint_selection=last"]
    record = trained(troubled("attention=learning", *options))
    gates = [1.0 - 0.5 * step for step in range(8)]  # the loss has a constant slope, so Adam steps by its rate
    expected = [0.25 * sum(part) / 4 for part in (gates[:4], gates[4:])]
    assert [entry["auxiliary_loss"] for entry in record.history] == pytest.approx(expected, abs=1e-5)
    weights = torch.load(weights_path(tmp_path, record.hash), weights_only=True)
    [gate] = [value for name, value in weights.items() if name.endswith("gate")]
    [seen] = [value for name, value in weights.items() if name.endswith("seen")]
    assert (gate.item(), seen.item()) == (pytest.approx(-3.0, abs=1e-5), 16)


@pytest.mark.parametrize(("keep", "validate_every"), [("best", 3), ("last", 3), ("average", "null")])
def test_the_weights_that_were_scored_stay(keep, validate_every, troubled, tmp_path, monkeypatch):
    """The average is that of the last multiples."""
    loss, sums = Troubled.loss, []

    def noting(self, backbone, batch):
        sums.extend([next(backbone.parameters()).double().sum().item()] * torch.is_grad_enabled())
        return loss(self, backbone, batch)

    monkeypatch.setattr(Troubled, "loss", noting)
    options = ["trainer.max_steps=7", "trainer.average_every=2", "trainer.average_count=2"]
    options += [f"trainer.checkpoint_selection={keep}", f"trainer.validate_every={validate_every}"]
    record = trained(troubled(*options))
    path = weights_path(tmp_path, record.hash)
    assert [file.name for pattern in ("*.pt", "*.ckpt") for file in path.parent.glob(pattern)] == [path.name]
    first = next(iter(torch.load(path, weights_only=True).values()))
    assert first.double().sum().item() == record.metrics[1].value
    validated = {entry["step"]: entry["validation"] for entry in record.history}
    assert record.cost.best_step == (min(validated, key=lambda step: validated[step]) if keep == "best" else 0)
    if keep == "average":  # of steps 4 and 6, after which the next step sees the weights
        assert set(validated.values()) == {None}
        assert record.metrics[1].value == pytest.approx((sums[4] + sums[6]) / 2, abs=1e-6)


def test_average_of_whole_numbers_is_the_last(tmp_path):
    for i in (1, 2):
        torch.save({"w": torch.tensor([float(i)]), "n": torch.tensor(i)}, tmp_path / f"{i}.pt")
    mean = average_weights([tmp_path / "1.pt", tmp_path / "2.pt"])
    assert (mean["w"].item(), mean["n"].item()) == (1.5, 2)


@pytest.mark.parametrize(("losses", "bad_step"), [((1.0, math.nan), 2), ((math.inf, math.nan), 1), ((1.0, 2.0), 0)])
def test_a_resumed_mean_knows_the_first_loss_that_was_not_finite(losses, bad_step):
    """A run can be stopped between two checks of the losses."""
    mean = LossMean()
    for step, loss in enumerate(losses, start=1):
        mean.add(torch.tensor(loss), step, 1)
    for state in (mean, LossMean(*mean.state(SingleProcess()))):
        state.add(torch.tensor(3.0), 3, 1)
        assert state.bad_step() == bad_step
        assert math.isfinite(state.mean()) == (bad_step == 0)


@pytest.mark.parametrize(
    ("precision", "products", "dtype"), [("32-true", "high", torch.float32), ("bf16-mixed", "highest", torch.bfloat16)]
)
def test_a_network_is_scored_in_the_precision_it_is_trained_in(precision, products, dtype, troubled, monkeypatch):
    seen: dict[str, set[Any]] = defaultdict(set)
    methods = ("loss", "validate", "evaluate", "save_plots")

    def note(name):
        used = getattr(Troubled, name)

        def noting(self, backbone, *rest):
            seen[name].add((backbone(torch.tensor([[1, 2, 3]])).dtype, torch.get_float32_matmul_precision()))
            return used(self, backbone, *rest)

        monkeypatch.setattr(Troubled, name, noting)

    for name in methods:
        note(name)
    config = troubled(f"trainer.precision={precision}", f"trainer.float32_matmul_precision={products}")
    assert run_cell(config).record.status == "finished"
    assert seen == {name: {(dtype, products)} for name in methods}
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("has_more", [False, True])
def test_unused_parameters_are_found_without_changing_the_network(has_more, troubled):
    run = open_run(Cell.from_config(troubled()), "")
    network = make_initial_backbone(run.cell)
    if has_more:
        network.more = nn.Linear(2, 2)
    before = copy.deepcopy(network.state_dict())
    order = make_order(len(run.cell.task.training_set), run)
    assert leaves_unused(run, network, order) == has_more
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    order.start = order.num_steps
    assert not leaves_unused(run, network, order), "no step is left"


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A run that nothing stops: eight steps, four falling validation losses."""
    record = trained(troubled_config(*EVERY, "trainer.stop_at=0", f"results_dir={tmp_path_factory.mktemp('free')}"))
    losses = [entry["validation"] for entry in record.history]
    assert (record.cost.steps, record.cost.steps_to_solve, len(losses)) == (8, None, 4)
    assert losses == sorted(losses, reverse=True)
    return record


def test_training_stops_at_the_first_score_that_solves_with_the_rates_of_the_whole(free, troubled, tmp_path):
    """A resumed run stops at the same step."""
    cell = [*EVERY, f"trainer.stop_at={free.history[1]['validation']!r}"]
    solved = trained(troubled(*cell))
    assert solved.cost.steps == solved.cost.steps_to_solve == solved.cost.best_step == 4
    assert list(solved.history) == list(free.history[:2])
    assert Record.read(tmp_path / f"{solved.hash}.json").cost == solved.cost
    for at in (2, 5):
        assert trained(troubled(*cell, f"task.at={at}", trouble="crash")).status is Status.FAILED
        resumed = trained(troubled(*cell, f"task.at={at}", "retry=[failed]"))
        assert (resumed.metrics, resumed.history) == (solved.metrics, solved.history)
        assert (resumed.cost.steps, resumed.cost.steps_to_solve) == (4, 4)


def test_a_solved_run_that_is_resumed_makes_no_step(free, troubled, monkeypatch):
    made: list[int] = []

    def evaluate(self, backbone, batches):  # noqa: ARG001
        made.append(self.calls)
        if len(made) == 1:
            raise RuntimeError("cut before the record is written")
        return {"score": 1.0, "total": float(next(backbone.parameters()).double().sum())}

    monkeypatch.setattr(Troubled, "evaluate", evaluate)
    cell = [*EVERY, f"trainer.stop_at={free.history[1]['validation']!r}"]
    trained(troubled(*cell))
    resumed = trained(troubled(*cell, "retry=[failed]"))
    assert made == [6, 0]  # four steps and two validations, then none
    assert (resumed.cost.steps, resumed.cost.steps_to_solve) == (4, 4)


def test_recurrence_names_its_variant_and_is_refused_for_several_processes():
    cell = Cell.from_config(compose(RECURRENT))
    assert cell.key["config_variant"] == "memory 32"
    with pytest.raises(UserError, match="without torchrun or srun"):
        check(cell, Processes(count=2))


def test_more_rows_than_blocks_are_refused():
    cell = Cell.from_config(compose(RECURRENT))
    run = SimpleNamespace(cell=cell, processes=Processes(), observer=None)
    assert make_order(9, run).in_rows
    with pytest.raises(UserError, match=r"the training set has 3 blocks, trainer\.batch_size is 4"):
        make_order(3, run)


def test_memories_are_those_of_the_rows_however_they_are_cut():
    rows = torch.arange(12.0).view(4, 3)
    two, four, seen = RecurrentMemory(2), RecurrentMemory(4), []

    def recurrent_loss(_, batch, memory):
        seen.append(memory)
        return torch.zeros(()), {"x": batch}

    task: Any = SimpleNamespace(recurrent_loss=recurrent_loss)
    assert two.state_dict() is None
    for batch in rows.split(2):
        two.loss(task, None, batch)
    state = two.state_dict()
    assert torch.equal(state["x"], rows)
    four.load_state_dict(state, torch.device("cpu"))
    for batch in rows.split(1):
        four.loss(task, None, batch + 1)
    assert seen[:2] == [None, None]
    assert [memory["x"].tolist() for memory in seen[2:]] == [[row] for row in rows.tolist()]
    state = four.state_dict()
    assert torch.equal(state["x"], rows + 1)
    four.reset()
    assert four.state_dict() is None


@pytest.mark.slow
def test_a_run_that_is_cut_resumes_with_what_it_remembered(tmp_path, monkeypatch):
    books = f"data_root={write_books(tmp_path / 'data')}"
    options = [*RECURRENT, "trainer.micro_batch_size=2", "trainer.checkpoint_every=2", "trainer.max_steps=6", books]

    def run(folder, *more):
        return trained(compose([*options, f"results_dir={tmp_path / folder}", *more]))

    expected = run("uncut")
    loss, calls = RecurrentLMTask.recurrent_loss, iter(range(100))

    def cut(self, *arguments):
        if next(calls) == 10:  # of two micro-batches per step: in the sixth
            raise RuntimeError("cut")
        return loss(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RecurrentLMTask, "recurrent_loss", cut)
        failed = run("cut")
    found: list[Any] = []
    files = checkpoints.Checkpoints(tmp_path / "cut" / failed.hash, Processes(), SingleProcess())
    assert files.restore_newest(found.append)
    assert (found[0]["step"], found[0]["memories"]["count"].tolist()) == (4, [32] * 4)
    resumed = run("cut", "retry=[failed]")
    assert (resumed.status, resumed.metrics, resumed.history) == ("finished", expected.metrics, expected.history)
