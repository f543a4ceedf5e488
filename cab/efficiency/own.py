"""Decode state and cost of a user's attention, measured after its runs of the suite and stored with its results."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path

from cab.efficiency.benchmark import measure_for_board
from cab.efficiency.cost import Cost, write_costs
from cab.efficiency.subjects import AttentionSubject
from cab.files.disk import replacing
from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.records.cost_sizes import LENGTH
from cab.records.record import Record
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.results.costs import GROWS, STATE, TOKENS, cost_name, cost_path, has_committed_cost, measure_state

log = logging.getLogger("cab")


def measure_state_of(record: Record) -> None:
    """Measure the decode state of the attention of a run in milliseconds, and store it; see :func:`can_measure`."""
    if record.cell["pattern"] == "CS" and can_measure(record) and not _path(record).exists():
        options = {key: value for key, value in record.config["attention"].items() if key != "name"}
        state = measure_state(ATTENTIONS.get(record.config["attention"]["name"]), options)
        size, growth = round(4 * state.numbers), GROWS if state.grows else ""
        _store(record, [Cost(cost_name(record.cell["attention"]), "CS", STATE, TOKENS, bytes=size, detail=growth)])


def measure_cost_of(record: Record) -> None:
    """Measure the cost of the attention of a run, once per code and pattern, and store it; see :func:`can_measure`."""
    earlier = list(read_csv(_path(record))) if _path(record).exists() else []
    if not can_measure(record) or any(row["phase"] == "forward" for row in earlier):
        return
    name, pattern = cost_name(record.cell["attention"]), Pattern.parse(str(record.cell["pattern"]))
    log.info("measuring the cost of %s in %s at %d tokens; --no-cost skips this", name, pattern, LENGTH)
    options = {key: value for key, value in record.config["attention"].items() if key != "name"}
    subject = AttentionSubject.parse(record.config["attention"]["name"])
    costs = measure_for_board(dataclasses.replace(subject, label=name, options=options), pattern)
    for cost in (cost for cost in costs if cost.kind == "attention" and cost.status != "ok"):
        reason = f"{cost.status} {cost.detail}".rstrip()
        log.warning("%s %s has no cost in phase %s: %s", cost.attention, pattern, cost.phase, reason)
    if any(cost.attention == "vanilla" and cost.status == "ok" for cost in costs):  # else repeat it
        states = [row for row in earlier if row["phase"] == STATE]
        kept = [Cost(name, "CS", STATE, TOKENS, bytes=int(row["bytes"]), detail=row["detail"]) for row in states]
        _store(record, [*kept, *costs])


def can_measure(record: Record) -> bool:
    """Return whether the attention of a run lacks a committed cost and its code is that of the run."""
    if has_committed_cost(record.cell["attention"], record.attention_code):
        return False
    name = record.config["attention"]["name"]
    is_same = code_of(ATTENTIONS.get(name).cls) == record.attention_code
    if not is_same:
        place = f"{cost_name(record.cell['attention'])} in {record.cell['pattern']}"
        log.warning("the cost of %s is not measured: its code has changed since the run", place)
    return is_same


def _path(record: Record) -> Path:
    names = record.cell["attention"], record.cell["pattern"], record.attention_code, record.earlier_code
    return cost_path(Path(record.config["results_dir"]), *names)


def _store(record: Record, costs: Iterable[Cost]) -> None:
    path = _path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        list(write_costs(costs, file))
