"""GLUE: fine-tuning from a run of MLM: its weights, its refusals, sweeps, resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cab.cli.main import main
from tasks.glue import tables
from tests.helpers.tasks.layouts import write_rte

SMOKE = ["preset=smoke", "device=cpu", "pattern=NS", "attention=vanilla"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of ``mlm`` in preset smoke."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        assert main(["run", "task=mlm", "dataset=synthetic", *SMOKE, f"results_dir={folder}"]) == 0
    return folder


def fine_tune(place: Path, folder: Path, *options: str) -> int:
    cell = ["run", "task=glue", *(() if "dataset=rte" in options else ("dataset=synthetic",)), *SMOKE]
    return main([*cell, f"task.pretrained={place}", f"results_dir={folder}", *options])


@pytest.fixture
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SYNTHETIC_COUNTS", {"train": 64, "dev": 16})


@pytest.mark.usefixtures("_few_pairs")
def test_training_starts_from_its_weights_and_its_dictionary(results: Path, tmp_path: Path) -> None:
    """Without a step the tables and layers are those of the run; another seed is another head."""
    [pretrained] = results.glob("*.json")
    assert fine_tune(results, tmp_path, "trainer.max_steps=0") == 0
    [path] = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["cell"]["config_variant"] == "pretrained on synthetic for 8 steps"
    given = torch.load(results / pretrained.stem / "weights.pt", weights_only=True)
    own = torch.load(tmp_path / record["hash"] / "weights.pt", weights_only=True)
    shared = own.keys() & given.keys()
    assert shared == {name for name in own if not name.startswith("classifier.")}
    for name in shared:
        torch.testing.assert_close(own[name], given[name], atol=0, rtol=0)
    assert given.keys() - shared == {
        "output_bias",
        *(f"{m}.{p}" for m in ("head", "head_norm") for p in ("weight", "bias")),
    }
    assert record["data"]["dictionary"]["pretraining"] == {
        key: value for key, value in json.loads(pretrained.read_text())["data"].items() if key in ("books", "tokens")
    }


@pytest.mark.usefixtures("_few_pairs")
def test_a_cell_is_of_the_weights_that_it_starts_from(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was pretrained longer is another cell, and two of them must be told apart."""
    longer = tmp_path / "pretrained"
    assert main(["run", "task=mlm", "dataset=synthetic", *SMOKE, "trainer.max_steps=1", f"results_dir={longer}"]) == 0
    [other] = longer.glob("*.json")
    for place in (results, other):
        assert fine_tune(place, tmp_path / "own", "trainer.max_steps=0") == 0
    assert len(list((tmp_path / "own").glob("*.json"))) == 2
    (longer / next(results.glob("*.json")).name).write_text(next(results.glob("*.json")).read_text())
    assert fine_tune(longer, tmp_path / "own") == 2
    assert (
        "more than one run of task=mlm backbone=roberta attention=vanilla pattern=NS seed=1: name one of"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["seed=2"], "has no finished run of task=mlm backbone=roberta attention=vanilla pattern=NS seed=2"),
        (["backbone.activation=relu", "backbone.num_heads=2"], "add backbone.num_heads=4 backbone.activation=gelu"),
        (["backbone=roberta_funnel_classifier"], "no finished run of task=mlm backbone=roberta_funnel"),
    ],
)
@pytest.mark.usefixtures("_few_pairs")
def test_another_network_is_refused_in_one_line(
    options: list[str], message: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "task=glue", "dataset=synthetic", *SMOKE[:3], f"task.pretrained={results}"]
    assert main([*arguments, "attention=vanilla", *options, f"results_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_record_that_is_none_or_has_no_weights(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = next(results.glob("*.json"))
    alone = tmp_path / record.name
    alone.write_text(record.read_text())
    assert fine_tune(alone, tmp_path / "own") == 2
    assert "has no weights at" in capsys.readouterr().err
    assert fine_tune(tmp_path / "nothing.json", tmp_path / "own") == 2
    assert "does not exist; name the record of a run" in capsys.readouterr().err
    torch.save({}, tmp_path / "weights.pt")
    alone.with_suffix("").mkdir()
    (tmp_path / "weights.pt").rename(alone.with_suffix("") / "weights.pt")
    assert fine_tune(alone, tmp_path / "own") == 2
    assert (
        "do not match the network: embedding.tokens.weight is missing, but this network needs ["
        in capsys.readouterr().err
    )


def test_an_official_layout_is_fine_tuned(results: Path, tmp_path: Path) -> None:
    """RTE's files with the dictionary of the pretraining, which splits other words into their letters."""
    folder = write_rte(tmp_path)
    assert fine_tune(results, tmp_path / "own", "dataset=rte", f"data_root={folder}", "trainer.max_steps=2") == 0
    [path] = (tmp_path / "own").glob("*.json")
    record = json.loads(path.read_text())
    assert record["data"]["examples"] == {"train": 14, "dev": 16, "held_out": 2}
    assert record["baselines"] == {"commonest": {"accuracy": 0.5}}
    assert '\tanna "keeps" a lamp .' in (tmp_path / "own" / record["hash"] / "answers.txt").read_text()
