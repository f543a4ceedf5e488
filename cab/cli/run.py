"""`cab run`: one cell, or a sweep of cells with -m, composed by Hydra."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.terminal import log_to_terminal
from cab.cli.text_table import print_rows, text_table
from cab.errors import UserError, unknown_name
from cab.records.record import CELL, Record, Status
from cab.records.results import DEFAULT_DIR
from cab.records.verification_status import LEGEND, signed
from cab.runner.statuses import parse_retried

if TYPE_CHECKING:
    from cab.runner.report import Report


log = logging.getLogger("cab")

FLAGS = ("-m", "--multirun", "--dry-run", "--retry", "--cfg", "--explain", "--debug", "--help")
RESULTS_DIR = "results_dir="
ALWAYS_NAMED = ("attention", "seed")
"""What names a row of a table of runs, even where all rows have the same."""


def run(arguments: list[str]) -> int:
    """Run what the overrides say; 0 when every cell that can run has its record."""
    log_to_terminal(logging.INFO, "%(message)s", force=True)
    if "-h" in arguments or "--help" in arguments:
        from cab.cli.run_help import help_text

        print(help_text(arguments))
        return 0
    flags, overrides = _parse(arguments)
    if flags.retry and all(override.startswith(RESULTS_DIR) for override in overrides):
        return _retry(overrides, parse_retried(flags.retry))
    if flags.retry:  # a cell that was interrupted resumes in any case
        retried = [status for status in parse_retried(flags.retry) if status in tuple(Status)]
        overrides.append(f"retry=[{','.join(retried)}]")
    from cab.config.compose import check_overrides
    from cab.suite.overrides import suite_overrides

    suite = suite_overrides(overrides)
    if suite is not None:
        flags.multirun, overrides = True, suite

    named = overrides
    overrides = check_overrides(named, sweep=flags.multirun)
    from cab.runner.launch import composed_text, run_overrides  # imports torch: a mistyped name is answered before

    is_sweep = flags.multirun or flags.dry_run or not {"cluster=local", "cluster=slurm"}.isdisjoint(overrides)
    if (flags.cfg or flags.explain) and is_sweep:
        option = "--cfg" if flags.cfg else "--explain"
        raise UserError(f"{option} prints the configuration of one cell: leave out -m, --dry-run and cluster=")
    if flags.explain:
        _print_sources(overrides, added=[override for override in overrides if override not in named])
        return 0
    if flags.cfg:
        print(composed_text(overrides), end="")
        return 0
    report = _print_plan(overrides) if flags.dry_run else run_overrides(overrides, is_sweep=is_sweep)
    report.log_end()
    if not flags.dry_run:
        _print_records(report, is_sweep=is_sweep)
        if suite is not None:
            _print_standings(report)
    return report.exit_status


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the overrides between them; UserError for a flag that does not exist."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--retry")
    parser.add_argument("--cfg", choices=("job",))
    parser.add_argument("--explain", action="store_true")
    try:
        flags, overrides = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    for argument in overrides:
        if argument.startswith("-"):
            raise unknown_name("flag", argument.partition("=")[0], FLAGS)
    return flags, overrides


def _retry(overrides: Sequence[str], statuses: Sequence[str]) -> int:
    """Run the cells of a results folder that have one of the statuses again, and print the status of all."""
    from cab.cli.status import status_rows
    from cab.runner.launch import retry_cells  # imports torch

    results_dir = Path(overrides[-1].removeprefix(RESULTS_DIR)) if overrides else DEFAULT_DIR
    report = retry_cells(results_dir, statuses)
    report.log_end()
    print_rows(status_rows(results_dir), as_csv=False)
    return report.exit_status


def _print_sources(overrides: Sequence[str], *, added: Sequence[str]) -> None:
    from cab.runner.explain import explain

    settings = explain(overrides, added=added)
    header = ["setting", "value", "default", "from"]
    print(text_table(header, [[s.name, *s.texts, s.source] for s in settings], align="llll"))


def _print_plan(overrides: Sequence[str]) -> Report:
    from cab.runner.launch import jobs_of
    from cab.runner.plan import COLUMNS, plan
    from cab.runner.report import Report

    report = Report()
    with jobs_of(overrides, report, is_sweep=True) as jobs:
        print(text_table(COLUMNS, plan(jobs, report), align="rll"))
    return report


def _print_records(report: Report, *, is_sweep: bool) -> None:
    records = [outcome.record for outcome in report.outcomes if outcome.record is not None]
    if records:
        print(_sweep_tables(records) if is_sweep else _cell_table(records[0]))
        if any(record.verified is False for record in records):
            log.warning("%s", LEGEND)
    elif not report.failures and not report.outcomes:
        raise UserError(f"no cell can run: {'; '.join(dict.fromkeys(report.left_out)) or 'nothing was composed'}")


def _print_standings(report: Report) -> None:
    """Where the attentions that were run stand in the suite."""
    from cab.suite.standing import HEADER, standings

    records = [outcome.record for outcome in report.outcomes if outcome.record is not None]
    for standing in standings(records):
        print(f"\n{standing.attention} among {standing.others} attentions with records of the same cells")
        if standing.rows:
            print(text_table(HEADER, standing.rows, align="lrrrrllrl"))
        for line in standing.left_out:
            print(f"in no index: {line}")


def _cell_table(record: Record) -> str:
    """The metrics of one record, its baselines beside them."""
    names = list(record.baselines)
    rows = []
    for metric in record.metrics:
        values = [metric.value, *(record.baselines[name].get(metric.name) for name in names)]
        rows.append([metric.name, *map(_number, values), metric.unit])
    header = ["metric", _signed_name(record), *names, "unit"]
    return text_table(header, rows, align="l" * len(header))


def _sweep_tables(records: Sequence[Record]) -> str:
    """A table a task: each has metrics and baselines of its own."""
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record.cell["task"], []).append(record)
    return "\n\n".join(map(_task_table, tasks.values()))


def _task_table(records: Sequence[Record]) -> str:
    """A row a cell: what names it, its primary metrics, size and time. What is the same for all stands above, once."""
    names = list(dict.fromkeys(m.name for record in records for m in record.metrics if m.primary))
    baselines = {
        baseline: [_number(record.baselines.get(baseline, {}).get(names[0])) for record in records]
        for baseline in dict.fromkeys(name for record in records for name in record.baselines)
    }
    fixed = {name: values[0] for name, values in baselines.items() if len(set(values)) == 1}
    told_apart = [key for key in CELL if key in ALWAYS_NAMED or len({record.cell[key] for record in records}) > 1]
    varying = [name for name in baselines if name not in fixed]
    header = [*told_apart, *names, *(f"{name} {names[0]}" for name in varying), "params", "seconds"]
    rows = []
    for number, record in enumerate(records):
        metrics = {m.name: m.value for m in record.metrics}
        rows.append(
            [
                *(str(record.cell[key]) if key != "attention" else _signed_name(record) for key in told_apart),
                *(_number(metrics.get(name)) for name in names),
                *(baselines[name][number] for name in varying),
                "-" if record.cost.params is None else f"{record.cost.params:,}",
                "-" if record.cost.wall_seconds is None else f"{record.cost.wall_seconds:.0f}",
            ]
        )
    shared = " ".join(str(records[0].cell[key]) for key in CELL if key not in told_apart and records[0].cell[key])
    trivial = f"; {names[0]} of trivial answers: " + ", ".join(map(" ".join, fixed.items())) if fixed else ""
    align = "l" * len(told_apart) + "r" * (len(header) - len(told_apart))
    return f"{shared}{trivial}\n{text_table(header, rows, align=align)}"


def _signed_name(record: Record) -> str:
    return signed(record.cell["attention"], "no" if record.verified is False else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
