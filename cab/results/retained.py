"""K of an attention in a cell: the share of softmax's gain over no attention that it retains, in percent.

K of a run is 100 (s - N) / (V - N), with the metric s on the cell's scale and the means V and N of the frozen anchors
``vanilla`` and ``none``. K is not averaged over cells, because each cell tests another ability. The verdict on a result
compares K with 100, that of softmax attention. All attentions of a cell with several seeds are one family (Holm's
correction, 5%), except for the anchors; those with tuned learning rates are another one.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cab.errors import UserError
from cab.files.disk import listed
from cab.results import cells
from cab.results.cells import ANCHORS, NO_ATTENTION, SOFTMAX, TUNED, SuiteCell
from cab.results.load import EMPTY_ROW, FRAME_COLUMNS, FROZEN, OWN, REFERENCE_SOURCE, K, kind_of_data, metrics_of
from cab.results.statistics import (
    EQUIVALENCE_MARGIN,
    ORDER,
    Estimate,
    Verdict,
    compare_pairs,
    upper_bounds,
    weighted_sum,
)
from cab.results.summarize import summarize, without_score

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("cab")

CELL_KEY = ["task", "backbone", "pattern"]
RESULT = [*CELL_KEY, "source", "attention"]
"""Key of a row of the gains."""
GAINS = [
    *("task", "dataset", "backbone", "pattern", "ability", "core", "attention", "source", "seeds", "mean", "sd", "K"),
    *("low", "high", "bound", "reached_90", "verdict", "verified", "steps", "note", "unfinished", "diverged", "slots"),
]
MATCHING = (Verdict.SOLVED, Verdict.EQUIVALENT, Verdict.BETTER)
REACHED = 90.0
"""K of a seed that counts in column ``reached_90``."""
CEILING = 100 - EQUIVALENCE_MARGIN
"""K below this bound is a relevant loss."""
MIN_SEEDS = 5
"""Minimum number of seeds of an equivalent result: three that solve a cell are likely by chance."""


# --- runs -------------------------------------------------------------------------------------------------------------


def suite_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run of a cell of the suite, and the frozen anchors of each cell with a run on their data.

    Returns:
        The rows of the frame with the metric of the cell, in the order of the cells. ``reason`` is why a run has no K.

    Raises:
        UserError: two runs of one attention and seed have different values.
    """
    import pandas as pd

    metrics = {cell.key: cell.metric for cell in cells.suite_cells()}
    rows = metrics_of(frame[frame["score"] == K])
    wanted = [metrics[key] for key in zip(*(rows[name] for name in CELL_KEY), strict=True)]
    rows = rows[rows["metric"] == pd.Series(wanted, index=rows.index, dtype=object)]
    scored = rows[rows["reason"] == ""]
    key = [*CELL_KEY, "source", "attention", "seed"]
    values = scored.groupby(key)["value"].nunique(dropna=False)
    if (values > 1).any():
        of_seed = scored.set_index(key).loc[[values.index[values > 1][0]]].reset_index()
        one, other = of_seed.drop_duplicates("value").head(2).to_dict("records")
        raise UserError(
            f"two results of {one['attention']} with seed {one['seed']} in {' '.join(one[name] for name in CELL_KEY)} "
            f"({one['hash']} and {other['hash']}); remove one, or move it to another folder"
        )
    rows = rows.drop(index=scored.index[scored.duplicated(key)])
    is_known = rows["reason"].isin(["", FROZEN])
    with_anchors = set(zip(*(rows.loc[is_known, name] for name in CELL_KEY), strict=True))
    parts = [_anchors(cell) for cell in cells.suite_cells() if cell.key in with_anchors]
    together = pd.concat([*parts, rows]) if parts else rows
    order = {cell.key: number for number, cell in enumerate(cells.suite_cells())}
    ranks = [order[key] for key in zip(*(together[name] for name in CELL_KEY), strict=True)]
    ranked = together.assign(_rank=ranks, _own=together["source"] == OWN)
    return ranked.sort_values(["_rank", "_own"], kind="stable", ignore_index=True)[list(FRAME_COLUMNS)]


def _anchors(cell: SuiteCell) -> pd.DataFrame:
    """Return the runs of the frozen anchors of a cell, as rows of the frame."""
    import pandas as pd

    anchors = cells.read_anchors()[cell.key]
    about = {**EMPTY_ROW, **dict(zip(CELL_KEY, cell.key, strict=True)), "dataset": cell.dataset, "preset": cells.PRESET}
    about |= {"source": REFERENCE_SOURCE, "metric": cell.metric, "score": K, "verified": "yes", "status": ""}
    about |= {"data": kind_of_data(cell.dataset, cells.PRESET)}
    rows = []
    for name in ANCHORS:
        steps = [*anchors.steps.get(name, []), *[math.nan] * len(anchors.test[name])]
        for seed, value in enumerate(anchors.test[name], start=1):
            numbers = {"value": value, "K": cell.retained(anchors, value), "steps": steps[seed - 1]}
            rows.append({**about, "attention": name, "label": name, "seed": seed, **numbers})
    return pd.DataFrame(rows, columns=list(FRAME_COLUMNS))


def by_cell(runs: pd.DataFrame) -> Iterator[tuple[SuiteCell, pd.DataFrame]]:
    """Yield every cell of the suite with its runs, or rows of another frame with the columns :data:`CELL_KEY`."""
    parts: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(CELL_KEY)))
    yield from ((cell, parts.get(cell.key, runs[:0])) for cell in cells.suite_cells())


def points_of(runs: pd.DataFrame) -> dict[str, list[float]]:
    """Return K of the runs with a score of one cell and source, by attention."""
    scored = runs[runs["reason"] == ""]
    return {str(name): own["K"].to_list() for name, own in scored.groupby("attention", sort=False)}


def unscored(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the last row without a score of each result, except for seeds of the same program with another score."""
    program = runs["program"].where(runs["source"] == OWN, "")  # reference results of any code are one program
    keys = [
        *(runs[name] for name in (*CELL_KEY, "source", "label", "seed")),
        program,
    ]  # other settings have another name
    is_scored = (runs["reason"] == "").groupby(keys, dropna=False).transform("any")
    names = runs["attention"].where(runs["source"] == OWN, runs["label"])
    return runs[~is_scored & ~names.isin(ANCHORS)].drop_duplicates(RESULT, keep="last")


def warn_unscored(runs: pd.DataFrame) -> None:
    """Name the attentions with a seed without a score, and the reasons, per cell."""
    for cell, rows in by_cell(unscored(runs).sort_values("attention")):
        if reasons := [f"{row.attention} ({row.reason})" for row in rows.itertuples()]:
            log.warning("not scored in %s: %s", cell, listed(reasons, shown=5))


def baselines_of(runs: pd.DataFrame, metric: str) -> dict[str, float]:
    """Return the values of the trivial baselines in the runs of one cell, which depend on its data only."""
    rows = runs.loc[runs["reason"].isin(["", FROZEN]) & runs["baselines"].notna(), "baselines"]
    values = {name: metrics.get(metric) for baselines in rows for name, metrics in baselines.items()}
    return {name: value for name, value in values.items() if value is not None}


# --- verdicts ---------------------------------------------------------------------------------------------------------


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
        above, below = upper_bounds(tested, CEILING), upper_bounds(negated, -100 - EQUIVALENCE_MARGIN)
        for name, total in family.items():
            upper, lower = above.get(name, math.nan), -below.get(name, math.nan)
            found[name] = Judged(total, upper, _verdict(points[name], total, lower, upper))
    return found


def _verdict(points: Sequence[float], total: Estimate, lower: float, upper: float) -> Verdict:
    if len(points) == 1:
        return Verdict.ONE_SEED
    if upper < CEILING:
        return Verdict.WORSE
    if lower > 100 + EQUIVALENCE_MARGIN:
        return Verdict.BETTER
    if len(points) >= MIN_SEEDS and len(set(points)) > 1 and total.is_within(EQUIVALENCE_MARGIN, center=100):
        return Verdict.EQUIVALENT
    return Verdict.SOLVED if min(points) >= CEILING else Verdict.UNDECIDED


# --- gains ------------------------------------------------------------------------------------------------------------


def gains_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return K of every attention in every cell of the suite with runs in a frame.

    Returns:
        Columns :data:`GAINS`. ``source`` is ``reference`` or ``own``; the anchors are among the reference results.
        ``mean`` and ``sd`` are those of the cell's metric, ``steps`` is the mean number of steps to solve the cell (NaN
        unless every seed did), ``reached_90`` the number of seeds with K of at least 90. ``verdict`` and ``bound`` are
        those of one family per cell, which each own attention joins alone. ``unfinished`` and ``diverged`` are numbers
        of seeds, ``slots`` is the remark on too few slots. A result without K, of which a seed failed or no seed has a
        score, has 0 seeds, NaN, and the reason in ``note``.
    """
    return gains_of(suite_runs(frame))


def gains_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return K of runs of the suite (:func:`suite_runs`); see :func:`gains_table`."""
    import pandas as pd

    runs, failed = _without_failed(runs)
    scored = runs[runs["reason"] == ""]
    means = summarize(scored, RESULT).set_index(RESULT)
    groups = scored.assign(reached_90=scored["K"] >= REACHED).groupby(RESULT, sort=False)
    gains = groups.agg(
        reached_90=("reached_90", "sum"), unfinished=("unfinished", "sum"), slots=("slots", "max"), _of=("seed", "size")
    )
    gains = gains.join(means[["seeds", "mean", "sd", "verified"]])
    gains["K"] = summarize(scored, RESULT, value="K").set_index(RESULT)["mean"]
    steps = summarize(scored, RESULT, value="steps").set_index(RESULT)
    gains["steps"] = steps["mean"].where(steps["seeds"] == gains["_of"])
    gains["diverged"] = runs.groupby(RESULT)["diverged"].sum().reindex(gains.index)  # also of seeds without a score
    gains = gains.drop(columns="_of").join(_verdicts(scored))
    is_bound = (gains["unfinished"] > 0) & (gains["diverged"] == 0) & (gains["K"] <= CEILING)
    notes = {"unfinished": is_bound, "diverged": gains["diverged"] > 0, "few slots": gains["slots"] != ""}
    gains["note"] = [", ".join(itertools.compress(notes, flags)) for flags in zip(*notes.values(), strict=True)]
    lacking = pd.concat([unscored(runs).set_index(RESULT)["reason"], failed])
    lacking = lacking[lacking.index.difference(gains.index, sort=False)].to_frame("note")
    lacking[["seeds", "reached_90", "unfinished", "diverged"]] = 0
    lacking[["verdict", "verified", "slots"]] = ""
    table = pd.concat([gains, lacking]).rename_axis(RESULT).reset_index() if len(gains) else lacking.reset_index()
    names = GAINS[: GAINS.index("attention")]
    places = pd.DataFrame([{name: getattr(cell, name) for name in names} for cell in cells.suite_cells()])
    table = table.merge(places.reset_index(names="_place"), on=CELL_KEY)
    table = table.assign(_own=table["source"] == OWN)
    table = table.sort_values(["_place", "_own"], kind="stable", ignore_index=True).reindex(columns=GAINS)
    return table.astype(dict.fromkeys(("seeds", "reached_90", "unfinished", "diverged"), int))


def _without_failed(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return the runs of results none of whose seeds failed, and why the other results have no K.

    A seed with another score did not fail.
    """
    import pandas as pd

    result, is_scored = [runs[name] for name in RESULT], runs["reason"] == ""
    is_failed = runs["reason"].str.fullmatch(r"seed \d+ (is|has no valid) \w+")
    is_failed &= ~is_scored.groupby([*result, runs["seed"]]).transform("any")
    is_partial = is_failed.groupby(result).transform("any") & is_scored.groupby(result).transform("any")
    reasons = {}
    for key, of in runs[is_partial].groupby(RESULT, sort=False):
        failed = of[is_failed[of.index]]
        reasons[key] = without_score(failed["seed"].nunique(), of["seed"].nunique(), failed["status"])
    index = pd.MultiIndex.from_tuples(reasons, names=RESULT)
    return runs[~is_partial], pd.Series(list(reasons.values()), index=index, dtype=object)


def _verdicts(scored: pd.DataFrame) -> pd.DataFrame:
    """Return low, high, bound and verdict of each result; the reference results of a cell are one family."""
    import pandas as pd

    families: dict[tuple[str, ...], dict[str, dict[str, list[float]]]] = {}
    results = scored.groupby(RESULT, sort=False)["K"].agg(list).reset_index()
    for *cell, source, name, points in results.itertuples(index=False, name=None):
        families.setdefault(tuple(cell), {REFERENCE_SOURCE: {}, OWN: {}})[source][name] = points
    rows: list[tuple[Any, ...]] = []
    for place, sources in families.items():
        found = {(REFERENCE_SOURCE, name): each for name, each in judged(sources[REFERENCE_SOURCE]).items()}
        for name, points in sources[OWN].items():
            found[OWN, name] = judged({**sources[REFERENCE_SOURCE], name: points})[name]
        rows += [(*place, *key, *each.interval, each.bound, each.verdict or "") for key, each in found.items()]
    return pd.DataFrame(rows, columns=[*RESULT, "low", "high", "bound", "verdict"]).set_index(RESULT)


def gains_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare K of every two attentions in a cell, the larger K first.

    Returns:
        Columns pattern, task, backbone, and those of :func:`cab.results.statistics.compare_pairs`; one family per cell.
    """
    import pandas as pd

    rows = []
    for cell, runs in by_cell(suite_runs(frame)):
        names = runs["attention"] + runs["source"].map({REFERENCE_SOURCE: "", OWN: " (yours)"})
        estimates = {name: Estimate.of(points) for name, points in points_of(runs.assign(attention=names)).items()}
        ranked = dict(sorted(estimates.items(), key=lambda item: -item[1].value))
        rows += [(cell.pattern, cell.task, cell.backbone, *row) for row in compare_pairs(ranked)]
    return pd.DataFrame(rows, columns=["pattern", "task", "backbone", *ORDER])
