"""Compose the cells of overrides, and run them in this process, in a pool of workers, or on Slurm."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cab.config.cluster_config import ClusterConfig, LocalConfig, SlurmConfig, parse_cluster
from cab.config.compose import check_overrides, register_configs, resolve
from cab.config.composer import ConfigComposer
from cab.errors import UserError, first_line
from cab.files.config_folders import CONFIGS
from cab.records.record import Status
from cab.runner.report import Job, Report
from cab.runner.run import run_cell
from cab.runner.statuses import cell_statuses


def run_sweeps(sweeps: Sequence[Sequence[str]], *, is_sweep: bool = True) -> Report:
    """Run all cells of sweeps, or the single cell of the only overrides, on their ``cluster``.

    Hydra composes each cell. Its sweeper and launchers are not used: the sweeper builds a Cartesian product, and the
    launchers trust the status of a job, stop at the first failure, and compose each cell twice.

    Raises:
        UserError: the overrides cannot be expanded, an option of the cluster is invalid, or a single cell fails.
    """
    report = Report(raises=not is_sweep)
    with jobs_of(sweeps, report, is_sweep=is_sweep) as jobs:
        first = next(jobs, None)
        if first is not None:
            run_jobs(itertools.chain([first], jobs), report, parse_cluster(first.config["cluster"]))
    return report


def run_jobs(jobs: Iterable[Job], report: Report, cluster: ClusterConfig) -> None:
    """Run composed cells where ``cluster`` specifies."""
    if isinstance(cluster, LocalConfig):
        from cab.runner.pool import run_in_pool

        run_in_pool(jobs, report, workers=cluster.workers, workers_per_gpu=cluster.workers_per_gpu)
    elif isinstance(cluster, SlurmConfig):
        from cab.runner.slurm import run_on_slurm

        run_on_slurm(jobs, report, cluster)
    else:
        run_here(jobs, report)


def run_here(jobs: Iterable[Job], report: Report) -> Report:
    """Run cells one after another in this process; an error of one does not stop the others."""
    for job in jobs:
        try:
            report.add(run_cell(job.config, command=job.command, data=report.data))
        except Exception as error:
            report.add_error(error, job.command)
    return report


def retry_cells(results_dir: Path, wanted: Sequence[str]) -> Report:
    """Rerun the cells in ``results_dir`` that have one of the statuses, each with its recorded configuration.

    Raises:
        UserError: the folder does not exist.
    """
    changes = {
        "results_dir": str(results_dir),
        "retry": [status for status in wanted if status in tuple(Status)],
        "force": False,
    }
    found = [each for each in cell_statuses(results_dir) if each.status in wanted]
    return run_here((Job({**each.config, **changes}, each.command) for each in found), Report(expected=len(found)))


@contextlib.contextmanager
def jobs_of(sweeps: Sequence[Sequence[str]], report: Report, *, is_sweep: bool) -> Iterator[Iterator[Job]]:
    """Yield an iterator of the composed cells; a cell that cannot be composed is added to the report as an error."""
    cells = [list(overrides) for overrides in sweeps]
    if is_sweep:
        from cab.runner.sweep import expand

        with readable_errors():
            expanded = [expand(overrides) for overrides in sweeps]
        cells = [cell for found, _ in expanded for cell in found]
        report.left_out = list(dict.fromkeys(reason for _, left_out in expanded for reason in left_out))
    report.expected = len(cells)
    register_configs()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield _composed(cells, report)


def _composed(cells: Iterable[Sequence[str]], report: Report) -> Iterator[Job]:
    composer = ConfigComposer()
    for overrides in cells:
        command = f"cab run {shlex.join(overrides)}"
        try:
            with readable_errors():
                config = composer.compose(overrides)
        except Exception as error:
            report.add_error(error, command)
            continue
        yield Job(config, command)


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved configuration of a single cell."""
    overrides = check_overrides(overrides)
    register_configs()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"), readable_errors():
        return resolve(compose("run", overrides=overrides))


def composed_text(overrides: Sequence[str]) -> str:
    """Return the resolved configuration of a single cell as YAML."""
    register_configs()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"), readable_errors():
        return OmegaConf.to_yaml(compose("run", overrides=list(overrides)), resolve=True)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf to UserError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(first_line(error)) from error
