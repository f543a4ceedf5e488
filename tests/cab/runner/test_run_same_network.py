"""Cells of one network are trained once: vanilla under test among vanilla slots is the same in every pattern."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from cab.config.compose import compose
from cab.records.files import weights_path
from cab.records.record import Record
from cab.runner.cell import Cell
from cab.runner.folder import PROGRESS, cell_statuses
from cab.runner.run import run_cell, same_network

LSTF = "task=lstf dataset=synthetic backbone=informer"


def config(folder: Path, *overrides: str, place: str = LSTF) -> dict[str, Any]:
    cell = f"{place} preset=smoke device=cpu logger=csv trainer.max_steps=2 trainer.validate_every=2"
    return compose([*cell.split(), f"results_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Vanilla in NC, among vanilla slots."""
    folder = tmp_path_factory.mktemp("results")
    outcome = run_cell(config(folder, "attention=vanilla", "pattern=NC"))
    assert outcome.kind == "completed"
    assert not outcome.record.weights_reused_from
    return folder, outcome.record


def test_the_network_of_another_pattern_is_not_trained_again(trained, tmp_path):
    folder, first = trained
    shared = run_cell(config(folder, "attention=vanilla", "pattern=NS"))
    assert shared.kind == "reused"
    assert first.hash in shared.description
    assert (shared.record.weights_reused_from, shared.record.metrics) == (first.hash, first.metrics)
    assert (shared.record.cell["pattern"], shared.record.config["pattern"]) == ("NS", "NS")
    assert Record.read(folder / f"{shared.record.hash}.json") == shared.record
    assert weights_path(folder, shared.record.hash).read_bytes() == weights_path(folder, first.hash).read_bytes()
    assert run_cell(config(folder, "attention=vanilla", "pattern=NS")).kind == "cached"
    third = run_cell(config(shutil.copytree(folder, tmp_path / "both"), "attention=vanilla", "pattern=CS"))
    assert third.record.weights_reused_from == first.hash, "not the one that reused it"

    own = run_cell(config(folder, "attention=vanilla", "pattern=NS", "force=true"))
    assert own.kind == "completed"
    assert own.record.metrics == first.metrics, "the networks were not the same"
    assert not own.record.weights_reused_from


def test_an_interrupted_run_whose_network_another_one_trained_is_finished(trained, tmp_path, monkeypatch):
    """Nothing of it is left, and a process that is killed while it copies leaves nothing incomplete."""
    folder = Path(shutil.copytree(trained[0], tmp_path / "results"))
    cell = config(folder, "attention=vanilla", "pattern=CS", "trainer.checkpoint_every=1")
    with monkeypatch.context() as patched:
        patched.setattr("cab.runner.run.reuse_result", lambda *_: None)
        patched.setattr("cab.runner.run.evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell)
    [name] = [status.hash for status in cell_statuses(folder) if status.status == "interrupted"]
    with monkeypatch.context() as patched:
        patched.setattr("cab.runner.run.shutil.copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell)
    assert run_cell(cell).kind == "reused"
    assert {status.status for status in cell_statuses(folder)} == {"finished"}
    assert not [path for pattern in PROGRESS for path in folder.glob(f"*/{pattern}")]
    twins = [path.read_bytes() for path in folder.glob("*/weights.pt") if path != weights_path(folder, name)]
    assert weights_path(folder, name).read_bytes() in twins


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("overrides", "patched"),
    [
        ("attention=linear pattern=NS", {}),
        ("attention=vanilla pattern=CS other_attention={NS:local}", {}),
        ("attention=vanilla pattern=CS seed=2", {}),
        ("attention=vanilla pattern=CS attention.num_kv_heads=1", {}),
        ("attention=vanilla pattern=CS trainer.learning_rate=0.05", {}),
        ("attention=vanilla pattern=CS", {"tasks.lstf.task.LSTF.fingerprint": {"rows": 1}}),
        ("attention=vanilla pattern=CS", {"cab.runner.provenance.modules_of": {"other": "0" * 16}}),
    ],
)
def test_another_network_recipe_data_or_code_is(trained, overrides, patched, monkeypatch):
    monkeypatch.setattr("cab.runner.run._run_and_write", lambda run: None)  # noqa: ARG005
    for name, value in patched.items():
        monkeypatch.setattr(name, lambda *_, value=value, **__: value)
    assert run_cell(config(trained[0], *overrides.split())).kind == "completed"


@pytest.mark.parametrize(
    ("place", "fillers", "expected"),
    [
        ("task=probe dataset=recall backbone=mixer", "vanilla", []),  # its slots follow the test
        (LSTF, "vanilla", ["NS vanilla", "CS vanilla"]),
        # as in the published runs; probsparse is not sound in CS
        (LSTF, "{NS: probsparse, CS: probsparse}", ["NS probsparse"]),
    ],
)
def test_the_patterns_with_the_same_network(place, fillers, expected, tmp_path):
    cell = config(tmp_path, "attention=vanilla", "pattern=NC", f"other_attention={fillers}", place=place)
    twins = [f"{twin.config.pattern} {twin.config.attention.name}" for twin in same_network(Cell.from_config(cell))]
    assert twins == expected
