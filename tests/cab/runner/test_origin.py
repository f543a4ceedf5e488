"""Results of different code or data do not meet unnoticed: a matrix of the places where they meet and what differs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.records.identity import Origin
from cab.records.record import Record
from cab.records.results import MINI_DIR, load_results, with_reference_results
from cab.registry.files import load_object
from cab.registry.registries import ATTENTIONS
from cab.runner.cell import Cell
from cab.runner.report import Job, Report, cells_to_run
from cab.runner.run import run_cell
from cab.suite.cells import collect
from tests.cab.made_records import make_record
from tests.cab.runner.troubled import Troubled, trained

MakeConfig = Callable[..., dict[str, Any]]
OTHER_CODE = "0" * 16
MINE = """
from cab import Attention


class Mine(Attention):
    def attend(self, query, key, value, *_):
        return {factor} * value.mean(2, keepdim=True).expand_as(query)
"""


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def change(what: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Change the code, the data or the micro-batch of the next run; return overrides."""
    if what == "code":
        monkeypatch.setattr("cab.runner.provenance.code_of", lambda cls: OTHER_CODE)  # noqa: ARG005
    if what == "data":
        monkeypatch.setattr(Troubled, "fingerprint", lambda self: {"made": "anew"})  # noqa: ARG005
    return ["trainer.micro_batch_size=2"] if what == "micro batch" else []


DIFFERENCES = [
    ("code", f"the hash of the attention's code was [0-9a-f]{{16}}, is {OTHER_CODE}"),
    ("data", r"different data \(made was for tests, is anew\)"),
    ("micro batch", "trainer.micro_batch_size was 4, is 2"),
]


@pytest.mark.parametrize(("what", "words"), DIFFERENCES)
def test_a_cached_result(
    what: str, words: str, troubled: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Also on its way to a pool or to Slurm."""
    run_cell(troubled())
    config = troubled(*change(what, monkeypatch))
    report = Report()
    assert not list(cells_to_run([Job(config, "")], report))
    if what == "data":
        with pytest.raises(UserError, match=words):
            run_cell(config)
        assert len(report.failures) == 1
        assert trained(troubled("force=true")).data == {"made": "anew"}
        return
    assert run_cell(config).kind == "cached"
    assert caplog.text.count("use force=true to rerun it") == 2
    assert re.search(words, caplog.text)


@pytest.mark.parametrize("is_in", ["folder", "checkpoint"])
@pytest.mark.parametrize(("what", "words"), [("", ""), *DIFFERENCES])
def test_an_interrupted_run(
    what: str, words: str, is_in: str, troubled: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    settings = ["trainer.checkpoint_every=1", "retry=[failed]"]
    failed = trained(troubled(*settings, trouble="crash"))
    folder = Path(troubled()["results_dir"]) / failed.hash
    assert Origin(**json.loads((folder / "cell.json").read_text())["origin"]) == failed.origin
    if is_in == "checkpoint":  # a folder that does not know its origin
        (folder / "cell.json").unlink()
    caplog.clear()
    record = trained(troubled(*settings, *change(what, monkeypatch)))
    assert ("resuming from step" in caplog.text) == (what in ("", "micro batch"))
    assert re.search(words, caplog.text) or (what == "micro batch" and is_in == "checkpoint")
    assert record.attention_code == (OTHER_CODE if what == "code" else failed.attention_code)
    assert record.data == {"made": "anew" if what == "data" else "for tests"}


def test_a_file_is_another_cell_with_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One relative name in two folders, and one file before and after an edit, are different attentions."""
    hashes = []
    for number, folder in enumerate(["a", "b", "copy of a"]):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        Path("m.py").write_text(MINE.format(factor=number % 2))
        hashes.append(Cell.from_config(config_of("m.py:Mine")).hash)
    assert hashes[0] == hashes[2] != hashes[1]
    other = Cell.from_config(config_of("vanilla", "other_attention='m.py:Mine'"))
    monkeypatch.chdir(tmp_path / "b")
    assert Cell.from_config(config_of("vanilla", "other_attention='m.py:Mine'")).hash != other.hash


def config_of(attention: str, *overrides: str) -> dict[str, Any]:
    from cab.config.compose import compose

    cell = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "preset=smoke", "device=cpu"]
    return compose([*cell, f"attention='{attention}'", *overrides])


def test_a_record_names_the_code_that_was_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read once; an edit during a run does not change the hash, nor the name of the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scale.py").write_text("FACTOR = 1\n")
    file = tmp_path / "edited.py"
    file.write_text(f"from scale import FACTOR\n{MINE.format(factor='FACTOR')}")
    ATTENTIONS.get("edited.py:Mine")
    file.write_text("an error")
    (tmp_path / "scale.py").write_text("FACTOR = 2\n")
    config = config_of("edited.py:Mine", "trainer.max_steps=2", f"results_dir={tmp_path / 'results'}")
    before = Cell.from_config(config).hash
    record = trained(config)
    assert record.hash == before
    assert record == Record.read(tmp_path / "results" / f"{before}.json")
    assert Cell.from_config(config).programs == {"edited.py:Mine": record.attention_code}


def test_a_file_that_changes_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "restless.py"
    path.write_text(f"from pathlib import Path\nPath(__file__).write_text('X = 1')\n{MINE.format(factor=1)}")
    with pytest.raises(UserError, match="was changed at the same time; repeat the command"):
        load_object(f"{path}:Mine")


def write(folder: Path, code: str, seed: int, *, day: int, attention: str = "abc", mse: float = 1.0) -> Record:
    started = f"2026-11-{day:02}T12:00:00+00:00"
    record = make_record({"mse": mse}, attention=attention, attention_code=code, seed=seed, started=started)
    return Record.read(record.write(folder))


def test_seeds_of_different_code_are_different_rows(
    tmp_path: Path, caplog: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = "2ac5dc00" * 2, "d7d4ed00" * 2
    write(tmp_path, old, 1, day=1, mse=1.0)
    write(tmp_path, new, 2, day=2, mse=3.0)
    write(tmp_path, new, 3, day=2, mse=3.0)
    write(tmp_path, new, 1, day=1, attention="vanilla", mse=2.0)
    results = load_results(tmp_path)
    assert set(zip(results["attention"], results["seed"], strict=True)) == {
        ("abc [2ac5dc00]", 1), ("abc", 2), ("abc", 3), ("vanilla", 1),
    }  # fmt: skip
    assert "abc has results of 2 programs: 2ac5dc00, d7d4ed00" in caplog.text
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "board")]) == 0
    board = (tmp_path / "board" / "leaderboard.csv").read_text()
    assert "abc [2ac5dc00]" in board
    capsys.readouterr()
    assert main(["score", str(tmp_path)]) == 0
    assert "abc [2ac5dc00]" in capsys.readouterr().out


def test_the_suite_and_reference_results_separate_programs(tmp_path: Path) -> None:
    bundled = next(record for record in load_results(MINI_DIR)["record"] if record.cell["attention"] == "linear")
    config = {**bundled.config, "seed": 99}
    for code in (OTHER_CODE, bundled.attention_code):
        cell = {name: bundled.cell[name] for name in bundled.cell if name != "seed"}
        make_record({"mse": 1.0}, config=config, attention_code=code, seed=99, **cell).write(tmp_path)
        results = with_reference_results(load_results(tmp_path))
        names = set(results.loc[results["attention"].str.match(r"linear$|linear \["), "attention"])
        assert names == ({"linear", f"linear [{OTHER_CODE[:8]}]"} if code == OTHER_CODE else {"linear"})
    programs = [write(tmp_path, "1" * 16, 1, day=1), write(tmp_path, "2" * 16, 2, day=2)]
    assert {name for cell in collect(programs) for name in cell.runs} <= {"abc", "abc [11111111]"}


def test_seeds_of_different_micro_batches_are_named(tmp_path: Path, caplog: Any) -> None:
    for seed, size in ((1, 4), (2, None)):
        make_record({"mse": 1.0}, seed=seed, config={"trainer": {"batch_size": 8, "micro_batch_size": size}}).write(
            tmp_path
        )
    make_record({"mse": 2.0}, seed=1, attention="abc", config={"trainer": {"batch_size": 8}}).write(tmp_path)
    assert main(["score", str(tmp_path)]) == 0
    assert "compared attentions have different settings" in caplog.text
    assert "micro_batch_size=4" in caplog.text


def test_reproduce_names_the_change(troubled: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    record = trained(troubled())
    change("code", monkeypatch)
    path = Path(troubled()["results_dir"]) / f"{record.hash}.json"
    assert main(["reproduce", str(path)]) == 0
    assert f"the hash of the attention's code was {record.attention_code}, is {OTHER_CODE}" in capsys.readouterr().out


def test_unknown_values_are_equal_to_every_other() -> None:
    assert not Origin().changes(Origin("code", {"file": "sum"}, 4))
    assert not Origin("code", {"file": "sum"}, 4).changes(Origin())
