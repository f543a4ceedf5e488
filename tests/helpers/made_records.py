"""Records, and rows of results, for the tests of what is made from them."""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cab.metric import Metric
from cab.records.identity import Program, hash_of, settings
from cab.records.names import installed_code
from cab.records.record import CELL, Record, RunCost, RunMetadata, records_in
from cab.results.cells import read_anchors, settings_of_run, suite_cells
from cab.results.load import FRAME_COLUMNS, PUBLISHED, rows_of

MADE = ("command", "hardware", "config", "hash", "data", "attention_code", "program", "verified", "started")
Row = dict[str, Any]
COST = RunCost(params=1_000_003, train_seconds=75.5, peak_memory_bytes=3 * 2**29, steps=40)


def number(*names: object) -> float:
    """A number between 1 and 2 that depends on the names alone."""
    return 1 + zlib.crc32(repr(names).encode()) % 9973 / 9973


def make_about(**changes: Any) -> RunMetadata:
    """What a record says whatever became of its run; ``changes`` go to the cell or the config, or replace parts."""
    cell = {"task": "lstf", "dataset": "etth1", "config_variant": "multivariate", "backbone": "informer"}
    cell |= {"pattern": "NC", "attention": "vanilla", "preset": "mini", "seed": 0}
    parts = {name: changes.pop(name) for name in MADE if name in changes}
    cell |= changes
    config = make_config(cell)
    for name, value in (*suite_options(cell).items(), *parts.pop("config", {}).items()):
        config[name] = {**config.get(name, {}), **value} if isinstance(value, Mapping) else value
    parts.setdefault("verified", True)
    name = str(cell["attention"]).partition("(")[0]
    code = parts.setdefault("attention_code", installed_code(name) or f"code of {name}")
    changed = {**settings(config), "config_variant": cell["config_variant"]}
    about = {
        "hash": hash_of(changed),
        "changed": changed,
        "program": Program({"made": code}, {"made.project": "feed"}),
        "cell": cell,
        "task_version": 1,
        "config": config,
        "engine": "torch",
        "command": f"cab run attention={cell['attention']} seed={cell['seed']}",
        "versions": {"python": "3.11.7"},
        "revision": {"commit": "0123456789abcdef0123", "dirty": False},
        "hardware": {"device": "cpu", "cores": 2},
        "data": {"fingerprint": "feed"},
        "started": "2026-11-20T12:00:00+00:00",
    }
    return RunMetadata(**(about | parts))


def make_config(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that has the names of ``cell``."""
    named = {name: {"name": cell[name]} for name in ("task", "dataset", "backbone")}
    shown = re.fullmatch(r"(.+)\((\w+=[^()]*)\)", str(cell["attention"]))
    attention = {"name": shown[1] if shown else cell["attention"]}
    attention |= dict(text.split("=", 1) for text in shown[2].split(", ")) if shown else {}
    values = {name: cell[name] for name in ("pattern", "preset", "seed", "config_variant")}
    return {**named, **values, "attention": attention, "trainer": {}, "engine": "torch"}


def suite_options(cell: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options that make it a cell of the suite, if it is one."""
    groups: dict[str, dict[str, Any]] = {}
    anchors = read_anchors()
    for each in suite_cells():
        if (*each.key, each.dataset) == tuple(cell[name] for name in ("task", "backbone", "pattern", "dataset")):
            settings = settings_of_run(anchors[each.key].run) if each.key in anchors else {}
            for option in each.options.split() if settings else ():
                group, _, name = option.partition("=")[0].partition(".")
                groups.setdefault(group, {})[name] = settings[f"{group}.{name}"]
    return groups


def make_record(
    metrics: Mapping[str, float | None] | Sequence[Metric],
    *,
    unscored: Collection[str] = (),
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    cost: RunCost = COST,
    **changes: Any,
) -> Record:
    """The record of a finished run with these metrics, those of ``unscored`` not primary; ``changes`` as above."""
    if isinstance(metrics, Mapping):
        metrics = [make_metric(name, value, primary=name not in unscored) for name, value in metrics.items()]
    return Record.finished(
        make_about(**changes), metrics=metrics, baselines=baselines or {}, history=[], cost=cost, engine_facts={}
    )


def make_metric(name: str, value: float | None, *, primary: bool = True) -> Metric:
    higher = name.startswith(("acc", "f_score", "psnr", "ssim", "rouge"))
    return Metric(name, "dB" if name == "f_score" else "", higher_is_better=higher, primary=primary).measured(value)


def bundled(folder: Path, **cell: Any) -> Record:
    """The first record of a committed set whose cell has these values."""
    return next(record for _, record in records_in(folder, []) if cell.items() <= record.cell.items())


def result(value: float, attention: str = "vanilla", metric: str = "mse", seed: int = 0, **changes: Any) -> Row:
    """One row of results, as it is made from a record; ``changes`` are values of the cell, or of other columns."""
    cell = {"config_variant": "M", "attention": attention, "seed": seed}
    record = make_record({metric: value}, **cell | {name: changes[name] for name in CELL if name in changes})
    [row] = rows_of([(Path(f"{'-'.join(map(str, record.cell.values()))}.json"), record)])
    source = {"source": PUBLISHED} if changes.get("preset") == PUBLISHED else {}
    return {**dict(zip(FRAME_COLUMNS, row, strict=True)), "value": value, **source, **changes}


def mine(values: Mapping[str, float | list[float]], metric: str = "mse", **changes: Any) -> list[Row]:
    """Results of a task that Table 3 does not have: a value of each attention, or one per seed."""
    seeds = {name: of if isinstance(of, list) else [of] for name, of in values.items()}
    changes = {"task": "mine", **changes}
    return [result(v, name, metric, seed, **changes) for name, of in seeds.items() for seed, v in enumerate(of)]


def table(*rows: Row) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(FRAME_COLUMNS))


def index_of(
    scores: pd.DataFrame, attention: str, task: str = "all", pattern: str = "NC", column: str = "index"
) -> float:
    rows = scores[(scores["attention"] == attention) & (scores["task"] == task) & (scores["pattern"] == pattern)]
    return float(rows[column].item())
