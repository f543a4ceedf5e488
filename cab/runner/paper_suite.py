"""Sweeps of Table 3, `cab run suite=paper`.

The cells are those of results/paper/results.csv. Each runs on the data sets and variants that its published value
averages (results/paper/parts.csv), in LSTF with the repetitions of configs/paper/lstf.csv.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cab.errors import UserError, unknown_name
from cab.patterns import LONG_NAMES
from cab.registry.names import SYNTHETIC
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import presets, read_table
from cab.results.published import Table3Value, table3

CHOOSING_GROUPS = ("pattern", "task", "backbone", "dataset", "attention")
"""Groups that select cells of the table."""
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
                place = cell.pattern, cell.task, cell.backbone, dataset, variant
                sweeps.setdefault(place, {})[cell.attention] = None
    return [
        [
            *(
                f"{key}={name}"
                for key, name in zip(CHOOSING_GROUPS, (*place[:4], ",".join(map(written, attentions))), strict=True)
            ),
            *([f"task.features={place[4]}"] if place[4] else []),
            *([] if "seed" in values else [f"seed={_seeds(place[3], place[4], preset)}"]),
            f"preset={preset}",
            *others,
        ]
        for place, attentions in sweeps.items()
    ]


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
