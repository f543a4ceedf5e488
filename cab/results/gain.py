"""K of an attention in a cell: the share of softmax's gain over no attention that it retains, in percent.

K is not averaged over cells, because each cell tests another ability. The verdict on a result compares K with 100, that
of softmax attention. All attentions of a cell with several seeds are one family (Holm's correction, 5%), except for the
anchors; those with tuned learning rates are another one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cab.records.record import Record
from cab.records.results import VERDICTS
from cab.results import cells
from cab.results.cells import ANCHORS, NO_ATTENTION, SOFTMAX, TUNED, own_runs, runs_of
from cab.results.runs import CELL, OWN, REFERENCE, by_cell, points_of, suite_runs, unscored
from cab.results.statistics import MARGIN, ORDER, Estimate, Verdict, compare_pairs, upper_bounds, weighted_sum

if TYPE_CHECKING:
    import pandas as pd

MATCHING = (Verdict.SOLVED, Verdict.EQUIVALENT, Verdict.BETTER)
SOLVED = 90.0
"""A seed has solved a cell if it retains at least this share."""
CEILING = 100 - MARGIN
"""K below this bound is a relevant loss."""
MIN_SEEDS = 5
"""Minimum number of seeds of an equivalent result: three that solve a cell are likely by chance."""


class Judged(NamedTuple):
    """The verdict on K of an attention in a cell.

    Attributes:
        total: mean of K with the variance over the attention's seeds and those of the anchors.
        bound: one-sided upper 95% bound of K, adjusted over the family; NaN for an anchor or with a single seed.
        verdict: on the attention compared with softmax attention; None for an anchor.
    """

    total: Estimate
    bound: float = math.nan
    verdict: Verdict | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of K over seeds; NaN for an anchor or with a single seed."""
        return self.total.interval() if self.verdict else (math.nan, math.nan)


def judged(points: Mapping[str, Sequence[float]]) -> dict[str, Judged]:
    """Return the verdict on each attention of a cell, from one family of recipes and one of tuned learning rates.

    ``worse`` requires the adjusted upper bound below :data:`CEILING`, ``better`` the adjusted lower bound above 102.

    Args:
        points: K of each seed by attention, the anchors included.
    """
    estimates = {name: Estimate.of(own) for name, own in points.items()}
    softmax, without = (estimates[name] for name in ANCHORS)
    found = {name: Judged(Estimate(k, 0.0, math.inf)) for name, k in ((SOFTMAX, 100.0), (NO_ATTENTION, 0.0))}
    for is_tuned in (False, True):
        family = {}
        for name in estimates:
            if name not in ANCHORS and name.endswith(TUNED) == is_tuned:  # the variance by the delta method
                share = estimates[name].value / 100
                total = weighted_sum([(1.0, estimates[name]), (share, softmax), (1 - share, without)])
                family[name] = dataclasses.replace(total, value=estimates[name].value)
        tested = {name: total for name, total in family.items() if len(points[name]) > 1}
        negated = {name: dataclasses.replace(total, value=-total.value) for name, total in tested.items()}
        above, below = upper_bounds(tested, CEILING), upper_bounds(negated, -100 - MARGIN)
        for name, total in family.items():
            upper, lower = above.get(name, math.nan), -below.get(name, math.nan)
            found[name] = Judged(total, upper, _verdict(points[name], total, lower, upper))
    return found


def _verdict(points: Sequence[float], total: Estimate, lower: float, upper: float) -> Verdict:
    if len(points) == 1:
        return Verdict.ONE_SEED
    if upper < CEILING:
        return Verdict.WORSE
    if lower > 100 + MARGIN:
        return Verdict.BETTER
    if len(points) >= MIN_SEEDS and len(set(points)) > 1 and total.is_within(MARGIN, center=100):
        return Verdict.EQUIVALENT
    return Verdict.SOLVED if min(points) >= CEILING else Verdict.UNDECIDED


GAINS = [
    *("task", "dataset", "backbone", "pattern", "ability", "core", "attention", "source", "seeds", "mean", "sd", "K"),
    *("low", "high", "bound", "solved", "verdict", "verified", "steps", "note", "unfinished", "diverged", "slots"),
]
RESULT = [*CELL, "source", "attention"]
"""Key of a row of the gains."""


def gains_frame(results: pd.DataFrame) -> pd.DataFrame:
    """Return K of every attention in every cell of the suite with runs in a table of :func:`cab.load_results`.

    Returns:
        Columns :data:`GAINS`. ``source`` is ``reference`` or ``own``; the anchors are among the reference results.
        ``mean`` and ``sd`` are those of the cell's metric, ``steps`` is the mean number of steps to solve the cell (NaN
        unless every seed did). ``verdict`` and ``bound`` are those of one family per cell, which each own attention
        joins alone. ``unfinished`` and ``diverged`` are numbers of seeds, ``slots`` is the remark on too few slots. A
        result without K has 0 seeds, NaN, and the reason in ``note``.
    """
    return gains_of(runs_in(results))


def runs_in(results: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`cab.results.runs.suite_runs` of a table of results, with the names of attentions in the table."""
    own = own_runs(results)
    return suite_runs(_named(runs_of(results).drop(own.index)), _named(own))


def _named(runs: pd.DataFrame) -> list[Record]:
    pairs = zip(runs["attention"], runs["record"], strict=True)
    return [dataclasses.replace(record, cell={**record.cell, "attention": name}) for name, record in pairs]


def gains_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return K of runs of the suite (:func:`cab.results.runs.suite_runs`); see :func:`gains_frame`."""
    import pandas as pd

    scored = runs[runs["reason"] == ""].assign(solved=runs["K"] >= SOLVED)
    gains = scored.groupby(RESULT, sort=False).agg(
        seeds=("K", "size"),
        mean=("value", statistics.fmean),
        sd=("value", _deviation),
        K=("K", statistics.fmean),
        solved=("solved", "sum"),
        verified=("verified", lambda verdicts: min(verdicts, key=VERDICTS.index)),
        steps=("steps", lambda steps: steps.mean(skipna=False)),
        unfinished=("unfinished", "sum"),
        slots=("slots", "max"),
    )
    gains["diverged"] = runs.groupby(RESULT)["diverged"].sum()  # also of seeds without a score
    gains = gains.join(_verdicts(scored))
    is_bound = (gains["unfinished"] > 0) & (gains["diverged"] == 0) & (gains["K"] <= CEILING)
    notes = {"unfinished": is_bound, "diverged": gains["diverged"] > 0, "few slots": gains["slots"] != ""}
    gains["note"] = [", ".join(itertools.compress(notes, flags)) for flags in zip(*notes.values(), strict=True)]
    lacking = unscored(runs).set_index(RESULT)
    lacking = lacking.loc[lacking.index.difference(gains.index, sort=False), ["reason"]].set_axis(["note"], axis=1)
    lacking[["seeds", "solved", "unfinished", "diverged"]] = 0
    lacking[["verdict", "verified", "slots"]] = ""
    table = pd.concat([gains, lacking]).reset_index()
    names = GAINS[: GAINS.index("attention")]
    places = pd.DataFrame([{name: getattr(cell, name) for name in names} for cell in cells.suite_cells()])
    table = table.merge(places.reset_index(names="place"), on=CELL)
    order = table["source"].map([REFERENCE, OWN].index)
    return table.assign(order=order).sort_values(["place", "order"], kind="stable", ignore_index=True)[GAINS]


def _deviation(values: pd.Series) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _verdicts(scored: pd.DataFrame) -> pd.DataFrame:
    """Return low, high, bound and verdict of each result; the reference results of a cell are one family."""
    import pandas as pd

    families: dict[tuple[str, ...], dict[str, dict[str, list[float]]]] = {}
    results = scored.groupby(RESULT, sort=False)["K"].agg(list).reset_index()
    for *cell, source, name, points in results.itertuples(index=False, name=None):
        families.setdefault(tuple(cell), {REFERENCE: {}, OWN: {}})[source][name] = points
    rows: list[tuple[Any, ...]] = []
    for place, sources in families.items():
        found = {(REFERENCE, name): each for name, each in judged(sources[REFERENCE]).items()}
        for name, points in sources[OWN].items():
            found[OWN, name] = judged({**sources[REFERENCE], name: points})[name]
        rows += [(*place, *key, *each.interval, each.bound, each.verdict or "") for key, each in found.items()]
    return pd.DataFrame(rows, columns=[*RESULT, "low", "high", "bound", "verdict"]).set_index(RESULT)


def gains_order(results: pd.DataFrame) -> pd.DataFrame:
    """Compare K of every two attentions in a cell, the larger K first.

    Returns:
        Columns pattern, task, backbone, and those of :func:`cab.results.statistics.compare_pairs`; one family per cell.
    """
    import pandas as pd

    rows = []
    for cell, runs in by_cell(runs_in(results)):
        names = runs["attention"] + runs["source"].map({REFERENCE: "", OWN: " (yours)"})
        estimates = {name: Estimate.of(points) for name, points in points_of(runs.assign(attention=names)).items()}
        ranked = dict(sorted(estimates.items(), key=lambda item: -item[1].value))
        rows += [(cell.pattern, cell.task, cell.backbone, *row) for row in compare_pairs(ranked)]
    return pd.DataFrame(rows, columns=["pattern", "task", "backbone", *ORDER])
