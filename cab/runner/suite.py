"""Sweeps of the suites, `cab run suite=core`, and learning rates that are chosen with `tune=true`.

With `tune=true`, each cell is trained with a third of its learning rate, the rate itself and three times the rate, on a
seed of its own. The rate that solves the cell in the fewest steps is chosen, or the one with the lowest validation loss
if none solves it. The scored runs use other seeds, and their records contain the grid.

The cells of `cab run suite=paper` are those of results/paper/results.csv. Each runs on the data sets and variants that
its published value averages (results/paper/parts.csv), in LSTF with the repetitions of configs/paper/lstf.csv.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cab.errors import UserError, unknown_name
from cab.patterns import LONG_NAMES
from cab.records.record import Record, Status
from cab.registry.names import SYNTHETIC
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import presets, read_table, run_defaults
from cab.results.cells import PRESET, SuiteCell, suite_cells
from cab.results.published import Table3Value, table3

log = logging.getLogger("cab")

SUITES = ("core", "mini", "paper")
"""The cells that a score requires, all cells of the small suite, and those of Table 3."""
CHOSEN_PARTS = ("task", "backbone", "pattern")
"""Groups that select cells of a suite."""
RATE_FACTORS = (1 / 3, 1.0, 3.0)
"""Learning rates of the grid, relative to that of the cell."""
SEED = 1000
"""Seed of the runs of the grid, which no scored run can have."""
TUNING_FOLDER = "tuning"
"""Folder in ``results_dir`` with the records of the grid."""


def suite_sweeps(overrides: Sequence[str]) -> list[list[str]] | None:
    """Expand ``suite=NAME`` among the overrides to one sweep per cell; return None if it is not among them."""
    values = dict(override.partition("=")[::2] for override in overrides)
    if "suite" not in values:
        return None
    suite = values["suite"]
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    if suite == "paper":
        return paper_sweeps(values, _without(overrides, "suite", "preset", *CHOOSING_GROUPS))
    for key in sorted(values.keys() & {"dataset", "preset"}):
        raise UserError(f"suite={suite} sets the {key}; remove {key}=")
    if "attention" not in values:
        raise UserError(f"suite={suite} requires attention=NAME, which `cab run {' '.join(overrides)}` lacks")
    others = _without(overrides, "suite", "tune", *CHOSEN_PARTS)
    others += [] if "seed" in values else ["seed=1,2,3"]
    cells = _chosen(suite, {name: values[name] for name in CHOSEN_PARTS if name in values})
    names = (*CHOSEN_PARTS, "dataset")
    selections = [[f"{name}={getattr(cell, name)}" for name in names] for cell in cells]
    return [
        [*selection, f"preset={PRESET}", *cell.options.split(), *others]
        for selection, cell in zip(selections, cells, strict=True)
    ]


def _chosen(suite: str, named: dict[str, str]) -> list[SuiteCell]:
    """Return the cells of a suite whose task, backbone and pattern are among those in ``named``."""
    cells = [cell for cell in suite_cells() if cell.core or suite != "core"]
    for group, text in named.items():
        names = [LONG_NAMES.get(name, name) for name in text.split(",")]
        available = list(dict.fromkeys(getattr(cell, group) for cell in cells))
        for name in names:
            if name not in available:
                raise unknown_name(f"{group} of suite={suite}", name, available)
        cells = [cell for cell in cells if getattr(cell, group) in names]
    return cells


def requests_tuning(overrides: Sequence[str]) -> bool:
    """Return whether ``tune=true`` is among the overrides."""
    values = [override.partition("=")[2] for override in overrides if override.partition("=")[0] == "tune"]
    if set(values) - {"true", "false"}:
        raise UserError(f"tune must be true or false, got '{values[-1]}'; for example tune=true")
    return values[-1:] == ["true"]


def tuned_sweeps(sweeps: Sequence[Sequence[str]]) -> list[list[str]]:
    """Train the grid of each cell and attention of the sweeps, and return the sweeps with the chosen rates."""
    from cab.config.compose import compose
    from cab.config.files import value_text
    from cab.runner.launch import expand, run_sweeps  # imports torch

    singles = [single for sweep in sweeps for single in _singles(sweep)]
    tuned = [single for single in singles if not expand(single)[0]]  # their reasons are reported with the scored runs
    singles = [single for single in singles if single not in tuned]
    grids = []
    for single in singles:
        others = _without(single, "seed", "results_dir")
        rate = compose([*others, f"seed={SEED}"])["trainer"]["learning_rate"]
        rates = ",".join(f"{rate * factor:.6g}" for factor in RATE_FACTORS)
        folder = Path(_value(single, "results_dir") or run_defaults()["results_dir"]) / TUNING_FOLDER
        grids.append([*others, f"trainer.learning_rate={rates}", f"seed={SEED}", f"results_dir={folder}"])
    records = [outcome.record for outcome in run_sweeps(grids).outcomes if outcome.record is not None]
    for single in singles:
        grid = [_row(record) for record in records if _is_of(record, single)]
        if not any(row["status"] == Status.FINISHED for row in grid):
            log.warning("no run of the grid finished: %s", " ".join(single))
            continue
        tuning = value_text({"seed": SEED, "grid": grid})
        tuned.append([*single, f"trainer.learning_rate={chosen_rate(grid)}", f"tuning={tuning}"])
    return tuned


def chosen_rate(grid: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate that solves the cell first, or else the one with the lowest validation loss."""
    finished = [row for row in grid if row["status"] == Status.FINISHED]
    best = min(finished, key=lambda row: (row["steps_to_solve"] or math.inf, row["validation"]))
    return float(best["learning_rate"])


def _singles(sweep: Sequence[str]) -> list[list[str]]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for override in OverridesParser.create().parse_overrides(list(sweep)):
        if override.is_sweep_override() and override.key_or_group not in ("attention", "seed"):
            raise UserError(f"tune=true requires a single value of {override.key_or_group}")
    if str(SEED) in _value(sweep, "seed").split(","):
        raise UserError(f"seed {SEED} is that of the grid of tune=true; choose another seed")
    from cab.config.compose import names_in, written

    names = map(written, names_in(f"attention={_value(sweep, 'attention')}"))
    return [[*_without(sweep, "attention"), f"attention={name}"] for name in names]


def _value(overrides: Sequence[str], key: str) -> str:
    values = dict(override.partition("=")[::2] for override in overrides)
    return values.get(key, "")


def _without(overrides: Sequence[str], *keys: str) -> list[str]:
    return [override for override in overrides if override.partition("=")[0] not in keys]


def _is_of(record: Record, single: Sequence[str]) -> bool:
    from cab.config.compose import written

    names = {key: written(record.config[key]["name"]) for key in ("task", "backbone", "attention")}
    return all(_value(single, key) == name for key, name in {**names, "pattern": record.config["pattern"]}.items())


def _row(record: Record) -> dict[str, Any]:
    losses = [entry["validation"] for entry in record.history if entry["validation"] is not None]
    return {
        "learning_rate": record.config["trainer"]["learning_rate"],
        "status": str(record.status),
        "validation": min(losses, default=None),
        "steps_to_solve": record.cost.steps_to_solve,
    }


# --- Table 3 ----------------------------------------------------------------------------------------------------------

CHOOSING_GROUPS = ("pattern", "task", "backbone", "dataset", "attention")
"""Groups that select cells of Table 3."""
REHEARSED_SEEDS = "1,2"
"""Seeds of a cell in all presets but `paper`."""


def paper_sweeps(values: Mapping[str, str], others: Sequence[str]) -> list[list[str]]:
    """Return the sweeps of the selected cells of Table 3, one per pattern, task, backbone, data set and variant.

    An attention that is not in the table runs in all cells of its patterns. With ``dataset=synthetic``, generated data
    replace the published ones, each variant once: a rehearsal.

    Args:
        values: overrides by key; :data:`CHOOSING_GROUPS` select, ``preset`` is `paper` by default.
        others: overrides of all runs with other keys.
    """
    from cab.config.compose import names_in, written  # imports Hydra

    preset = values.get("preset", "paper")
    if preset not in presets():
        raise unknown_name("preset", preset, presets())
    datasets = values["dataset"].split(",") if "dataset" in values else []
    sweeps: dict[tuple[str, ...], dict[str, None]] = {}
    for cell in _selected({key: names_in(f"{key}={values[key]}") for key in CHOOSING_GROUPS if key in values}):
        for dataset, variant in cell.parts:
            if SYNTHETIC in datasets:
                dataset = SYNTHETIC
            if not datasets or dataset in datasets:
                attentions = sweeps.setdefault((cell.pattern, cell.task, cell.backbone, dataset, variant), {})
                attentions[cell.attention] = None
    paper = []
    for (*place, variant), attentions in sweeps.items():
        names = (*place, ",".join(map(written, attentions)))
        chosen = [f"{key}={name}" for key, name in zip(CHOOSING_GROUPS, names, strict=True)]
        chosen += [f"task.features={variant}"] if variant else []
        chosen += [] if "seed" in values else [f"seed={_seeds(place[-1], variant, preset)}"]
        paper.append([*chosen, f"preset={preset}", *others])
    return paper


def _selected(named: Mapping[str, Sequence[str]]) -> list[Table3Value]:
    """Return the cells of Table 3 with these names, and those of attentions that it does not have."""
    cells = list(table3())
    for group, names in named.items():
        names = [LONG_NAMES.get(name, name) for name in names]
        if group == "attention":
            cells = list(dict.fromkeys(cell for name in names for cell in _cells_of(name, cells)))
            continue
        of_group = {cell: _names(cell, group) for cell in cells}
        known = {SYNTHETIC: None} if group == "dataset" else {}
        known |= dict.fromkeys(name for cell in table3() for name in _names(cell, group))
        for name in names:
            if name not in known:
                raise unknown_name(f"{group} of suite=paper", name, known)
        cells = [cell for cell in cells if SYNTHETIC in names or not of_group[cell].isdisjoint(names)]
    if not cells:
        shown = " ".join(f"{group}={','.join(names)}" for group, names in named.items())
        raise UserError(f"Table 3 has no cell with {shown}; see `cab paper table3`")
    return cells


def _names(cell: Table3Value, group: str) -> set[str]:
    return {dataset for dataset, _ in cell.parts} if group == "dataset" else {getattr(cell, group)}


def _cells_of(attention: str, cells: Iterable[Table3Value]) -> list[Table3Value]:
    """Return the cells of an attention; one that is not in the table has all cells of its patterns."""
    if any(cell.attention == attention for cell in table3()):
        return [cell for cell in cells if cell.attention == attention]
    patterns = set(map(str, ATTENTIONS.get(attention).patterns))
    places = dict.fromkeys(cell._replace(attention=attention) for cell in cells)
    return [cell for cell in places if cell.pattern in patterns]


def _seeds(dataset: str, variant: str, preset: str) -> str:
    """Return the seeds of a cell: in LSTF the repetitions of Appendix D, of which the paper reports no others."""
    if preset != "paper":
        return REHEARSED_SEEDS
    repeats = [row["repeats"] for row in read_table("lstf") if (row["dataset"], row["features"]) == (dataset, variant)]
    return ",".join(str(number + 1) for number in range(int(repeats[0]) if repeats else 1))
