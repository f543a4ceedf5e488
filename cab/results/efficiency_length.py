"""Efficiency length: the sequence length above which an attention is cheaper than softmax attention (Appendix G, N)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cab.errors import unknown_name
from cab.files.numbers import SMALLEST_FLOAT
from cab.files.text_table import counted
from cab.results.normalization import SOFTMAX_VARIANTS
from cab.results.statistics import student_quantile

if TYPE_CHECKING:
    import pandas as pd

LENGTH_COLUMNS = ["attention", "pattern", "phase", "resource", "length", "r2", "low", "high"]
PROTOCOLS = ("default", "paper")
NEVER, ALWAYS = math.inf, 0.0  # lengths of an attention that is cheaper at none, or at every one
RESOURCES = {"time": "seconds", "memory": "bytes"}
DRAWS = 1000  # bootstrap samples
Growth = Callable[[np.ndarray], np.ndarray]
_GROWTHS: dict[str, list[Growth]] = {
    "1": [np.ones_like],
    "log n": [np.ones_like, np.log2],
    "n": [np.ones_like, lambda n: n],
    "n log n": [np.ones_like, lambda n: n, lambda n: n * np.log2(n)],
    "n sqrt n": [np.ones_like, lambda n: n, lambda n: n * np.sqrt(n)],
    "n^2": [np.ones_like, lambda n: n, lambda n: n * n],
}
"""Terms of the cost model for each complexity."""


def efficiency_length(costs: pd.DataFrame, *, protocol: str = "default", baseline: str = "vanilla") -> pd.DataFrame:
    """Return the efficiency length of every attention, pattern, phase and resource relative to ``baseline``.

    Protocol ``paper`` is that of Appendix N: the larger intersection of a parabola for the baseline and a straight line
    for the other attention, both by least squares, without a confidence interval. For time, the line omits the shortest
    length. Length and R2 are rounded as published.

    Protocol ``default`` fits sums with non-negative coefficients, of 1, n and n^2 for the baseline, and of 1, n and the
    term of its complexity for another attention, by least squares of relative errors. The result is the last length at
    which the difference changes sign. ``low`` and ``high`` bound a 95% confidence interval by bootstrap of the relative
    residuals of each curve, expanded for their small number; NaN if a curve has no residual degrees of freedom.

    Args:
        costs: table returned by :func:`cab.results.costs.load_costs`; rows without a value (out of memory) are ignored,
            and only rows of one setting are compared.
        baseline: ``vanilla`` (fused), or ``eager``, which materializes the attention weights, as in the paper.

    Returns:
        Columns attention, pattern, phase, resource (``time``, ``memory``), length, r2, low, high, setting, note. Length
        infinity means never cheaper and 0 always cheaper; NaN means that the data are insufficient, with the reason in
        ``note``. The note also reports a length outside the measured range, and measurements that contradict it.
    """
    import pandas as pd

    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if baseline not in set(costs["attention"]):
        raise unknown_name("baseline", baseline, set(costs["attention"]))
    rows: list[tuple[object, ...]] = []
    costs = costs.assign(setting=costs.get("setting", ""))
    for (setting, pattern, phase), measured in costs.groupby(["setting", "pattern", "phase"], sort=False):
        for resource, column in RESOURCES.items():
            curves = dict(iter(measured.dropna(subset=[column]).groupby("attention")))
            for attention in measured["attention"].unique():
                if attention == baseline or (attention in SOFTMAX_VARIANTS and protocol == "paper"):
                    continue
                key = (str(attention), str(pattern), str(phase), resource)
                if lacking := [name for name in (baseline, attention) if name not in curves]:
                    *numbers, note = _unknown(f"no {resource} measured for {lacking[0]}")
                    rows.append((*key, *numbers, setting, note))
                    continue
                ours, theirs = (_points(curves[name], column) for name in (attention, baseline))
                if protocol == "paper":
                    *numbers, note = published_length(ours, theirs, resource=resource)
                else:
                    *numbers, note = _compare(ours, theirs, str(curves[attention]["complexity"].iloc[0]), key)
                notes = [note, _measured(numbers[0], ours, theirs)]
                rows.append((*key, *numbers, setting, "; ".join(filter(None, notes))))
    return pd.DataFrame(rows, columns=[*LENGTH_COLUMNS, "setting", "note"])


Points = tuple[np.ndarray, np.ndarray]
"""Lengths and costs."""
Answer = tuple[float, float, float, float, str]
"""Length, r2, low, high, note."""


def _points(curve: pd.DataFrame, column: str) -> Points:
    curve = curve.sort_values("length")
    costs = curve[column].where(curve[column] >= SMALLEST_FLOAT, 0.0)  # quotients of smaller ones overflow
    return curve["length"].to_numpy(float), costs.to_numpy(float)


def _unknown(note: str) -> Answer:
    return math.nan, math.nan, math.nan, math.nan, note


def published_length(ours: Points, theirs: Points, *, resource: str) -> Answer:
    """Return the efficiency length of one method by protocol ``paper``; ``theirs`` is the curve of the baseline."""
    lengths, costs = ours
    if resource == "time":
        longer = lengths > lengths.min()
        lengths, costs = lengths[longer], costs[longer]
    if len(set(lengths)) < 2 or len(set(theirs[0])) < 3:
        return _unknown("insufficient lengths: the line requires 2 (3 for time), the parabola 3")
    slope, offset = np.polyfit(lengths, costs, 1)
    a, b, c = np.polyfit(*theirs, 2)
    r2 = math.floor(_r2(costs, slope * lengths + offset) * 1000 + 1e-9) / 1000  # truncated despite rounding errors
    if a <= 0:
        return math.nan, r2, math.nan, math.nan, "undefined: the fitted parabola of the baseline is concave"
    discriminant = (b - slope) ** 2 - 4 * a * (c - offset)
    if discriminant < 0:
        return ALWAYS, r2, math.nan, math.nan, "the fitted curves do not intersect"
    crossing = (slope - b + math.sqrt(discriminant)) / (2 * a)
    return max(round(crossing), ALWAYS), r2, math.nan, math.nan, _outside(crossing, lengths)


def _r2(values: np.ndarray, fitted: np.ndarray) -> float:
    """Return 1 - residual / total sum of squares, or 1 for a constant that is fitted exactly."""
    total = float(((values - values.mean()) ** 2).sum())
    residual = float(((values - fitted) ** 2).sum())
    return 1 - residual / total if total > 0 else float(residual <= 1e-12 * float((values**2).sum()))


def _compare(ours: Points, theirs: Points, complexity: str, key: tuple[str, ...]) -> Answer:
    if complexity not in _GROWTHS:
        raise unknown_name("complexity", complexity, _GROWTHS)
    models = (_GROWTHS[complexity], _GROWTHS["n^2"])
    for (lengths, _), terms in zip((ours, theirs), models, strict=True):
        if len(set(lengths)) <= len(terms):  # no residual to judge the fit by
            return _unknown(
                f"undetermined: {counted(len(set(lengths)), 'measured length')}; measure at least {len(terms) + 1}"
            )
    fit, baseline = (Fit(*points, terms) for points, terms in zip((ours, theirs), models, strict=True))
    length = float(_last_crossing(fit, baseline, fit.coefficients, baseline.coefficients)[0])
    low = high = math.nan
    if min(fit.degrees, baseline.degrees) > 0:
        random = np.random.default_rng(zlib.crc32(repr(key).encode()))
        lengths = _last_crossing(fit, baseline, fit.redrawn(random), baseline.redrawn(random))
        low, high = np.quantile(lengths, [0.025, 0.975], method="inverted_cdf")
    if (low, high) == (ALWAYS, NEVER):
        return math.nan, fit.r2, ALWAYS, NEVER, "undetermined: measure more lengths or repeats"
    return length, fit.r2, float(low), float(high), _outside(length, ours[0])


class Fit:
    """A cost modeled as a non-negative combination of ``terms``, fitted by least squares of relative errors."""

    def __init__(self, lengths: np.ndarray, costs: np.ndarray, terms: Sequence[Growth]) -> None:
        self.terms = terms
        positive = costs[costs > 0]
        self._scale = np.where(costs > 0, costs, positive.min() if len(positive) else 1.0)
        self._design = self.design(lengths) / self._scale[:, None]
        self.coefficients = _fit(self._design, (costs / self._scale)[:, None])
        self._relative = self._design @ self.coefficients[:, 0]
        self._residuals = costs / self._scale - self._relative
        self.degrees = len(costs) - int((self.coefficients > 0).sum())
        self.r2 = _r2(costs, self._relative * self._scale)

    def design(self, lengths: np.ndarray) -> np.ndarray:
        """Return the values of all terms, [lengths, terms]."""
        return np.stack([term(lengths) for term in self.terms], axis=1)

    def redrawn(self, random: np.random.Generator) -> np.ndarray:
        """Return coefficients [terms, DRAWS] of fits to bootstrap samples of the costs."""
        size = len(self._residuals)
        wider = math.sqrt(size / self.degrees) * student_quantile(self.degrees) / student_quantile(math.inf)
        drawn = self._residuals[random.integers(size, size=(size, DRAWS))]
        return _fit(self._design, self._relative[:, None] + wider * drawn)


def _fit(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    from scipy import optimize

    norms = np.sqrt((design**2).sum(axis=0))
    return np.stack([optimize.nnls(design / norms, target)[0] / norms for target in targets.T], axis=1)


_GRID = 2.0 ** np.arange(0, 40.125, 0.125)


def _last_crossing(fit: Fit, baseline: Fit, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the length above which ``fit`` is below ``baseline``, per column of coefficients [terms, columns]."""
    not_cheaper = baseline.design(_GRID) @ theirs <= fit.design(_GRID) @ ours
    last = len(_GRID) - 1 - not_cheaper[::-1].argmax(axis=0)
    low = np.log2(_GRID[last])
    high = np.minimum(low + 0.125, math.log2(_GRID[-1]))
    for _ in range(40):
        middle = (low + high) / 2
        cost = [(model.design(2**middle) * c.T).sum(axis=1) for model, c in ((fit, ours), (baseline, theirs))]
        below = cost[0] < cost[1]
        low, high = np.where(below, low, middle), np.where(below, middle, high)
    return np.select([~not_cheaper.any(axis=0), not_cheaper[-1]], [ALWAYS, NEVER], 2**high)


def _measured(length: float, ours: Points, theirs: Points) -> str:
    """Report measurements at shared lengths that contradict the length."""
    shared = np.intersect1d(ours[0], theirs[0])
    cost, baseline = ([np.median(costs[lengths == n]) for n in shared] for lengths, costs in (ours, theirs))
    cheaper = np.array(cost) < np.array(baseline)
    if math.isnan(length) or not len(shared) or np.array_equal(cheaper, shared >= length):
        return ""
    not_cheaper = shared[~cheaper]
    if not len(not_cheaper):
        return "measured cheaper at every length"
    longer = shared[shared > not_cheaper.max()]
    return f"measured cheaper from {longer[0]:,.0f}" if len(longer) else f"measured more expensive at {shared[-1]:,.0f}"


def _outside(length: float, measured: np.ndarray) -> str:
    low, high = measured.min(), measured.max()
    is_inside = low <= length <= high or length in (ALWAYS, NEVER)
    return "" if is_inside else f"extrapolated beyond the measured {low:,.0f} to {high:,.0f}"
