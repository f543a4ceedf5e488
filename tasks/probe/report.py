"""Probes: accuracy of attentions by difficulty setting, and horizon of states, as tables and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.figure import Figure

from cab.patterns import pattern_rank
from cab.results import figures
from cab.results.formats import TableCell, mean, numbers
from cab.results.sections import Block, Picture, TaskSection
from cab.results.summarize import summarize
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd

SCORE, STATE_METRIC = "accuracy", "horizon"
PROBE_PARAMS = {"pairs": "task", "distance": "task", "noise": "task", "embed_dim": "backbone"}
"""Settings on the horizontal axis of curves, and their group of the configuration."""
AXIS_TEXTS = {"pairs": "pairs", "distance": "distance, positions", "noise": "share of noise", "embed_dim": "width"}
_PLACE = ["preset", "pattern", "dataset"]
_CELL = [*_PLACE, "other", *PROBE_PARAMS, "attention"]


class Curve(NamedTuple):
    """Accuracy by the setting ``knob``: ``points`` has the columns of :func:`probe_table`, with all else equal."""

    knob: str
    title: str
    points: pd.DataFrame


def probe_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per probe, setting and attention over ``runs``.

    Columns preset, pattern, dataset, other (remaining settings, as JSON), the settings of :data:`PROBE_PARAMS`,
    attention; accuracy, its standard deviation (NaN for a single seed), horizon and its deviation (NaN but for state
    tracking), seeds; ``commonest``, accuracy of the most common answer.
    """
    import pandas as pd

    horizons = dict(runs.loc[runs["metric"] == STATE_METRIC, ["file", "value"]].itertuples(index=False, name=None))
    runs = runs[(runs["metric"] == SCORE) & (runs["hash"] != "")]
    facts = [_settings(*run) for run in runs[["config", "baselines"]].itertuples(index=False, name=None)]
    settings = pd.DataFrame(facts, index=runs.index, columns=["other", *PROBE_PARAMS, "commonest"])
    rows = runs.join(settings).assign(**{STATE_METRIC: runs["file"].map(horizons)})
    rows = rows.drop_duplicates([*_CELL, "seed"])
    table, horizon, commonest = (summarize(rows, _CELL, value=name) for name in ("value", STATE_METRIC, "commonest"))
    table = table.rename(columns={"mean": SCORE, "sd": "deviation"})[[*_CELL, SCORE, "deviation", "seeds"]]
    table.insert(len(_CELL) + 2, STATE_METRIC, horizon["mean"])
    table.insert(len(_CELL) + 3, "horizon_deviation", horizon["sd"])
    table["commonest"] = commonest["mean"]
    return table.sort_values(_CELL, key=lambda c: c.map(pattern_rank) if c.name == "pattern" else c)


def _settings(config: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the settings of a run: those that the runs of one curve share as JSON, and those of an axis."""
    groups = {group: config.get(group, {}) for group in ("task", "backbone", "trainer")}
    knobs = {knob: float(groups[group].get(knob, math.nan)) for knob, group in PROBE_PARAMS.items()}
    kept = {group: {k: v for k, v in options.items() if k not in PROBE_PARAMS} for group, options in groups.items()}
    commonest = baselines.get("commonest", {}).get(SCORE)
    return {
        "other": json.dumps(kept, sort_keys=True),
        **knobs,
        "commonest": math.nan if commonest is None else commonest,
    }


def capacity_curves(table: pd.DataFrame) -> Iterator[Curve]:
    """Yield the curves with an attention at two or more values of a setting, with all else equal."""
    for knob in PROBE_PARAMS:
        same = [column for column in _CELL if column not in (knob, "attention")]
        for key, points in table.groupby(same, sort=False, dropna=False):
            if points.groupby("attention")[knob].nunique().max() < 2:
                continue
            named = dict(zip(same, key, strict=True))
            held = [f"{AXIS_TEXTS[k].partition(',')[0]} {named[k]:g}" for k in PROBE_PARAMS if k != knob and named[k]]
            title = f"{named['pattern']}, {named['dataset']}: accuracy against {AXIS_TEXTS[knob]}; {', '.join(held)}"
            yield Curve(knob, title, points)


@figures.style()
def curve_figure(curve: Curve) -> Figure:
    """Draw the accuracy of each attention, with the most common answer as a dotted line."""
    names = figures.reference_first(curve.points["attention"])
    look = figures.looks(names)
    figure = Figure(figsize=(figures.FIGURE_WIDTH, 2.7))
    axes = figure.subplots()
    values = sorted(curve.points[curve.knob].unique())
    wide = curve.points.pivot(index=curve.knob, columns="attention", values="accuracy").reindex(values)
    for name in names:
        accuracy = wide[name].reset_index(drop=True).dropna()
        axes.plot(accuracy, markersize=3.6, label=figures.short(name), **look[name])
    axes.axhline(curve.points["commonest"].mean(), color=figures.MUTED, linewidth=0.9, linestyle=":")
    axes.set_ylim(0.0, 1.03)
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set_xlabel(AXIS_TEXTS[curve.knob])
    axes.set_ylabel("accuracy")
    axes.set_title(curve.title.replace(f": accuracy against {AXIS_TEXTS[curve.knob]}", "", 1))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def probe_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per pattern and probe with all settings, then one block per curve."""
    for number, ((preset, pattern, dataset), rows) in enumerate(table.groupby(_PLACE, sort=False)):
        heading = f"Pattern {pattern}, {dataset}, preset {preset}"
        yield Block(heading, tables=[_settings_table(rows, f"probe-{number}", heading)])
    for curve in capacity_curves(table):
        picture = Picture(curve_figure(curve), curve.title, f"probe-{curve.title}")
        yield Block(curve.title, "The dotted line is the most common answer.", [picture])


def _settings_table(rows: pd.DataFrame, table_id: str, caption: str) -> Table:
    is_state = rows[STATE_METRIC].notna().any()
    knobs = [knob for knob, group in PROBE_PARAMS.items() if not is_state or group != "task"]
    scores = {STATE_METRIC: "horizon_deviation"} if is_state else {}
    columns = [
        *(Column(AXIS_TEXTS[knob], [TableCell(f"{value:g}", value) for value in rows[knob]]) for knob in knobs),
        *(
            Column(score, list(map(mean, rows[score], rows[deviation])), "higher")
            for score, deviation in {**scores, SCORE: "deviation"}.items()
        ),
        Column("seeds", numbers(rows["seeds"], 0)),
    ]
    metrics = " and ".join((*scores, SCORE))
    return Table([*map(Row, rows["attention"])], columns, caption=f"{caption}: {metrics}", id=table_id)


SECTION = TaskSection(
    name="probes",
    title="Probes",
    summary="Synthetic tasks that test a single ability of an attention. Not included in the compositional index.",
    table=probe_table,
    blocks=probe_blocks,
    hidden=("other",),
)
