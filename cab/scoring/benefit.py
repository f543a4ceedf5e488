"""What attention is worth: the index with the best efficient attention, with softmax attention, and with none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.scoring.index import AVERAGE
from cab.scoring.normalization import ABLATION, EXACT

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "best", "efficient", "vanilla", "without"]


def benefit_of_attention(scores: pd.DataFrame) -> pd.DataFrame:
    """The benefit of attention in each task (section 4.2, Table 12, Figure 3b).

    Args:
        scores: as :func:`cab.scoring.score_table` gives them. Attention ``none`` is the network without attention.

    Returns:
        Columns pattern, task, best (name of the best efficient attention), efficient (its index), vanilla (index of
        softmax attention; of ``eager`` or ``flash`` where ``vanilla`` was not run), without (index with ``none``); NaN
        where there is no index. The best of many is picked after the fact: it flatters efficient attentions a little.
    """
    import pandas as pd

    rows = []
    tasks = scores[(scores["task"] != AVERAGE) & scores["index"].notna()]
    for (pattern, task), part in tasks.groupby(["pattern", "task"], sort=False):
        index = dict(zip(part["attention"], part["index"], strict=True))
        efficient = {name: ci for name, ci in index.items() if name not in (*EXACT, ABLATION)}
        best = max(efficient, key=lambda name: efficient[name], default="")
        vanilla = next((index[name] for name in EXACT if name in index), math.nan)
        rows.append((pattern, task, best, efficient.get(best, math.nan), vanilla, index.get(ABLATION, math.nan)))
    return pd.DataFrame(rows, columns=COLUMNS)
