"""Probes: accuracy of attentions by difficulty setting, as tables and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from cab.patterns import pattern_rank
from cab.reports import figures, palette
from cab.reports.inline_svg import inline_svg
from cab.reports.sections import Block
from cab.reports.tables import Column, Entry, Row, Table, element_id, plain
from cab.reports.task_sections import TaskSection

if TYPE_CHECKING:
    import pandas as pd

    from cab.records.record import Record

METRIC = "accuracy"
PROBE_PARAMS = {"pairs": "task", "distance": "task", "noise": "task", "embed_dim": "backbone"}
"""Settings on the horizontal axis of curves, and their group of the configuration."""
WORDS = {"pairs": "pairs", "distance": "distance, positions", "noise": "share of noise", "embed_dim": "width"}
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
    attention; accuracy, its standard deviation (NaN for a single seed), seeds; ``commonest``, accuracy of the most
    common answer.
    """
    import pandas as pd

    runs = runs[(runs["metric"] == METRIC) & runs["record"].notna()]
    facts = [{"other": _other(record), **_knobs(record), "commonest": _commonest(record)} for record in runs["record"]]
    settings = pd.DataFrame(facts, index=runs.index, columns=["other", *PROBE_PARAMS, "commonest"])
    rows = pd.concat([runs[[*_PLACE, "attention", "seed", "value"]], settings], axis=1)
    rows = rows.drop_duplicates([*_CELL, "seed"])
    table = rows.groupby(_CELL, dropna=False).agg(
        accuracy=("value", "mean"),
        deviation=("value", "std"),
        seeds=("seed", "nunique"),
        commonest=("commonest", "mean"),
    )
    return table.reset_index().sort_values(_CELL, key=lambda c: c.map(pattern_rank) if c.name == "pattern" else c)


def _knobs(record: Record) -> dict[str, float]:
    return {knob: float(record.config.get(group, {}).get(knob, math.nan)) for knob, group in PROBE_PARAMS.items()}


def _other(record: Record) -> str:
    """Return the settings that the runs of one curve share, as JSON."""
    shared = {group: record.config.get(group, {}) for group in ("task", "backbone", "trainer")}
    kept = {group: {k: v for k, v in options.items() if k not in PROBE_PARAMS} for group, options in shared.items()}
    return json.dumps(kept, sort_keys=True)


def _commonest(record: Record) -> float:
    value = record.baselines.get("commonest", {}).get(METRIC)
    return math.nan if value is None else float(value)


def capacity_curves(table: pd.DataFrame) -> Iterator[Curve]:
    """Yield the curves with an attention at two or more values of a setting, with all else equal."""
    for knob in PROBE_PARAMS:
        same = [column for column in _CELL if column not in (knob, "attention")]
        for key, points in table.groupby(same, sort=False, dropna=False):
            if points.groupby("attention")[knob].nunique().max() < 2:
                continue
            named = dict(zip(same, key, strict=True))
            held = [f"{WORDS[k].partition(',')[0]} {named[k]:g}" for k in PROBE_PARAMS if k != knob and named[k]]
            title = f"{named['pattern']}, {named['dataset']}: accuracy against {WORDS[knob]}; {', '.join(held)}"
            yield Curve(knob, title, points)


@figures.style()
def curve_figure(curve: Curve) -> Figure:
    """Draw the accuracy of each attention, with the most common answer as a dotted line."""
    names = sorted(curve.points["attention"].unique(), key=lambda name: (name != figures.REFERENCE, name))
    look = figures.looks(names)
    figure = Figure(figsize=(figures.WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    places = {value: place for place, value in enumerate(sorted(curve.points[curve.knob].unique()))}
    for name in names:
        own = curve.points[curve.points["attention"] == name].sort_values(curve.knob)
        (line,) = axes.plot(
            own[curve.knob].map(places),
            own["accuracy"],
            color=look[name].color,
            marker=look[name].marker,
            linestyle=look[name].line,
            markersize=3.6,
            linewidth=2.2 if name == figures.REFERENCE else 1.3,
            label=figures.short(name),
        )
        values = ", ".join(f"{value:g}: {y:.3f}" for value, y in own[[curve.knob, "accuracy"]].itertuples(index=False))
        figures.mark(line, name, f"{name}: {values}")
    axes.axhline(curve.points["commonest"].mean(), color=palette.MUTED, linewidth=0.9, linestyle=":")
    axes.set_ylim(0.0, 1.03)
    axes.set_xticks(list(places.values()), [f"{value:g}" for value in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(WORDS[curve.knob])
    axes.set_ylabel("accuracy")
    place, _, held = curve.title.partition(f": accuracy against {WORDS[curve.knob]}")
    axes.set_title(place + held)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def probe_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per pattern and probe with all settings, then one block per curve."""
    for number, ((preset, pattern, dataset), own) in enumerate(table.groupby(_PLACE, sort=False)):
        heading = f"Pattern {pattern}, {dataset}, preset {preset}"
        yield Block(heading, "", [], [_settings_table(own, f"probe-{number}", heading)])
    for number, curve in enumerate(capacity_curves(table)):
        svg = inline_svg(curve_figure(curve), name=f"probe-curve-{number}", title=curve.title)
        text = "The dotted line is the most common answer."
        shown = _curve_table(curve, f"probe-curve-{number}-table")
        yield Block(curve.title, text, [Markup(svg)], [shown])


def _settings_table(own: pd.DataFrame, name: str, caption: str) -> Table:
    columns = [
        Column("attention"),
        *(Column(WORDS[knob]) for knob in PROBE_PARAMS),
        Column("accuracy", "↑", "higher is better"),
    ]
    table = Table(element_id(name), f"{caption}: accuracy", [*columns, Column("seeds")], [])
    for row in own.to_dict("records"):
        spread = f"± {plain(row['deviation'], 3)}" if math.isfinite(row["deviation"]) else ""
        cells = [Entry(f"{row[knob]:g}", row[knob]) for knob in PROBE_PARAMS]
        cells += [Entry(plain(row["accuracy"], 3), row["accuracy"], spread), Entry(str(row["seeds"]), row["seeds"])]
        table.rows.append(Row(row["attention"], cells))
    return table


def _curve_table(curve: Curve, name: str) -> Table:
    values = sorted(curve.points[curve.knob].unique())
    table = Table(name, curve.title, [Column("attention"), *(Column(f"{value:g}") for value in values)], [])
    wide = curve.points.pivot(index="attention", columns=curve.knob, values="accuracy")
    for attention, found in wide.iterrows():
        cells = [
            Entry(plain(value, 3), value) if math.isfinite(value) else table.missing("no result at this setting")
            for value in found
        ]
        table.rows.append(Row(str(attention), cells))
    return table


SECTION = TaskSection(
    name="probes",
    title="Probes",
    summary="Synthetic tasks that test a single ability of an attention. Not included in the compositional index.",
    table=probe_table,
    blocks=probe_blocks,
    figures=lambda rows: ((f"probe-{curve.title}", curve_figure(curve)) for curve in capacity_curves(rows)),
    hidden=("other",),
)
