"""Results of different code or data do not meet unnoticed: a matrix of the places where they meet and what differs."""

import json
import logging
import re
from pathlib import Path

import pytest

from attentions.abc import ABCAttention
from cab.cli.main import main
from cab.config.compose import compose
from cab.errors import UserError
from cab.records.identity import Identity, Program, changed_modules, differences
from cab.records.record import Record
from cab.registry.program import UNKNOWN
from cab.results.load import load_results
from cab.runner import provenance
from cab.runner.cell import Cell
from cab.runner.folder import cell_statuses
from cab.runner.report import Job, Report, cells_to_run
from cab.runner.run import run_cell
from tests.helpers.made_records import make_record
from tests.helpers.runs.fixtures import edit_program
from tests.helpers.runs.troubled import Troubled, trained

OTHER_CODE = "9" * 16
OLD, NEW, OTHER = "2ac5dc00" * 2, "d7d4ed00" * 2, "backbones.informer aaaaaa"
CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "preset=smoke", "device=cpu"]
CELL.append("trainer.max_steps=1")
MINE = """
from cab import Attention


class Mine(Attention):
    def attend(self, query, key, value, *_):
        return {factor} * value.mean(2, keepdim=True).expand_as(query)
"""


def change(what: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Change the code, the data, the libraries or the micro-batch of the next run; return overrides."""
    if what in ("attention", "project"):
        name = "attentions.softmax" if what == "attention" else "backbones.made"
        edit_program(monkeypatch, lambda of: Program(**{**vars(of), what: {**vars(of)[what], name: OTHER_CODE}}))
    if what == "attention":
        monkeypatch.setattr("cab.runner.cell.code_of", lambda cls: OTHER_CODE)  # noqa: ARG005
    if what == "data":
        monkeypatch.setattr(Troubled, "fingerprint", lambda self: {"made": "again"})  # noqa: ARG005
    if what == "versions":
        monkeypatch.setattr("cab.runner.provenance.versions", lambda: {"torch": "0.1"})
    if what == "configuration":  # a default whose meaning changed
        monkeypatch.setattr(Cell, "changed", property(lambda self: {"made": self.config.seed}))
        return ["trainer.learning_rate=0.3"]
    return ["trainer.micro_batch_size=2"] if what == "micro batch" else []


PROJECT = r"other code of the project \(backbones.made\)"
DIFFERENCES = [
    ("configuration", r"trainer.learning_rate was 0\.\d+, is 0.3"),
    ("data", r"other data \(made was for tests, is again\)"),
    ("versions", r"torch was \S+, is 0.1"),
    ("micro batch", "trainer.micro_batch_size was 4, is 2"),
]
DECISIVE = ("configuration", "attention", "project", "data")


@pytest.fixture(autouse=True)
def _made_module(monkeypatch, caplog):
    """Every run of these tests has executed a backbone of the project that can be changed."""
    caplog.set_level(logging.INFO)
    edit_program(monkeypatch, lambda of: Program(of.attention, {**of.project, "backbones.made": "1" * 16}))


@pytest.mark.parametrize(("what", "words"), DIFFERENCES)
def test_a_cached_result(what, words, troubled, monkeypatch, caplog):
    """Also on its way to a pool or to Slurm; test_folder_states.py edits the project."""
    if what == "configuration":
        change(what, monkeypatch)
    run_cell(troubled())
    config = troubled(*change(what, monkeypatch))
    report = Report()
    assert not list(cells_to_run([Job(config, "")], report))
    if what in DECISIVE:
        with pytest.raises(UserError, match=words):
            run_cell(config)
        assert len(report.failures) == 1
        assert run_cell({**config, "force": True}).kind == "completed"
        return
    assert run_cell(config).kind == "cached"
    assert caplog.text.count("use force=true to rerun it") == 2
    assert re.search(words, caplog.text)


def test_other_code_of_the_attention_is_a_result_of_its_own(troubled, monkeypatch, caplog):
    first = trained(troubled())
    change("attention", monkeypatch)
    second = trained(troubled())
    assert "has other code of the attention; this is a new result" in caplog.text
    assert first.hash == second.hash
    folder = Path(troubled()["results_dir"])
    names = {f"{first.hash}.json", f"{first.hash}-{OTHER_CODE[:8]}.json"}
    assert {path.name for path in folder.glob("*.json")} == names
    assert set(load_results(folder)["attention"]) == {"vanilla", f"vanilla [{OTHER_CODE[:8]}]"}
    assert run_cell(troubled()).kind == "cached"
    assert len(cell_statuses(folder)) == 2
    monkeypatch.setattr("cab.runner.cell.code_of", lambda cls: "0" * 16)  # noqa: ARG005
    third = trained(troubled())
    monkeypatch.setattr("cab.runner.cell.code_of", lambda cls: "1" * 16)  # noqa: ARG005
    assert run_cell({**troubled(), "accept_code": True}).record == third, "the newest one"
    (folder / f"{first.hash}.json").unlink()
    monkeypatch.setattr("cab.runner.cell.code_of", lambda cls: OTHER_CODE)  # noqa: ARG005
    assert run_cell({**troubled(), "accept_code": True}).record == second, "that of its own code, before newer ones"


def test_an_attention_whose_code_is_in_no_file_runs_again(troubled, monkeypatch, caplog):
    monkeypatch.setattr("cab.runner.cell.code_of", lambda cls: "")  # noqa: ARG005
    edit_program(monkeypatch, lambda _: Program({"__main__": UNKNOWN}, {}))
    assert [run_cell(troubled("trainer.max_steps=1")).kind for _ in range(2)] == ["completed"] * 2
    assert "runs again: the code of the attention is in no file" in caplog.text


@pytest.mark.parametrize(
    ("what", "words", "is_in"), [*((*row, "folder") for row in DIFFERENCES), ("project", PROJECT, "checkpoint")]
)
def test_an_interrupted_run(what, words, is_in, troubled, monkeypatch, caplog):
    settings = ["trainer.checkpoint_every=1", "retry=[failed]"]
    if what == "configuration":
        change(what, monkeypatch)
    failed = trained(troubled(*settings, trouble="crash"))
    folder = Path(troubled()["results_dir"]) / failed.hash
    stored = Identity.from_plain(json.loads((folder / "cell.json").read_text())["identity"])
    assert stored is not None
    assert not differences(stored, failed.identity())
    if is_in == "checkpoint":  # a folder that does not know its identity, as after a copy of checkpoints alone
        (folder / "cell.json").unlink()
    if what == "configuration":  # the record, which is compared as well, is gone
        (folder.parent / f"{failed.hash}.json").unlink()
    caplog.clear()
    record = trained(troubled(*settings, *change(what, monkeypatch)))
    assert ("resuming from step" in caplog.text) == (what not in DECISIVE)
    assert re.search(words, caplog.text) or (what not in DECISIVE and is_in == "checkpoint")
    assert record.data == {"made": "again" if what == "data" else "for tests"}


def test_a_file_is_another_cell_with_other_code(tmp_path, monkeypatch):
    """One relative name in two folders, and one file before and after an edit, are different attentions."""
    hashes, programs = [], []
    for number, folder in enumerate(["a", "b", "copy of a"]):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        Path("m.py").write_text(MINE.format(factor=number % 2))
        cell = Cell.from_config(compose([*CELL, "attention='m.py:Mine'"]))
        hashes.append((cell.hash, cell.attention_code))
        monkeypatch.setattr("cab.registry.program.FOREIGN", {})
        filled = Cell.from_config(compose([*CELL, "attention=vanilla", "other_attention='m.py:Mine'"]))
        programs.append(provenance.program_of(filled).project)
    assert hashes[0] == hashes[2] != hashes[1]
    assert "m.py" in changed_modules(programs[0], programs[1])


@pytest.mark.parametrize(
    ("codes", "projects", "names", "words"),
    [
        ([OLD, NEW, NEW], "aaa", ["abc [2ac5dc00]", "abc", "abc"], "abc has results of 2 programs: 2ac5dc00, d7d4ed00"),
        ([NEW] * 3, "abb", [f"abc [{OTHER}]", "abc", "abc"], f"has 1 result of other code ({OTHER}): separate rows"),
        (["", ""], "aa", ["abc [unknown]", "abc"], ""),
    ],
)
def test_seeds_of_different_programs_are_different_rows(codes, projects, names, words, tmp_path, caplog, cab):
    """Unless it is asked for; an unknown program is equal to no other."""
    for seed, (code, digest) in enumerate(zip(codes, projects, strict=True), 1):
        project = {"backbones.informer": digest * 16, f"tasks.only{seed}": "d"}
        about = {"program": Program({"attentions.abc": code}, project), "attention_code": code}
        started = f"2026-11-0{seed}T12:00:00+00:00"
        make_record({"mse": 1.0}, seed=seed, attention="abc", started=started, **about).write(tmp_path)
    make_record({"mse": 2.0}, seed=1).write(tmp_path)
    results = load_results(tmp_path)
    results = results[results["attention"] != "vanilla"]
    assert dict(zip(results["seed"], results["attention"], strict=True)) == dict(enumerate(names, 1))
    assert words in caplog.text
    assert all(name in cab("score", tmp_path).out for name in names)
    if "abb" in projects:
        assert set(load_results(tmp_path, accept_code=True)["attention"]) == {"abc [mixed code]", "vanilla"}


def test_seeds_of_different_micro_batches_are_named(tmp_path, caplog, cab):
    for seed, size in ((1, 4), (2, None)):
        trainer = {"batch_size": 8, "micro_batch_size": size}
        make_record({"mse": 1.0}, seed=seed, config={"trainer": trainer}).write(tmp_path)
    make_record({"mse": 2.0}, seed=1, attention="abc", config={"trainer": {"batch_size": 8}}).write(tmp_path)
    cab("score", tmp_path)
    assert "compared attentions have different settings" in caplog.text
    assert "trainer.forward_batch=4" in caplog.text


def test_code_of_one_file_does_not_change_the_next_cell_of_a_sweep(tmp_path, monkeypatch):
    """Each file has a process of its own, with its own helpers of one name."""
    monkeypatch.setattr(ABCAttention, "attend", ABCAttention.attend)  # restored: the files are imported here as well
    monkeypatch.chdir(tmp_path)
    for folder, factor in (("a", 0.0), ("b", 1.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"FACTOR = {factor}\n")
        patch = "import attentions.abc\nattentions.abc.ABCAttention.attend = lambda *_: 1 / 0\n"
        text = f"{patch}from helper import FACTOR\n{MINE.format(factor='FACTOR')}"
        (tmp_path / folder / "mine.py").write_text(text)
    names = "attention='a/mine.py:Mine','b/mine.py:Mine',abc"
    assert main(["run", "-m", *CELL, names, "results_dir=r"]) == 0
    scores = {r.config["attention"]["name"]: r.metrics[0].value for r in map(Record.read, Path("r").glob("*.json"))}
    assert len(set(scores.values())) == 3
