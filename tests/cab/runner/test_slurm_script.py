"""`cluster=slurm --dry-run` prints the script of the jobs, where there is no Slurm."""

import os
import re
from pathlib import Path

import pytest

from cab import UserError
from cab.cli.main import main
from cab.config.run_config import SlurmConfig
from cab.runner import slurm
from cab.runner.slurm import job_script

CELLS = ["run", "-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla", "preset=smoke", "device=cpu"]


@pytest.mark.parametrize(("seeds", "array"), [("1", None), ("1,2,3", "--array=0-2%3")])
def test_the_script_has_the_options_of_the_cluster(seeds, array, tmp_path, capsys):
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


def test_memory_per_core_excludes_memory_per_machine():
    extra = {"mem-per-cpu": "4G"}
    script = job_script(SlurmConfig(time=60, gpus=1, memory=0, extra=extra), Path("r"), 1)
    assert [line for line in script.splitlines() if "mem" in line and "SBATCH" in line] == ["#SBATCH --mem-per-cpu=4G"]
    with pytest.raises(UserError, match="exclude each other: set cluster"):
        job_script(SlurmConfig(time=60, gpus=1, memory=16, extra=extra), Path("r"), 1)


@pytest.mark.parametrize("extra", [{}, {"nodes": "2-4"}])
def test_what_a_site_does_not_want_is_left_out(extra, tmp_path):
    options = SlurmConfig(time=0, nodes=0, gpus=0, cpus=0, memory=0, extra=extra)
    for count in (1, 3):
        script = job_script(options, tmp_path, count)
        lines = [line for line in script.splitlines() if re.match(r"#SBATCH --(time|nodes|gpus|cpus|mem)", line)]
        assert lines == [f"#SBATCH --{name}={value}" for name, value in extra.items()]
        given = {**vars(options), "time": 60, "nodes": 2, "extra": {}}
        assert "#SBATCH --nodes=2\n" in (whole := job_script(SlurmConfig(**given), tmp_path, count))
        assert "#SBATCH --time=60\n" in whole


@pytest.mark.parametrize(
    "given", [{"SBATCH_PARTITION": "debug", "SLURM_CPU_BIND": "mask", "SLURM_CONF": "a", "RANK": "1"}]
)
def test_a_submission_has_no_variables_of_a_surrounding_job(given, monkeypatch, caplog):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with slurm._environment_of_slurm_removed():
        assert given.keys() & os.environ.keys() == {"SLURM_CONF"}
    assert given.items() <= os.environ.items()
    assert "SBATCH_PARTITION of the environment is not used" in caplog.text


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cluster.account='a\n#SBATCH --nodes=9'", "cluster.account must be one line of printable text"),
        ("cluster.constraint='a\rb'", "cluster.constraint must be one line"),
        ("cluster.extra.comment='a\nrm -r .'", "cluster.extra.comment must be one line"),
        ("results_dir=r/%j", "has a character that Slurm replaces; name another folder"),
    ],
)
def test_an_option_does_not_leave_its_line(option, message, says):
    assert message in says(*CELLS, "cluster=slurm", option, "--dry-run", status=2).err
