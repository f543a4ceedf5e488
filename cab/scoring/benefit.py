"""Benefit of attention: the index of the best efficient attention, of softmax attention and without attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.scoring.index import AVERAGE
from cab.scoring.normalization import NO_ATTENTION, SOFTMAX_VARIANTS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "best", "efficient", "vanilla", "without"]


def benefit_of_attention(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the benefit of attention per task (Section 4.2, Table 12, Figure 3b).

    Args:
        scores: table returned by :func:`cab.scoring.score_table`; attention ``none`` is the network without attention.

    Returns: Columns pattern, task, best (the best efficient attention), efficient (its index), vanilla (index of
        softmax attention: ``vanilla``, or else ``eager`` or ``flash``), without (index of ``none``); NaN without an
        index. The best attention is selected after the fact, which biases its index upwards.
    """
    import pandas as pd

    rows = []
    tasks = scores[(scores["task"] != AVERAGE) & scores["index"].notna()]
    for (pattern, task), part in tasks.groupby(["pattern", "task"], sort=False):
        index = dict(zip(part["attention"], part["index"], strict=True))
        efficient = {name: ci for name, ci in index.items() if name not in (*SOFTMAX_VARIANTS, NO_ATTENTION)}
        best = max(efficient, key=lambda name: efficient[name], default="")
        vanilla = next((index[name] for name in SOFTMAX_VARIANTS if name in index), math.nan)
        rows.append((pattern, task, best, efficient.get(best, math.nan), vanilla, index.get(NO_ATTENTION, math.nan)))
    return pd.DataFrame(rows, columns=COLUMNS)
