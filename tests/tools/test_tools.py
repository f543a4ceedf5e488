"""Scripts are parsed, and called where a call is cheap; tools run on small inputs; sets of records; golden numbers."""

import os
import sys

import pandas as pd
import pytest
import torch

from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS, SET, record_paths
from cab.records.record import Record
from tests.helpers.command import ROOT, run
from tests.helpers.golden_numbers import FOLDER, Golden
from tests.helpers.made_records import make_record
from tools.golden import record, transformers
from tools.results.bundle import bundle
from tools.verification import replay_public_bugs

SCRIPTS = ROOT / "scripts"
SHELL_SCRIPTS = sorted(path.name for path in SCRIPTS.glob("*.sh"))


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_shell_script_parses(name):
    found = run(["bash", "-n", SCRIPTS / name], ROOT)
    assert (found.returncode, found.stderr) == (0, "")
    assert os.access(SCRIPTS / name, os.X_OK)


def test_with_slurm_runs_the_command(tmp_path):
    command = ["bash", SCRIPTS / "with_slurm.sh", "sh", "-c", "echo $SLURM_CONF; exit 3"]
    found = run(command, ROOT, SLURM_CONF=str(tmp_path))
    assert (found.returncode, found.stdout) == (3, f"{tmp_path}\n")


def test_suite_trains_each_cell(tmp_path):
    variables = {"CAB": "echo", "ATTENTIONS": "none abc", "SEEDS": "1"}
    variables |= {"RESULTS": str(tmp_path / "runs"), "RECORDS": str(tmp_path / "records")}
    found = run(["bash", SCRIPTS / "suite.sh", "steps=2"], ROOT, **variables)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    assert first == f"run suite=core attention=none seed=1 results_dir={tmp_path / 'runs'} device=cpu steps=2"
    assert second == first.replace("none", "abc")
    assert (tmp_path / "records").is_dir()


@pytest.mark.slow
def test_a_bug_of_the_installed_release_is_replayed(monkeypatch, tmp_path):
    table = tmp_path / "bugs.csv"
    options = ["--releases", str(tmp_path / "releases"), "--out", str(table), "--only", "rwkv-padding"]
    monkeypatch.setattr(sys, "argv", ["replay_public_bugs", *options])
    replay_public_bugs.main()
    [row] = pd.read_csv(table).to_dict("records")
    assert (row["result"], row["after_repair"]) == ("caught", "open")
    assert "padding left" in row["evidence"]


# --- sets of records ------------------------------------------------------------------------------------------------


def test_a_set_has_the_records_of_a_folder(tmp_path):
    records = [make_record({"mse": 1.0}, seed=seed) for seed in (2, 1)]
    for made in records:
        made.write(tmp_path / "runs")
    assert bundle(tmp_path / "runs", tmp_path / "set") == tmp_path / "set" / SET
    paths = record_paths(tmp_path / "set")
    assert [path.stem for path in paths] == sorted(made.hash for made in records)
    assert {Record.read(path).hash: Record.read(path) for path in paths} == {each.hash: each for each in records}


def test_a_committed_set_is_bundled_to_the_same_bytes(tmp_path):
    """Also of records from before a change of the reader, whose stored content is kept."""
    assert bundle(REFERENCE_DIRS[1], tmp_path).read_bytes() == (REFERENCE_DIRS[1] / SET).read_bytes()


def test_nothing_is_written_if_a_record_is_not_valid(tmp_path):
    path = make_record({"mse": 0.5}).write(tmp_path)
    path.write_text(path.read_text().replace("0.5", "0.1"))
    for folder, words in (("", "checksum does not match"), ("none", "has no records")):
        with pytest.raises(UserError, match=words):
            bundle(tmp_path / folder, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
@pytest.mark.parametrize("make", [name for name in vars(transformers) if name.startswith("make_")])
def test_a_case_is_recorded_again(make, monkeypatch, tmp_path):
    """Its weights are copied whole, transposed and below other names."""
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["transformers", make.removeprefix("make_")])
    record.main(vars(transformers))
    assert torch.get_default_dtype() is torch.float32
    [file] = tmp_path.glob("*.npz")
    for case in {name.partition("/")[0] for name in record.np.load(file).files}:
        made, stored = (Golden.read(folder / file.name, case) for folder in (tmp_path, FOLDER))
        assert made.about == stored.about
        assert made.arrays.keys() == stored.arrays.keys()
        for name, array in made.arrays.items():
            assert torch.allclose(array, stored.arrays[name], rtol=1e-9, atol=1e-12), name
