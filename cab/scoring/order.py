"""Is one attention better than another, or do the seeds leave it open?"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from cab.scoring.index import Scores

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "better", "worse", "difference", "low", "high", "resolved"]


def order_table(scores: Scores) -> pd.DataFrame:
    """Every two attentions with an index in a pattern and task: which is better, by how much, and is that resolved?

    Returns:
        Columns pattern, task, better, worse, difference (of the two indices), low and high (its 95% confidence
        interval over seeds), resolved: ``yes`` when the interval leaves out 0, ``no``, or ``unknown`` where either has
        one seed. The level holds for one pair; of twenty pairs that do not differ, one comes out as resolved.
    """
    import pandas as pd

    rows = []
    known = scores.table.dropna(subset=["ci"])
    for (pattern, task), part in known.groupby(["pattern", "task"], sort=False):
        ranked = part[["attention", "ci"]].itertuples(index=False, name=None)  # best first
        for (better, high_ci), (worse, low_ci) in itertools.combinations(ranked, 2):
            errors = [scores.errors.get((str(pattern), str(task), name)) for name in (better, worse)]
            difference = high_ci - low_ci
            low = high = math.nan
            if errors[0] and errors[1]:
                low, high = errors[0].minus(errors[1]).interval(difference)
            resolved = "unknown" if math.isnan(low) else "yes" if low > 0 else "no"
            rows.append((pattern, task, better, worse, difference, low, high, resolved))
    return pd.DataFrame(rows, columns=COLUMNS)
