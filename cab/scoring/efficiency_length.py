"""Efficiency length: from which sequence length on an attention is cheaper than softmax attention (appendices G, N)."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cab.errors import unknown_name
from cab.scoring.intervals import student_over_normal
from cab.scoring.normalization import EXACT

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["attention", "pattern", "phase", "resource", "length", "r2", "low", "high"]
PROTOCOLS = ("default", "paper")
NEVER = math.inf
ALWAYS = 0.0
RESOURCES = {"time": "seconds", "memory": "bytes"}
DRAWS = 1000
Growth = Callable[[np.ndarray], np.ndarray]
_GROWTHS: dict[str, list[Growth]] = {
    "1": [np.ones_like],
    "log n": [np.ones_like, np.log2],
    "n": [np.ones_like, lambda n: n],
    "n log n": [np.ones_like, lambda n: n, lambda n: n * np.log2(n)],
    "n sqrt n": [np.ones_like, lambda n: n, lambda n: n * np.sqrt(n)],
    "n^2": [np.ones_like, lambda n: n, lambda n: n * n],
}
"""What a cost that grows in this way is a sum of."""


def efficiency_length(costs: pd.DataFrame, *, protocol: str = "default", baseline: str = "vanilla") -> pd.DataFrame:
    """Efficiency lengths of every attention, pattern and phase, for time and memory, against ``baseline``.

    ``paper``: appendix N as it was computed. A parabola through the baseline, a straight line through the other
    attention whatever its complexity, by least squares; time without the shortest length, for the other attention
    only; the larger of the intersections, rounded; R2 of the line, cut after three digits. No interval.

    ``default``: costs are sums of a fixed part and parts that grow, none of them negative: 1, n, n^2 for the baseline;
    for another attention 1, n, and the term of its complexity. Least squares of relative errors, so that short lengths
    count as much as long ones. The length is where the difference changes sign for the last time. ``low`` and ``high``
    bound a 95% confidence interval by bootstrap of the relative residuals of each curve, widened for their small
    number; NaN where a curve has no point to spare. It covers the scatter of the measurements about the models, not
    whether the models hold beyond the measured lengths.

    Args:
        costs: as :func:`cab.scoring.load_costs` gives them; rows that have no number (out of memory) are not used.
        protocol: ``default`` or ``paper``.
        baseline: the attention that is compared with: ``vanilla`` (fused), or ``eager``, which writes the map of
            weights out as the paper's did.

    Returns:
        Columns attention, pattern, phase, resource (``time``, ``memory``), length, r2, low, high, note. A length of
        infinity means never, 0 always: at every length. NaN, with the reason in ``note``, where there is too little
        to tell. ``note`` also says where the length is outside the measured ones, where the fitted curves cross twice,
        and where the measurements themselves say something else than the length.

    Raises:
        ValueError: an unknown protocol, baseline or complexity.
    """
    import pandas as pd

    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if baseline not in set(costs["attention"]):
        raise unknown_name("baseline", baseline, set(costs["attention"]))
    compare = _as_published if protocol == "paper" else _compare
    rows: list[tuple[object, ...]] = []
    for (pattern, phase), part in costs.groupby(["pattern", "phase"], sort=False):
        for resource, column in RESOURCES.items():
            curves = dict(iter(part.dropna(subset=[column]).groupby("attention")))
            for attention in part["attention"].unique():
                if attention == baseline or (attention in EXACT and protocol == "paper"):
                    continue
                key = (str(attention), str(pattern), str(phase), resource)
                if lacking := [name for name in (baseline, attention) if name not in curves]:
                    rows.append((*key, *_unknown(f"{lacking[0]} has no {resource} here")))
                    continue
                ours, theirs = (_points(curves[name], column) for name in (attention, baseline))
                *answer, note = compare(ours, theirs, str(curves[attention]["complexity"].iloc[0]), key)
                notes = [note, _measured(answer[0], ours, theirs)]
                rows.append((*key, *answer, "; ".join(filter(None, notes))))
    return pd.DataFrame(rows, columns=[*COLUMNS, "note"])


Points = tuple[np.ndarray, np.ndarray]

Answer = tuple[float, float, float, float, str]
"""Length, r2, low, high, note."""


def _points(curve: pd.DataFrame, column: str) -> Points:
    curve = curve.sort_values("length")
    return curve["length"].to_numpy(float), curve[column].to_numpy(float)


def _unknown(note: str) -> Answer:
    return math.nan, math.nan, math.nan, math.nan, note


def _as_published(ours: Points, theirs: Points, complexity: str, key: tuple[str, ...]) -> Answer:
    del complexity
    return published_length(ours, theirs, resource=key[-1])


def published_length(ours: Points, theirs: Points, *, resource: str) -> Answer:
    """Efficiency length of one method by protocol ``paper``; ``theirs`` is the baseline's curve."""
    lengths, costs = ours
    if resource == "time":
        longer = lengths > lengths.min()
        lengths, costs = lengths[longer], costs[longer]
    if len(set(lengths)) < 2 or len(set(theirs[0])) < 3:
        return _unknown("too few lengths: a line needs 2 (3 for time) and the baseline's parabola 3")
    slope, offset = _least_squares(lengths, costs, degree=1)
    a, b, c = _least_squares(*theirs, degree=2)
    r2 = math.floor(_r2(costs, slope * lengths + offset) * 1000 + 1e-9) / 1000  # cut, but for the last bit
    if a <= 0:
        return math.nan, r2, math.nan, math.nan, "no answer: the baseline's fitted parabola opens downwards"
    discriminant = (b - slope) ** 2 - 4 * a * (c - offset)
    if discriminant < 0:
        return ALWAYS, r2, math.nan, math.nan, "the fitted curves do not meet"
    crossing = (slope - b + math.sqrt(discriminant)) / (2 * a)
    return max(round(crossing), ALWAYS), r2, math.nan, math.nan, _outside(crossing, lengths)


def _least_squares(lengths: np.ndarray, costs: np.ndarray, *, degree: int) -> np.ndarray:
    """Coefficients, highest power first."""
    from scipy import linalg

    return linalg.lstsq(np.vander(lengths, degree + 1), costs)[0]


def _r2(values: np.ndarray, fitted: np.ndarray) -> float:
    """1 - residual / total sum of squares; 1 for a constant that is met."""
    total = float(((values - values.mean()) ** 2).sum())
    residual = float(((values - fitted) ** 2).sum())
    return 1 - residual / total if total > 0 else float(residual <= 1e-12 * float((values**2).sum()))


def _compare(ours: Points, theirs: Points, complexity: str, key: tuple[str, ...]) -> Answer:
    if complexity not in _GROWTHS:
        raise unknown_name("complexity", complexity, _GROWTHS)
    models = (_GROWTHS[complexity], _GROWTHS["n^2"])
    for (lengths, _), terms in zip((ours, theirs), models, strict=True):
        if len(set(lengths)) < len(terms):
            return _unknown(f"too few lengths: {len(set(lengths))} cannot tell {len(terms)} coefficients")
    own, other = (Fit(*points, terms) for points, terms in zip((ours, theirs), models, strict=True))
    length = float(_last_crossing(own, other, own.coefficients, other.coefficients)[0])
    low = high = math.nan
    if min(own.spare, other.spare) > 0:
        random = np.random.default_rng(zlib.crc32(repr(key).encode()))
        lengths = _last_crossing(own, other, own.redrawn(random), other.redrawn(random))
        low, high = np.quantile(lengths, [0.025, 0.975], method="inverted_cdf")
    note = "; ".join(filter(None, [_outside(length, ours[0]), _shorter(own, other)]))
    return length, own.r2, float(low), float(high), note


class Fit:
    """A cost as a sum of non-negative ``terms``, by least squares of relative errors."""

    def __init__(self, lengths: np.ndarray, costs: np.ndarray, terms: Sequence[Growth]) -> None:
        self.terms = terms
        positive = costs[costs > 0]
        self._scale = np.where(costs > 0, costs, positive.min() if len(positive) else 1.0)
        self._design = self.design(lengths) / self._scale[:, None]
        self.coefficients = _non_negative_least_squares(self._design, (costs / self._scale)[:, None])
        self._relative = self._design @ self.coefficients[:, 0]
        self._residuals = costs / self._scale - self._relative
        self.spare = len(costs) - int((self.coefficients > 0).sum())
        self.r2 = _r2(costs, self._relative * self._scale)

    def design(self, lengths: np.ndarray) -> np.ndarray:
        return np.stack([term(lengths) for term in self.terms], axis=1)

    def redrawn(self, random: np.random.Generator) -> np.ndarray:
        """Coefficients [terms, DRAWS] of fits to redrawn costs."""
        size = len(self._residuals)
        wider = math.sqrt(size / self.spare) * student_over_normal(self.spare)
        drawn = self._residuals[random.integers(size, size=(size, DRAWS))]
        return _non_negative_least_squares(self._design, self._relative[:, None] + wider * drawn)


def _non_negative_least_squares(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Coefficients [terms, targets], none negative: the best of the least squares with some of the terms alone."""
    from scipy import linalg

    size = design.shape[1]
    best = np.zeros((size, targets.shape[1]))
    least = (targets**2).sum(axis=0)
    norms = np.sqrt((design**2).sum(axis=0))
    for count in range(1, size + 1):
        for used in map(list, itertools.combinations(range(size), count)):
            found = linalg.lstsq(design[:, used] / norms[used], targets)[0]
            left = ((design[:, used] / norms[used] @ found - targets) ** 2).sum(axis=0)
            better = (found >= 0).all(axis=0) & (left < least)
            least = np.where(better, left, least)
            column = np.zeros_like(best)
            column[used] = found / norms[used, None]
            best = np.where(better, column, best)
    return best


_GRID = 2.0 ** np.arange(0, 40.125, 0.125)


def _last_crossing(ours: Fit, theirs: Fit, own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """From which length on ``ours`` is below ``theirs``, for each column of coefficients ``own`` and ``other``."""
    dearer = theirs.design(_GRID) @ other <= ours.design(_GRID) @ own
    last = len(_GRID) - 1 - dearer[::-1].argmax(axis=0)
    low = np.log2(_GRID[last])
    high = np.minimum(low + 0.125, math.log2(_GRID[-1]))
    for _ in range(40):
        middle = (low + high) / 2
        cost = [(fit.design(2**middle) * c.T).sum(axis=1) for fit, c in ((ours, own), (theirs, other))]
        below = cost[0] < cost[1]
        low, high = np.where(below, low, middle), np.where(below, middle, high)
    return np.select([~dearer.any(axis=0), dearer[-1]], [ALWAYS, NEVER], 2**high)


def _shorter(ours: Fit, theirs: Fit) -> str:
    """Says so where ``ours`` is also below ``theirs`` up to some length, before it is above."""
    dearer = (theirs.design(_GRID) @ theirs.coefficients <= ours.design(_GRID) @ ours.coefficients)[:, 0]
    first = int(dearer.argmax())
    return f"also cheaper up to about {_GRID[first - 1]:,.0f}" if dearer.any() and first else ""


def _measured(length: float, ours: Points, theirs: Points) -> str:
    """Says so where the costs at the lengths that both were measured at contradict the length."""
    shared = np.intersect1d(ours[0], theirs[0])
    cost, baseline = ([np.median(costs[lengths == n]) for n in shared] for lengths, costs in (ours, theirs))
    cheaper = np.array(cost) < np.array(baseline)
    if math.isnan(length) or not len(shared) or np.array_equal(cheaper, shared >= length):
        return ""
    dearer = shared[~cheaper]
    if not len(dearer):
        return "measured cheaper at every length"
    longer = shared[shared > dearer.max()]
    return f"measured cheaper from {longer[0]:,.0f} on" if len(longer) else f"measured dearer at {shared[-1]:,.0f}"


def _outside(length: float, measured: np.ndarray) -> str:
    """Says so where a length was not reached by the measurements."""
    inside = measured.min() <= length <= measured.max()
    return (
        ""
        if inside or length in (ALWAYS, NEVER)
        else f"outside the measured {measured.min():,.0f} to {measured.max():,.0f}"
    )
