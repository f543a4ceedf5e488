"""Commands of Hydra's users: in a program that Hydra alone composes, and in `cab run`, which has or replaces them."""

import shlex
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from cab.config.compose import compose
from cab.config.hydra_options import REPLACED_OPTIONS
from tests.helpers.command import ROOT, cab as run_cab, records, run

CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=abc", "pattern=NC", "preset=smoke"]
MINE = ["--config-dir", "own settings", "experiment=mine", "pattern=NC"]
REPLACED = [name for names in REPLACED_OPTIONS for name in names if name.startswith(("-", "hydra"))]
PRINTED = [
    ("--cfg job", "num_landmarks: 16"),
    ("-c job ++seed=3", "seed: 3"),
    ("+experiment=mine -cd 'own settings' --cfg job", "learning_rate: 0.003"),
    ("--config saved.yaml --cfg job", "seed: 7"),
    ("cluster=slurm 'cluster.extra={nodes: 2}' --cfg job", "nodes: 2"),
    ("-m seed=1,2 --dry-run", "total of 2 runs"),
    ("-m seed=choice(1,2) --dry-run", "total of 2 runs"),
    ("-m seed=range(1,4) --dry-run", "total of 3 runs"),
    ("-m attention=glob(lin*) --dry-run", "attention=linear"),
]
HYDRA: list[tuple[list[str], int, str]] = [
    ([*CELL, "--cfg", "job"], 0, "name: abc"),
    ([*CELL, "hydra.run.dir=there", "--cfg", "hydra", "--package", "hydra.run"], 0, "dir: there"),
    ([*MINE, "--cfg", "job"], 0, "learning_rate: 0.003"),
    ([*CELL, "~trainer.betas", "+trainer.foo=3", "--cfg", "job", "--package", "trainer"], 0, "foo: 3"),
    ([*CELL, "attention='linear*3,mine.py:Mine'", "--cfg", "job"], 0, "name: linear*3,mine.py:Mine"),
    ([*CELL, "attention=nowhere.py:Mine", "--cfg", "job"], 2, "file 'nowhere.py' does not exist"),
    ([*CELL, "hydra/launcher=nowhere"], 2, "unknown hydra/launcher 'nowhere'"),
    ([*MINE, "backbone=transformer"], 2, "preset 'tiny' needs size/transformer/tiny.yaml"),
    ([*CELL, "dataset=etth1"], 2, "dataset 'etth1' needs its files"),
    ([*CELL, "seed=1,2"], 2, "To sweep over it, add --multirun"),
    ([*CELL, "attention=[linear,vanilla]"], 2, "write a stack in quotes"),
    ([*CELL, "cluster=local"], 2, "cluster= is for `cab run`; here, hydra/launcher="),
]
SWEEPS = [
    [],
    ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1"],
    ["hydra/launcher=submitit_local"],
    ["hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.n_jobs=1"],
]
"""Options of a sweep: of Hydra, and of the plugins that `make setup` installs."""


@pytest.fixture(autouse=True)
def _files(own_configs):
    (own_configs.parent / "saved.yaml").write_text("seed: 7\n")
    (own_configs.parent / "mine.py").write_text("from attentions.linear import LinearAttention as Mine\n")


def run_hydra(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cab(*arguments, cwd=Path.cwd(), module="cab.hydra_app")


def run_sweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a sweep in a new Python, since launchers start processes that a copy cannot."""
    return run([sys.executable, "-m", "cab.hydra_app", "-m", *arguments], cwd=Path.cwd(), PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(("arguments", "part"), PRINTED)
def test_commands_of_cab_run(arguments, part, cab):
    assert part in cab("run", *CELL, *shlex.split(arguments)).out


@pytest.mark.parametrize("name", REPLACED)
def test_what_cab_run_replaces_is_refused(name, cab):
    printed = cab("run", *CELL, *(f"{name}=x" if name.startswith("hydra") else name).split(), status=2)
    assert f"cab run does not have Hydra's '{name}': " in printed.err


@pytest.mark.parametrize(("arguments", "status", "part"), HYDRA)
def test_commands_of_hydra(arguments, status, part):
    done = run_hydra(*arguments)
    assert done.returncode == status, done.stderr
    assert part in (done.stderr if status else done.stdout)
    if status:
        *of_job, line = done.stderr.splitlines()
        assert line.startswith("cab: error: ")
        assert len(of_job) <= 1


def test_tracebacks_of_hydra(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert "Traceback" in run_hydra(*CELL, "attention=abd").stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["hydra/launcher=joblib"], ["hydra/launcher=submitit_local"]], ids=" ".join)
def test_a_sweep_names_the_cell_that_fails(options):
    done = run_sweep(*CELL, "pattern=NC,CC", "device=cpu", "hydra.sweep.dir=sweep", *options)
    assert done.returncode == 2
    of_job, line = done.stderr.splitlines()[-2:]
    assert "'pattern=CC'" in of_job
    assert line == "cab: error: backbone 'informer' has no attention layer with pattern CC (supported: NS CS NC)"


@pytest.mark.slow
@pytest.mark.parametrize("options", SWEEPS, ids=" ".join)
def test_sweeps_of_hydra(options):
    done = run_sweep(*MINE, "seed=1,2", "device=cpu", "hydra.sweep.dir=sweep", *options)
    assert done.returncode == 0, done.stderr
    found = records(Path("results/local"))
    assert sorted(record["cell"]["seed"] for record in found) == [1, 2]
    assert all(record["config"]["trainer"]["max_steps"] == 2 for record in found)
    assert all("cab.hydra_app" in record["command"] for record in found)


def test_hydra_composes_the_same_configuration():
    with hydra.initialize(config_path=None, version_base="1.3"):
        composed = hydra.compose("run", CELL)
    assert OmegaConf.to_container(composed, resolve=True) == compose(CELL)
