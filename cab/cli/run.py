"""`cab run`: train one configuration, or a sweep with -m, composed by Hydra."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import yaml

from cab.cli.run_help import help_text
from cab.cli.score import print_verdict
from cab.cli.status import print_statuses
from cab.cli.terminal import log_to_terminal, unknown_flag
from cab.config.hydra_options import refusal, replacement
from cab.data.sources import data_sets
from cab.errors import SYNONYMS, UserError, nearest_name, optional
from cab.files.disk import sanitize_text, user_path
from cab.files.text_table import text_table
from cab.records.identity import distinctions
from cab.records.record import CELL, Record, Status
from cab.records.verified import UNVERIFIED_LEGEND, mark_unverified, verified_codes, verified_state
from cab.registry.tables import ADDED, PRESETS, config_folders, read_rows, run_defaults
from cab.results.costs import cost_name
from cab.results.verdict import cost_texts, frame_of
from cab.runner.cell import Cell
from cab.runner.folder import parse_retried
from cab.runner.processes import find_processes
from cab.runner.suite import SUITES, requests_tuning, suite_sweeps, tuned_sweeps

if TYPE_CHECKING:
    from cab.runner.report import Report


log = logging.getLogger("cab")

RESULTS_DIR = "results_dir="
ALWAYS_NAMED = ("attention", "seed")
"""Columns that a table of runs always has, even if all values are equal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags, without the overrides, which Hydra parses."""
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--retry")
    parser.add_argument("-c", "--cfg")
    parser.add_argument("--config", type=user_path)
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--no-cost", action="store_true")


def run(arguments: list[str]) -> int:
    """Run the configurations that the overrides name; return 0 if every one that can run has its result."""
    processes = find_processes()
    log_to_terminal(logging.INFO if processes.is_first else logging.ERROR, "%(message)s", force=True)
    if "-h" in arguments or "--help" in arguments:
        print(help_text(arguments))
        return 0
    flags, overrides = _parse(arguments)
    from cab.config.files import mistakes_with_files  # imports hydra

    with _added_configs(flags.config_dir), mistakes_with_files(overrides, flags.config):
        return _run(flags, overrides)


def _run(flags: argparse.Namespace, overrides: list[str]) -> int:
    """Run the configurations of the overrides, or print what the flags request."""
    flags.dry_run = flags.dry_run or flags.calibrate
    logging.getLogger("engines").setLevel(logging.DEBUG if flags.verbose else logging.NOTSET)
    if flags.retry:  # an interrupted run resumes in any case
        statuses = parse_retried(flags.retry)
        if all(override.startswith(RESULTS_DIR) for override in overrides):
            return _retry(overrides, statuses)
        overrides.append(f"retry=[{','.join(status for status in statuses if status in tuple(Status))}]")
    if flags.config or any("experiment=" in override for override in overrides):
        from cab.config.files import with_files

        overrides = with_files(overrides, flags.config)
    suite, tunes = suite_sweeps(overrides), requests_tuning(overrides)
    if tunes and suite is None:
        raise UserError("tune=true chooses learning rates for the cells of a suite; add suite=core")
    flags.multirun = flags.multirun or suite is not None
    from cab.config.compose import check_overrides, compose
    from cab.files.cache import report_waiting

    sweeps = [check_overrides(of_sweep, sweep=flags.multirun) for of_sweep in (suite or [overrides])]
    is_sweep = flags.multirun or not {"cluster=local", "cluster=slurm"}.isdisjoint(sweeps[0])
    _note_preset(sweeps)
    if (flags.cfg or flags.explain) and (flags.multirun or flags.dry_run):
        option = "--cfg" if flags.cfg else "--explain"
        raise UserError(f"{option} prints one configuration: remove -m, suite= and --dry-run")
    if flags.cfg:
        config = compose(sweeps[0])
        cell = Cell.from_config(config)  # refuses what a run refuses
        if config["preset"] not in PRESETS or any(override.startswith("task.") for override in sweeps[0]):
            _ = cell.task  # its options may contradict each other; imports torch
        print(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), end="")
        return 0
    with report_waiting("importing torch"):
        from cab.runner.launch import explain, run_sweeps  # report mistyped names first

    if flags.explain:
        settings = explain(sweeps[0], added=sweeps[0][len(overrides) :])
        print(text_table(["setting", "value", "default", "source"], settings, align="l"))
        return 0
    if tunes:
        if flags.dry_run:
            raise UserError("--dry-run cannot plan tune=true, whose final runs depend on its grid; remove tune=true")
        sweeps = tuned_sweeps(sweeps)
    is_table = "suite=paper" in overrides
    if flags.dry_run:
        is_summary = is_table and not flags.verbose
        report = _print_plan(sweeps, is_sweep=is_sweep, is_summary=is_summary, calibrates=flags.calibrate)
    else:
        report = run_sweeps(sweeps, is_sweep=is_sweep)
    report.log_end()
    if not flags.dry_run:
        records = [outcome.record for outcome in report.outcomes if outcome.record is not None]
        _print_records(records, report, is_sweep=is_sweep)
        if suite is not None and not is_table:
            frame = frame_of(records)
            for name in dict.fromkeys(str(record.cell["attention"]) for record in records):
                print_verdict(name, frame)
            is_on_login_node = "cluster=slurm" in overrides
            _print_costs(records, measures=not flags.no_cost and not is_on_login_node)
    return report.exit_status


@contextlib.contextmanager
def _added_configs(folder: str | None) -> Iterator[None]:
    """Add a folder of configurations inside the block, if there is one, also for the processes that it starts."""
    if folder is None:
        yield
        return
    earlier = os.environ.get(ADDED)
    try:
        _set_added(folder)
        yield
    finally:
        _set_added(earlier)


def _set_added(folder: str | None) -> None:
    from cab.config.compose import groups_with_files  # imports hydra

    os.environ.pop(ADDED, None)
    if folder is not None:
        os.environ[ADDED] = folder
    for read in (config_folders, read_rows, groups_with_files, data_sets):  # all that depend on the folders
        read.cache_clear()


def _note_preset(sweeps: Iterable[Sequence[str]]) -> None:
    """Log that preset mini is used on a published data set, if no preset is named."""
    from cab.config.compose import names_in  # imports hydra

    for overrides in sweeps:
        values = dict(override.split("=", 1) for override in overrides)
        datasets = names_in(f"dataset={values['dataset']}") if "dataset" in values else []
        if "preset" not in values and not data_sets().keys().isdisjoint(datasets or data_sets()):
            log.warning("preset mini, the default, is not comparable with the paper; its settings are preset=paper")
            return


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split flags from overrides; raise UserError for an unknown flag, and for a suite without a name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_arguments(parser)
    for name in (argument.partition("=")[0] for argument in arguments if argument.startswith("-")):
        if replacement(name):
            raise refusal(name)
    try:
        flags, overrides = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    if flags.cfg not in (None, "job"):
        raise refusal(f"--cfg {flags.cfg}") if replacement(f"--cfg {flags.cfg}") else UserError("write --cfg job")
    for index, argument in enumerate(overrides):
        if argument.startswith("-"):
            flag, _, value = argument.partition("=")
            _refuse_key(flag.lstrip("-"), value or next(iter(overrides[index + 1 :]), "VALUE"))
            names = [name for action in parser._actions for name in action.option_strings]
            raise unknown_flag(flag, [*names, "--debug", "--help"])
    if "suite" in overrides:
        raise UserError(f"'suite' has no value; write `suite=NAME` ({', '.join(SUITES)})")
    return flags, overrides


def _refuse_key(flag: str, value: str) -> None:
    """Raise UserError if an unknown flag has the name of an option, which is written without hyphens."""
    from cab.config.compose import option_names

    key, names = flag.replace("-", "_"), ["suite", *option_names()]
    option = key if key in names else nearest_name(key, [name for name in names if "." in name])
    if option and (option == key or option.rpartition(".")[2] == SYNONYMS.get(key, key)):
        raise UserError(f"cab run has no flag '--{flag}'; write `{option}={value}`")


def _retry(overrides: Sequence[str], statuses: Sequence[str]) -> int:
    """Rerun the runs of a results folder that have one of the statuses, and print the status of all."""
    from cab.runner.launch import retry_cells  # imports torch

    results_dir = user_path(overrides[-1].removeprefix(RESULTS_DIR) if overrides else run_defaults()["results_dir"])
    report = retry_cells(results_dir, statuses)
    if report.expected == 0:
        log.info("nothing to retry: no run in %s is %s", results_dir, " or ".join(statuses))
    report.log_end()
    print_statuses(results_dir, as_csv=False)
    return report.exit_status


def _print_costs(records: Iterable[Record], *, measures: bool) -> None:
    """Print state and cost of each attention and pattern, each when it is known; measure those that are not."""
    from cab.efficiency.benchmark import measure_cost_of, measure_state_of

    finished = [record for record in records if record.status is Status.FINISHED]
    subjects = {(cost_name(run.cell["attention"]), run.cell["pattern"], run.attention_code): run for run in finished}
    for subject, record in subjects.items():
        name, pattern, _ = subject
        with optional(f"the cost of {name}"):
            folders, target = [user_path(record.config["results_dir"])], record.config["attention"]["name"]
            texts = functools.partial(cost_texts, *subject, folders, target=target, earlier=record.earlier_code)
            if measures:
                measure_state_of(record)
            *state, _ = texts()
            print(
                "\n".join([f"\n{sanitize_text(name)}, pattern {pattern}", *(f"  {line}" for line in state)]), flush=True
            )
            if measures:
                measure_cost_of(record)
            print(f"  {sanitize_text(texts()[-1])}", flush=True)


def _print_plan(sweeps: Sequence[Sequence[str]], *, is_sweep: bool, is_summary: bool, calibrates: bool) -> Report:
    """Print every run with its time, or one row per task and data set; then the totals and what Slurm would get."""
    from cab.config.run_config import SlurmConfig, parse_cluster
    from cab.runner.launch import jobs_of
    from cab.runner.plan import (
        PLAN_COLUMNS,
        SUMMARY_COLUMNS,
        calibrated,
        plan_context,
        plan_notes,
        plan_rows,
        planned_runs,
        summary_rows,
    )
    from cab.runner.report import Report
    from cab.runner.slurm import job_script
    from cab.runner.slurm_request import REQUEST_COLUMNS, by_request, request_row

    report = Report(raises=not is_sweep)
    jobs = list(jobs_of(sweeps, report, is_sweep=is_sweep))
    runs = planned_runs(jobs, report)
    runs = calibrated(runs) if calibrates else runs
    cluster = parse_cluster(jobs[0].config["cluster"]) if runs else None
    slurm = cluster if isinstance(cluster, SlurmConfig) else SlurmConfig()
    if is_summary:
        print(text_table(SUMMARY_COLUMNS, summary_rows(runs), align="llllrrrr"))
    else:
        print(text_table(PLAN_COLUMNS, plan_rows(runs), align="rll"))
    if runs:
        print("\n".join([*plan_context(runs), *plan_notes(runs, slurm)]))
    if slurm is cluster:
        requests = by_request([run.cell for run in runs if not run.status], lambda cell: cell, slurm)
        print("\n" + text_table(REQUEST_COLUMNS, [request_row(*request) for request in requests], align="lrrrrr"))
        for request, cells in requests:
            print("\n" + job_script(request, user_path(jobs[0].config["results_dir"]), len(cells)))
    return report


def _print_records(records: Sequence[Record], report: Report, *, is_sweep: bool) -> None:
    """Print the metrics of one record, or one table per task: each has its own metrics and baselines."""
    if records:
        tasks: dict[str, list[Record]] = {}
        for record in records:
            tasks.setdefault(str(record.cell["task"]), []).append(record)
        print("\n\n".join(map(_task_table, tasks.values())) if is_sweep else _cell_table(records[0]))
        if any(verified_state(record, verified_codes()) == "no" for record in records):
            log.warning("%s", UNVERIFIED_LEGEND)
    elif report.expected == 0 and not report.failures:
        raise UserError(f"nothing can run: {'; '.join(dict.fromkeys(report.left_out)) or 'no configuration'}")


def _cell_table(record: Record) -> str:
    """Format the metrics of one record next to its trivial baselines."""
    rows = []
    for metric in record.metrics:
        values = [metric.value, *(baseline.get(metric.name) for baseline in record.baselines.values())]
        rows.append([metric.name, *map(_number, values), metric.unit])
    return text_table(["metric", _signed_name(record), *record.baselines, "unit"], rows, align="l")


def _task_table(records: Sequence[Record]) -> str:
    """Format one row per run: its name, primary metrics, size and time; values shared by all rows go into the title."""
    metrics = list(dict.fromkeys(m.name for record in records for m in record.metrics if m.primary))
    columns: dict[str, list[str]] = {key: [str(record.cell[key]) for record in records] for key in CELL}
    shared = [key for key in CELL if key not in ALWAYS_NAMED and len(set(columns[key])) == 1]
    title = " ".join(columns.pop(key)[0] for key in shared if records[0].cell[key])
    columns = {key: texts for key, texts in columns.items() if key not in shared}
    settings = distinctions([(list(record.cell.values()), record.config, record.changed) for record in records])
    if any(settings):
        columns["settings"] = settings
    align = "l" * len(columns) + "r"
    columns["attention"] = [_signed_name(record) for record in records]
    for name in metrics:
        columns[name] = [_number({m.name: m.value for m in record.metrics}.get(name)) for record in records]
    trivial = []
    for name in dict.fromkeys(name for record in records for name in record.baselines):
        values = [_number(record.baselines.get(name, {}).get(metrics[0])) for record in records]
        if len(set(values)) == 1:
            trivial.append(f"{name} {values[0]}")
        else:
            columns[f"{name} {metrics[0]}"] = values
    for name, cost, style in (("params", "params", ","), ("seconds", "wall_seconds", ".0f")):
        costs = [getattr(record.cost, cost) for record in records]
        columns[name] = ["-" if value is None else f"{value:{style}}" for value in costs]
    title += f"; {metrics[0]} of trivial baselines: {', '.join(trivial)}" if trivial else ""
    return f"{title}\n{text_table(list(columns), list(zip(*columns.values(), strict=True)), align=align)}"


def _signed_name(record: Record) -> str:
    return mark_unverified(str(record.cell["attention"]), verified_state(record, verified_codes()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
