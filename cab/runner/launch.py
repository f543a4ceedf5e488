"""Compose the cells of a command, and run or explain them.

Hydra composes each cell. Its sweeper and launchers are not used: the sweeper builds a Cartesian product, and the
launchers trust the status of a job and stop at the first failure.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import MISSING

from cab.config.compose import Composer, attention_name, compose, hydra_context, names_of, parse_overrides, written
from cab.config.run_config import REGISTRIES, ClusterConfig, LocalConfig, SlurmConfig, parse_cluster
from cab.errors import UnsupportedError, UserError
from cab.records.identity import flat
from cab.records.record import Status
from cab.registry.names import is_generated, is_stack
from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.stacks import parts_of
from cab.registry.tables import config_folders, tuning_rows
from cab.runner.cell import CELL_GROUPS, Cell, runnable_cells, why_not_runnable
from cab.runner.engine import check_without_data
from cab.runner.folder import cell_statuses
from cab.runner.pending import listed_as_pending
from cab.runner.report import Job, Report
from cab.runner.run import run_cell

if TYPE_CHECKING:
    from cab.data.sources import DataSet

OVERRIDING = tuple(f"configs/{group}/" for group in ("preset", "size", "recipe", "data_recipe"))
"""Files that override defaults; all other files define them."""
NAMED_GROUPS = ("task", "dataset", "backbone", "attention", "trainer", "logger", "cluster")
"""Groups of options that are chosen by name."""


def run_sweeps(sweeps: Sequence[Sequence[str]], *, is_sweep: bool = True) -> Report:
    """Run all cells of sweeps, or the single cell of the only overrides, on their ``cluster``."""
    report = Report(raises=not is_sweep)
    jobs = jobs_of(sweeps, report, is_sweep=is_sweep)
    job = next(jobs, None)
    if job is not None:
        run_jobs(itertools.chain([job], jobs), report, parse_cluster(job.config["cluster"]))
    return report


def run_jobs(jobs: Iterable[Job], report: Report, cluster: ClusterConfig) -> Report:
    """Run composed cells where ``cluster`` specifies; an error of one does not stop the others.

    Raises:
        OtherCodeError: before any cell of a sweep runs, see :meth:`ExistingRecords.check_code`.
    """
    jobs = list(jobs)
    if report.raises:
        return _run_jobs(jobs, report, cluster)
    report.existing.check_code(jobs)
    with listed_as_pending(jobs, ends=not isinstance(cluster, SlurmConfig) or cluster.wait):
        return _run_jobs(jobs, report, cluster)


def _run_jobs(jobs: Sequence[Job], report: Report, cluster: ClusterConfig) -> Report:
    if isinstance(cluster, LocalConfig):
        from cab.runner.pool import run_in_pool

        run_in_pool(jobs, report, **vars(cluster))
        return report
    if isinstance(cluster, SlurmConfig):
        from cab.runner.slurm import run_on_slurm

        run_on_slurm(jobs, report, cluster)
        return report
    if len(jobs) > 1 and len({*map(_foreign, jobs)} - {None}) > 1:  # foreign code of one could change the next cell
        from cab.runner.pool import run_in_pool

        run_in_pool(jobs, report, workers=1)
        return report
    for job in jobs:
        try:
            report.add(run_cell(job.config, command=job.command, existing=report.existing))
        except Exception as error:
            report.add_error(error, job.command)
    return report


def _foreign(job: Job) -> frozenset[str] | None:
    """Return the foreign code of a run; None for a cell that cannot run, whose error is reported then."""
    with contextlib.suppress(Exception):
        return job.cell.foreign
    return None


def retry_cells(results_dir: Path, statuses: Sequence[str]) -> Report:
    """Rerun the cells in ``results_dir`` that have one of the statuses, each with its recorded configuration."""
    changes = {
        "results_dir": str(results_dir),
        "retry": [status for status in statuses if status in tuple(Status)],
        "force": False,
    }
    cells = [cell for cell in cell_statuses(results_dir) if cell.status in statuses]
    jobs = (Job({**cell.config, **changes}, cell.command) for cell in cells)
    return run_jobs(jobs, Report(expected=len(cells)), ClusterConfig())


def jobs_of(sweeps: Sequence[Sequence[str]], report: Report, *, is_sweep: bool) -> Iterator[Job]:
    """Yield the checked cells; those that are unsupported, or whose classes raise, are added to the report.

    Raises:
        UserError: a mistake in the overrides, which stops a sweep before its first cell.
    """
    cells = [list(overrides) for overrides in sweeps]
    if is_sweep:
        expanded = [expand(overrides) for overrides in sweeps]
        cells = [cell for runnable, _ in expanded for cell in runnable]
        report.left_out = list(dict.fromkeys(reason for _, reasons in expanded for reason in reasons))
    report.expected = len(cells)
    composer = Composer()
    for overrides in cells:
        command = f"cab run {shlex.join(overrides)}"
        try:
            job = Job(composer(overrides), command)
            _ = job.cell
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, UnsupportedError):
                raise
            report.add_error(error, command)
            continue
        yield job


def expand(arguments: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Expand overrides with lists of values into cells.

    A group that is not named (task, dataset, backbone, pattern, attention) means all runnable values, without generated
    data sets, tasks outside the index and backbones that the task does not name. An option of an attention, backbone or
    task applies to those that have it. Return the overrides of every runnable cell, and one message per reason why
    named combinations are skipped.
    """
    named: dict[str, list[str]] = {}
    settings: list[tuple[str, list[str]]] = []
    for override in parse_overrides(list(arguments)):
        if override.key_or_group in CELL_GROUPS:
            listed = names_of(override)
            is_attention = override.key_or_group == "attention"
            named[override.key_or_group] = list(map(attention_name, listed)) if is_attention else listed
        else:
            settings.append((override.key_or_group, _alternatives(override)))
    indexed = {task.name for task in TASKS if task.in_index}
    has_source = any(key == "task.source" and values != ["task.source=null"] for key, values in settings)
    runnable = dict.fromkeys(
        cell
        for cell in runnable_cells(
            filter(is_stack, named.get("attention", ())), named.get("dataset", ()) if has_source else ()
        )
        if ("dataset" in named or not is_generated(cell[1]))
        and ("task" in named or cell[0] in indexed)
        and ("backbone" in named or cell[2] in TASKS.get(cell[0]).names)
    )
    choices = [
        named.get(group, list(dict.fromkeys(cell[i] for cell in runnable))) for i, group in enumerate(CELL_GROUPS)
    ]
    cells: dict[tuple[str, ...], None] = {}
    for names in itertools.product(*choices):
        if names in runnable:
            groups = dict(zip(CELL_GROUPS, names, strict=True))
            applicable = [alternatives for key, alternatives in settings if _applies(key, groups)]
            for options in itertools.product(*applicable):
                cells[(*(f"{group}={written(name)}" for group, name in groups.items()), *options)] = None
    return [list(cell) for cell in cells], _left_out(named, runnable, has_source=has_source)


def _left_out(named: Mapping[str, list[str]], runnable: Iterable[tuple[str, ...]], *, has_source: bool) -> list[str]:
    """Return the distinct reasons why combinations of named groups cannot run."""
    groups = [group for group in CELL_GROUPS if group in named]
    possible = {tuple(cell[CELL_GROUPS.index(group)] for group in groups) for cell in runnable}
    combinations = itertools.product(*(named[group] for group in groups))
    impossible = [dict(zip(groups, names, strict=True)) for names in combinations if names not in possible]
    return list(dict.fromkeys(why_not_runnable(names, has_source=has_source) for names in impossible))


def _applies(key: str, groups: Mapping[str, str]) -> bool:
    """Return whether an override such as ``attention.num_landmarks`` applies to a cell with these groups."""
    group, _, option = key.partition(".")
    if not option or group not in REGISTRIES:
        return True
    return REGISTRIES[group].get(groups[group]).has_option(option)


def _alternatives(override: Override) -> list[str]:
    """Return an override with a single value per value that it lists."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def prepare(data_set: DataSet, data_root: Path, overrides: Sequence[str] = ()) -> Iterator[str]:
    """Set up each task of a data set as in preset ``paper``, and yield the name of the task afterwards.

    This fills the cache with the tokens, features and resized images that tasks compute from the data set. Pass the
    overrides of the future runs, such as ``task.tokenizer=FOLDER`` or ``preset=mini``.
    """
    for task in (TASKS.get(name) for name in data_set.tasks):
        if data_set.name not in task.datasets:
            continue  # it belongs to a data set with another name
        backbone, patterns = next(iter(task.backbones.items()))
        cell = [f"task={task.name}", f"dataset={data_set.name}", f"backbone={backbone}", f"pattern={patterns[0]}"]
        preset = [] if any(override.startswith("preset=") for override in overrides) else ["preset=paper"]
        config = compose([*cell, "attention=vanilla", *preset, *overrides])
        Cell.from_config(config).task.setup(data_root)
        yield task.name


def explain(overrides: Sequence[str], *, added: Sequence[str] = ()) -> list[list[str]]:
    """Return name, value, default and source of each setting of one cell, in the order of its configuration.

    ``added`` are the overrides that were added because there was only one choice.
    """
    config = compose(overrides)
    check_without_data(Cell.from_config(config))
    with hydra_context():
        loader = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list("run", list(overrides), RunMode.RUN).defaults
    layers = [_settings_of_file(file.config_path, file.package or "") for file in files if file.config_path]
    cell = (config["task"]["name"], config["backbone"]["name"], config["pattern"])
    tuned = {
        f"attention.{prefix}{row['option']}": file
        for prefix, part in parts_of(ATTENTIONS.get(config["attention"]["name"])).items()
        for file, row in tuning_rows(*cell, part.name, preset=config["preset"])
    }
    overridden = {text.lstrip("+").partition("=")[0]: text in added for text in overrides}
    rows = []
    for name, value in flat(config).items():
        settings = [layer[name] for layer in layers if name in layer] or [(MISSING, "")]
        (default, origin), source = settings[0], settings[-1][1]
        if origin.startswith(OVERRIDING):
            default = MISSING
        elif len(settings) == 1:
            source = f"default of {origin}"
        if name in tuned:
            source = f"configs/{tuned[name]}"
        for key, is_added in overridden.items():
            if name in (key, f"{key}.name") or (key not in NAMED_GROUPS and name.startswith(f"{key}.")):
                source = "the only one of the task" if is_added else "command line"
        shown = "" if default == MISSING or _text(default) == _text(value) else _text(default)
        rows.append([name, _text(value), shown, source])
    return rows


def _settings_of_file(path: str, package: str) -> dict[str, tuple[Any, str]]:
    """Return value and source of each setting in a composed file, or in the options of a registered class."""
    group, _, name = path.partition("/")
    prefix = "" if package in ("", "_global_") else f"{package}."
    for folder in config_folders():
        file = folder / f"{path}.yaml"
        if file.is_file():
            source = str(Path(folder.name, f"{path}.yaml"))
            content = yaml.safe_load(file.read_text())
            usual = [choice for choice in content.pop("defaults", []) if isinstance(choice, dict)]
            names = {key: value for choice in usual for key, value in choice.items() if key.isidentifier()}
            content = {**{f"{key}.name": value for key, value in names.items()}, **names, **flat(content)}
            return {f"{prefix}{key}": (value, source) for key, value in content.items()}
    if group not in REGISTRIES:
        return {}
    entry = REGISTRIES[group].get(name)
    return {
        f"{group}.{prefix}{key}": (value, part.cls.__module__)
        for prefix, part in parts_of(entry).items()
        for key, value in part.options.items()
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
