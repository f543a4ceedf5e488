"""Files of the user's that are called as our packages replace none of them, however a cell is started."""

import shlex
import sys

import pytest

from cab.runner.slurm import PYTHON
from tests.helpers.documents import run

OURS = ("attentions", "backbones", "configs", "engines", "tasks")
CELL = ["run", "task=lstf", "dataset=synthetic", "backbone=informer", "attention=none", "pattern=NS", "preset=smoke"]
CELL += ["device=cpu", "trainer.max_steps=0", "trainer.max_epochs=null", "results_dir=results"]


@pytest.fixture
def hostile(tmp_path):
    """A working folder with a file for each of our packages; importing one ends the process."""
    for name in OURS:
        (tmp_path / f"{name}.py").write_text("import os\nos._exit(77)\n")
    return tmp_path


PROGRAM = "import sys; from cab.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-P", "-c", PROGRAM, *CELL],  # what the console script `cab` is: its folder is not ours
        [sys.executable, "-m", "cab", *CELL],
        [sys.executable, "-m", "cab.cli.main", *CELL, "cluster=local", "cluster.workers=1"],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "cab", *CELL],
    ],
    ids=["cab", "module", "pool", "torchrun"],
)
@pytest.mark.slow
def test_a_cell_runs_next_to_hostile_files(command, hostile):
    process = run(command, hostile)
    assert process.returncode == 0, process.stderr
    assert len(list((hostile / "results").glob("*.json"))) == 1


@pytest.mark.parametrize(("python", "status"), [(PYTHON, 0), (sys.executable, 77)])
def test_a_job_of_slurm_imports_ours(python, status, hostile):
    """And the files are harmful: other programs import them."""
    assert run([*shlex.split(python), "-u", "-c", f"import {', '.join(OURS)}"], hostile).returncode == status
