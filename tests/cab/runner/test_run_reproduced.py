"""`cab reproduce`: a record trained again and compared."""

import json

from cab.cli.main import main
from cab.records.record import Record, with_checksum
from cab.runner.run import run_cell
from tests.helpers.runs.troubled import trained


def test_reproduce_compares(troubled, tmp_path, says):
    record = trained(troubled())
    path = tmp_path / f"{record.hash}.json"
    assert "equal" in says("reproduce", str(path)).out
    changed = json.loads(path.read_text())
    changed["metrics"][0]["value"] += 0.5
    changed["versions"]["torch"] = "0.1"
    path.write_text(json.dumps(with_checksum(changed)))
    printed = says("reproduce", str(path), status=1).out
    assert "differs" in printed
    assert "torch was 0.1, is " in printed
    assert main(["reproduce", str(path), "--tolerance", "10"]) == 0
    run_cell(troubled("seed=3", trouble="oom"))
    [oom] = [p for p in tmp_path.glob("*.json") if p != path]
    assert main(["reproduce", str(oom)]) == 2


def test_reproduce_never_replaces_the_record(troubled, tmp_path):
    record = trained(troubled())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["reproduce", str(tmp_path / f"{record.hash}.json"), "--results-dir", str(tmp_path)]) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_reproduce_uses_the_precision_that_the_run_resolved(troubled, tmp_path, says):
    """As the record of a GPU: its ``auto`` was another precision than that of this machine."""
    path = tmp_path / f"{trained(troubled()).hash}.json"
    content = json.loads(path.read_text())
    content["config"]["trainer"]["precision"] = "bf16-mixed"
    path.write_text(json.dumps(with_checksum(content)))
    printed = says("reproduce", str(path), "--tolerance", "1", "--results-dir", str(tmp_path / "again")).out
    assert "definition of the cell has changed" not in printed
    assert "trainer.precision" not in printed
    [repeated] = (tmp_path / "again").glob("*.json")
    assert Record.read(repeated).config["trainer"]["precision"] == "bf16-mixed"
