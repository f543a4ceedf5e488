"""`cluster=slurm --dry-run` prints the script of the jobs, where there is no Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.cli.main import main

CELLS = ["run", "-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla", "preset=smoke", "device=cpu"]


@pytest.mark.parametrize(("seeds", "array"), [("1", None), ("1,2,3", "--array=0-2%3")])
def test_the_script_has_the_options_of_the_cluster(
    seeds: str, array: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ["cluster=slurm", "cluster.partition=low", "cluster.memory=7", "cluster.setup=[module load cuda]"]
    cluster += ["cluster.extra.nodes=2", "cluster.extra.reservation=mine", "other_attention.NC=abc"]  # need no plus
    results = tmp_path / "results"
    assert main([*CELLS, f"seed={seeds}", *cluster, f"results_dir={results}", "--dry-run"]) == 0
    table, script = capsys.readouterr().out.split("#!/bin/bash")
    assert " min (two CPU cores)" in table
    lines = script.splitlines()
    assert {"#SBATCH --partition=low", "#SBATCH --mem=7GB", "#SBATCH --nodes=2", "module load cuda"} <= set(lines)
    assert "#SBATCH --reservation=mine" in lines
    assert (f"#SBATCH {array}" in lines) == (array is not None)
    assert any(line.startswith("srun ") and str(results / "slurm") in line for line in lines)
    assert not results.exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cluster.account='a\n#SBATCH --nodes=9'", "cluster.account must be one line of printable text"),
        ("cluster.constraint='a\rb'", "cluster.constraint must be one line"),
        ("cluster.extra.comment='a\nrm -r .'", "cluster.extra.comment must be one line"),
        ("results_dir=r/%j", "has a character that Slurm replaces; name another folder"),
    ],
)
def test_an_option_does_not_leave_its_line(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CELLS, "cluster=slurm", option, "--dry-run"]) == 2
    assert message in capsys.readouterr().err
