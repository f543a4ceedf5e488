"""A step has the loss and gradients of its whole batch, however it is divided, and waits for no GPU."""

import json

import pytest

from cab.registry.registries import TASKS
from cab.runner.processes import Processes
from tests.helpers.command import run_module
from tests.helpers.runs import step_waits
from tests.helpers.runs.step_gradients import CELLS, UNEVEN, measure, write_pairs
from tests.helpers.tasks.records import few_examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder)
    with few_examples():
        yield folder


@pytest.fixture(scope="module")
def of_two_processes(folder):
    process = run_module("tests.helpers.runs.step_gradients", folder, processes=2)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads((folder / "step_gradients.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_divided_batch_has_the_loss_and_gradients_of_the_whole(name, folder, of_two_processes, monkeypatch):
    """Divided into micro-batches and among processes."""
    whole = measure(name, None, Processes(), folder)
    assert whole[0] > 0
    divided = [measure(name, size, Processes(), folder) for size in (1, 3)]
    divided += of_two_processes[name].values()
    for other in divided:
        assert other[0] == pytest.approx(whole[0], rel=1e-5)
        assert other[1:] == pytest.approx(whole[1:], rel=1e-4, abs=1e-5 * max(whole[1:]))
    if name in UNEVEN:  # otherwise the test would show nothing
        monkeypatch.setattr(TASKS.get(name.partition(" ")[0]).cls, "loss_counts", lambda *_: None)
        assert measure(name, 1, Processes(), folder)[0] != pytest.approx(whole[0], rel=1e-5)


@pytest.mark.slow
def test_a_read_in_ten_steps_and_no_blocking_copy():
    """Of every task on a simulated device; waits that are planted in two steps of two micro-batches are counted."""
    process = run_module("tests.helpers.runs.step_waits", *step_waits.CELLS, "planted lm")
    assert process.returncode == 0, process.stderr[-2000:]
    table = json.loads(process.stdout)
    for name in step_waits.CELLS:
        counts = table.pop(name)
        assert sum(counts["reads"].values()) <= 1, (name, counts["reads"])
        assert counts["copies"] == {}, name
        assert counts["device"] == pytest.approx(counts["cpu"], rel=1e-5), name
    found = {name: (sum(x["reads"].values()), sum(x["copies"].values())) for name, x in table.items()}
    assert found == {"item": (4, 0), "mask": (4, 0), "copy": (0, 4), "index": (0, 4), "nothing": (0, 0)}
