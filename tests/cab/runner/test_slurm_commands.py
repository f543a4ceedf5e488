"""Submission to a Slurm whose commands are stand-ins: what is submitted, what is named, and what is not done twice."""

import signal
import subprocess
import sys

import pytest
import submitit.core.logger  # noqa: F401

from cab.cli.main import main
from tests.helpers.runs.fixtures import TROUBLED

# submitit configures logging when it is imported, which closes absl's handler and, within a test, pytest's own stream.

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


def test_without_waiting_the_submission_is_the_success(submit):
    status, said = submit("cluster.wait=false")
    assert status == 0, said
    assert "submitted 3 cells to Slurm as 101, 102" in said


def test_scripts_of_arrays_and_of_single_jobs_leave_out_what_is_0(submit, tmp_path):
    for cluster in (["cluster.time=0", "cluster.nodes=0"], ["cluster.time=7", "cluster.nodes=2"]):
        (tmp_path / "scripts").unlink(missing_ok=True)
        assert submit("cluster.wait=false", *cluster)[0] == 0
        scripts = (tmp_path / "scripts").read_text()
        assert scripts.count("#!/bin/bash") == 2
        lines = [line for line in scripts.splitlines() if line.startswith(("#SBATCH --time", "#SBATCH --nodes"))]
        assert lines == ([] if "cluster.time=0" in cluster else ["#SBATCH --nodes=2", "#SBATCH --time=7"] * 2)


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
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error' >&2; exit 1\n")
    status, said = submit("cluster.wait=false")
    assert status == 2
    assert "Slurm does not give its settings; repeat the command when `scontrol show config` works" in said
    assert not (tmp_path / "count").exists()


def test_a_cell_whose_job_ended_without_a_record_is_a_failure(submit):
    status, said = submit()
    assert status == 1
    assert said.count("no record; its job 101_0 is ended") == 1
    assert said.count("no record; its job 102 is ended") == 1


def test_a_job_that_is_canceled_before_its_cell_starts_ends_at_once(tmp_path):
    program = tmp_path / "job.py"
    program.write_text(
        "import os, signal, cab.runner.run\n"
        "from cab.runner.slurm import CellJob\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)  # as submitit does\n"
        "cab.runner.run.run_cell = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "CellJob()({}, '')\n"
    )
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr
