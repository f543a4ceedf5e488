"""Slurm whose commands are stand-ins: what is submitted, what its script has, what is named and not done twice."""

import os
import re
import signal
from pathlib import Path

import pytest
import submitit.core.logger  # noqa: F401

from cab import UserError
from cab.cli.main import main
from cab.config.run_config import SlurmConfig
from cab.records.identity import flat
from cab.runner import slurm
from cab.runner.slurm import PYTHON, CellJob, job_script
from tests.helpers.runs.fixtures import TROUBLED

# submitit configures logging when it is imported, which closes absl's handler and, within a test, pytest's own stream.

CELLS = ["run", "-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla", "preset=smoke"]
COMMANDS = {
    "sbatch": """
        cat "$1" >> scripts
        count=$(($(cat count 2>/dev/null || echo 0) + 1)); echo $count > count
        [ $count -le $(cat accepted) ] || { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }
        echo "Submitted batch job $((100 + count))" """,
    "squeue": "cat queue 2>/dev/null || true",
    "scontrol": '[ "$2" != config ] || { echo "MaxArraySize = 2"; echo "ClusterName = $(cat cluster || echo one)"; }',
    "srun": "",
}


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Run three cells on a cluster whose arrays have two jobs at most, of which it accepts some."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in COMMANDS.items():
        (programs / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    def run(*options, accepted=9):
        (tmp_path / "accepted").write_text(str(accepted))
        cells = [*TROUBLED, "seed=1,2,3", "cluster=slurm", f"results_dir={tmp_path / 'results'}"]
        return main(["run", "-m", *cells, *options]), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("options", "lines"),
    [({}, []), ({"extra": {"nodes": "2-4"}}, ["nodes=2-4"]), ({"time": 7, "nodes": 2}, ["nodes=2", "time=7"])],
)
def test_scripts_of_arrays_and_of_single_jobs_leave_out_what_is_0(options, lines, submit, tmp_path):
    """Both those that are submitted and those that are shown."""
    options = dict.fromkeys(("time", "nodes", "gpus", "cpus", "memory"), 0) | options
    cluster = [f"cluster.{name}={value}" for name, value in flat(options).items()]
    assert submit("cluster.wait=false", *cluster)[0] == 0
    scripts = (tmp_path / "scripts").read_text().split("#!/bin/bash")[1:]
    scripts += [job_script(SlurmConfig(**options), tmp_path, count) for count in (3, 1)]
    assert all(f" {PYTHON} -u -m submitit" in each for each in scripts)
    assert [re.findall(r"^#SBATCH --((?:time|nodes|gpus|cpus|mem).*)", each, re.M) for each in scripts] == [lines] * 4


def test_a_refusal_names_the_arrays_before_it_and_their_cells_are_not_submitted_again(submit, tmp_path):
    status, said = submit(accepted=1)
    assert status == 2
    assert "submitted 2 of 3 cells as 101; Slurm rejected the others: sbatch: error: QOSMax" in said
    (tmp_path / "queue").write_text("101_0 RUNNING\n101_1 PENDING\n")
    status, said = submit("cluster.wait=false")
    assert status == 0
    assert "already in the queue: 2 cells, as 101" in said
    assert "submitted 1 cell to Slurm as 103" in said
    (tmp_path / "queue").write_text("101_1 PENDING\n103 PENDING\n")
    assert "submitted 1 cell to Slurm as 104" in submit("cluster.wait=false")[1], "the job of one has ended"


def test_another_cluster_on_the_same_disk_has_jobs_of_its_own(submit, tmp_path):
    assert "as 101, 102" in submit("cluster.wait=false")[1]
    (tmp_path / "queue").write_text("101_0 RUNNING\n101_1 RUNNING\n102 RUNNING\n")
    (tmp_path / "cluster").write_text("two")
    assert "submitted 3 cells to Slurm as 103, 104" in submit("cluster.wait=false")[1], "the queue is of other users"
    assert {path.name for path in (tmp_path / "results" / "slurm").iterdir()} == {"one", "two"}


def test_nothing_is_submitted_to_a_cluster_that_does_not_give_its_name(submit, tmp_path):
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    status, said = submit("cluster.wait=false")
    assert (status, (tmp_path / "count").exists()) == (2, False)
    assert "Slurm does not give its settings; repeat the command when `scontrol show config` works" in said


def test_a_cell_whose_job_ended_without_a_record_is_a_failure(submit):
    status, said = submit()
    assert status == 1
    assert said.count("no record; its job 101_0 is ended") == 1
    assert said.count("no record; its job 102 is ended") == 1


def test_a_job_that_is_canceled_before_its_cell_starts_ends_at_once(monkeypatch):
    monkeypatch.setattr("cab.runner.run.run_cell", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: None)  # as submitit does
        CellJob()({}, "")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize(("seeds", "device", "array"), [("1", "auto", None), ("1,2,3", "cpu", "--array=0-2%3")])
def test_the_script_has_the_options_of_the_cluster(seeds, device, array, tmp_path, capsys):
    """Hours of a CPU are those of jobs on one."""
    cluster = ["cluster=slurm", "cluster.partition=low", "cluster.memory=7", "cluster.setup=[module load cuda]"]
    cluster += ["cluster.extra.nodes=2", "cluster.extra.reservation=mine", "other_attention.NC=abc"]  # need no plus
    results = tmp_path / "results"
    assert main([*CELLS, f"seed={seeds}", f"device={device}", *cluster, f"results_dir={results}", "--dry-run"]) == 0
    table, script = capsys.readouterr().out.split("#!/bin/bash")
    assert (" min (two CPU cores)" in table) == (device == "cpu")
    assert ["lstf", str(len(seeds.split(","))), "1", "1", "60", "7.0"] in [line.split() for line in table.splitlines()]
    lines = script.splitlines()
    for option in ("partition=low", "mem=7GB", "nodes=2", "time=60", "reservation=mine"):
        assert f"#SBATCH --{option}" in lines
    assert "module load cuda" in lines
    assert "wckey" not in script
    assert (f"#SBATCH {array}" in lines) == (array is not None)
    assert any(line.startswith("srun ") and str(results / "slurm") in line and PYTHON in line for line in lines)
    assert not results.exists()


def test_memory_per_core_excludes_memory_per_machine():
    extra = {"mem-per-cpu": "4G"}
    script = job_script(SlurmConfig(time=60, gpus=1, memory=0, extra=extra), Path("r"), 1)
    assert [line for line in script.splitlines() if "mem" in line and "SBATCH" in line] == ["#SBATCH --mem-per-cpu=4G"]
    with pytest.raises(UserError, match="exclude each other: set cluster"):
        job_script(SlurmConfig(time=60, gpus=1, memory=16, extra=extra), Path("r"), 1)


def test_a_submission_has_no_variables_of_a_surrounding_job(monkeypatch, caplog):
    given = {"SBATCH_PARTITION": "debug", "SLURM_CPU_BIND": "mask", "SLURM_CONF": "a", "RANK": "1"}
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
def test_an_option_does_not_leave_its_line(option, message, cab):
    assert message in cab(*CELLS, "cluster=slurm", option, "--dry-run", status=2).err
