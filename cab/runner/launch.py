"""A sweep from its overrides to where it runs: this process, a pool of workers, Slurm, or nowhere (a plan)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from cab.config import resolve
from cab.config_sources import CONFIGS
from cab.runner.sweep import REPORT, Job, command_of, expand, run_here


def run_sweep(overrides: Sequence[str], *, only_plan: bool = False) -> None:
    """Run every cell that the overrides stand for, where their ``cluster`` says; the outcome is in ``REPORT``.

    Hydra composes each cell; its own sweeper would make a Cartesian product, and its launchers would take the word
    of a job for what became of it, end a sweep at the first job that fails, and compose each cell twice.

    Args:
        only_plan: run nothing, and fill ``REPORT.plan``.

    Raises:
        ValueError: overrides that cannot be swept, or options that the cluster does not take.
    """
    cells, REPORT.left_out = expand(OverridesParser.create().parse_overrides(list(overrides)))
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        jobs = _composed(cells)
        first = next(jobs, None)
        if first is not None:
            _launch(itertools.chain([first], jobs), dict(first[0]["cluster"]), only_plan=only_plan)


def _launch(jobs: Iterator[Job], cluster: dict[str, object], *, only_plan: bool) -> None:
    name = cluster.pop("name")
    if only_plan:
        from cab.runner.plan import plan

        REPORT.plan = plan(jobs)
    elif name == "local":
        from cab.runner.pool import run_in_pool

        run_in_pool(jobs, **cluster)  # type: ignore[arg-type]
    elif name == "slurm":
        from cab.runner.slurm import SlurmOptions, run_on_slurm

        run_on_slurm(jobs, SlurmOptions(**cluster))  # type: ignore[arg-type]
    else:
        for job in jobs:
            run_here(job)


def _composed(cells: Sequence[Sequence[str]]) -> Iterator[Job]:
    """The configuration of each cell; one that cannot be composed is an error of that cell alone."""
    for overrides in cells:
        command = command_of(overrides)
        try:
            config = resolve(compose("run", overrides=list(overrides)))
        except Exception as error:
            REPORT.add_error(error, command)
            continue
        yield config, command
