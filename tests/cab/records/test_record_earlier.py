"""A record from when the modules of `cab` were part of the attention is read as one of today, and is not rewritten."""

import dataclasses
from pathlib import Path

from cab.records import verified
from cab.records.identity import MOVED, Program, changed_modules
from cab.records.names import installed_code, names_of_programs
from cab.records.record import Record
from cab.records.verified import VerifiedRow, read_rows, verified_state
from cab.registry.files import load_object
from cab.registry.program import code_of, contract_of, modules_of
from cab.registry.registries import ATTENTIONS
from cab.results.costs import cost_path
from cab.results.load import load_results
from tests.helpers.earlier_records import as_before
from tests.helpers.made_records import make_record

MINE = """
from cab import Attention

class Mine(Attention):
    def attend(self, query, key, value, *_):
        return value
"""


def test_it_has_the_code_of_today(tmp_path, caplog):
    """One program with a record of today: in tables, among the verified ones, and for its costs."""
    cls = ATTENTIONS.get("abc").cls
    path = make_record({"mse": 1.0}, attention="abc", verified=False).write(tmp_path)
    stored, text = as_before(path, cls), path.read_text()
    record = Record.read(path)
    assert record.attention_code == code_of(cls) == installed_code("abc") != stored
    assert record.program.attention.keys() == {n for n in modules_of([cls]) if not n.startswith("cab.")}
    assert record.program.project["cab.attention"] == modules_of([cls])["cab.attention"]
    assert verified_state(record, {(code_of(cls), "NC")}) == "yes"
    today = make_record({"mse": 1.0}, attention="abc", seed=1, program=record.program)
    assert names_of_programs([record, today]) == ["abc", "abc"]
    assert set(load_results(tmp_path)["attention"]) == {"abc"}
    assert not caplog.text

    def costs(record: Record) -> Path:
        return cost_path(tmp_path, "abc", "NC", record.attention_code, record.earlier_code)

    measured = cost_path(tmp_path, "abc", "NC", stored)
    assert costs(record) == costs(today) != measured
    measured.parent.mkdir()
    measured.write_text("")
    assert costs(record) == measured
    assert path.read_text() == text


def test_that_of_a_file_has_it_too_and_that_of_other_code_has_not(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    name = f"{tmp_path / 'mine.py'}:Mine"
    cls = load_object(name)
    path = make_record({"mse": 1.0}, attention="Mine", config={"attention": {"name": name}}).write(tmp_path)
    as_before(path, cls)
    assert Record.read(path).attention_code == code_of(cls)
    other = type("Other", (cls,), {"__module__": cls.__module__})
    stored = as_before(path, other)
    assert Record.read(path).attention_code == stored


def test_moved_code_differs_only_if_it_had_changed():
    before = {name: digest for name, (digest, _, _) in MOVED.items()}
    since = {name: digest for _, name, digest in MOVED.values()}
    program = Program.recorded({}, {**before, "cab.registry.options": "1" * 16, "cab.claims": "2" * 16})
    assert program.project == since
    assert Program.recorded({}, program.project) == program
    changed = Program.recorded({}, {**before, "cab.registry.stacks": "3" * 16})
    assert changed_modules(changed.project, since) == ["cab.construction"]


def test_rows_of_another_contract_are_verified_and_not_current(monkeypatch, tmp_path):
    cls = ATTENTIONS.get("abc").cls
    row = VerifiedRow.of_today("abc", "NC", cls, quick=False, reach={})
    assert row.contract == contract_of(cls) != contract_of(ATTENTIONS.get("gla,vanilla").cls)
    assert row.holds(cls, quick=False)
    monkeypatch.setattr(verified, "COMMITTED", tmp_path / "verified.csv")
    verified.write_rows(verified.COMMITTED, [dataclasses.replace(row, contract="0" * 16)])
    [other] = read_rows(verified.COMMITTED)
    assert not other.holds(cls, quick=False)
    assert verified.is_verified(code_of(cls), "NC")
