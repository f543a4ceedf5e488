"""Do probes rank attentions as the tasks do?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.patterns import pattern_rank
from cab.scoring.agreement import COLUMNS as AGREEMENT, agreement
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import population

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [AGREEMENT[0], "probe", *AGREEMENT[1:]]
SETTING = ["preset", "pattern", "dataset", "pairs", "distance", "noise", "embed_dim"]
"""Columns that identify a setting in a table of probes."""


def read_probes(path: Path) -> pd.DataFrame:
    """Read a table of probes, as written by ``cab leaderboard`` to ``probes.csv``.

    Raises:
        ValueError: the file does not exist or lacks a column.
    """
    import pandas as pd

    if not path.is_file():
        raise UserError(f"no table of probes at {path}; pass a probes.csv written by `cab leaderboard`")
    table = pd.read_csv(path)
    if lacking := {*SETTING, "attention", "accuracy"} - set(table.columns):
        raise UserError(f"{path} is not a table of probes; missing columns: {', '.join(sorted(lacking))}")
    return table


def probe_agreement(probes: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's correlation of the accuracy in each probe with the index of each task of the same pattern.

    Each probe is represented by the setting that covers most attentions with an index in the task. Among several, the
    one with the lowest mean accuracy is used, because all attentions solve easy settings.

    Args:
        probes: table returned by :func:`read_probes`.
        scores: table returned by :func:`cab.scoring.score_table`.

    Returns:
        Columns pattern, probe (``recall, pairs 16, ...``), and those of :func:`cab.scoring.rank_agreement`. Attention
            ``none`` is excluded, as are pairs of probe and task with fewer than three shared attentions.
    """
    import pandas as pd

    rows = []
    known = scores.dropna(subset=["index"])
    for (pattern, task), part in known.groupby(["pattern", "task"], sort=False):
        index = part.set_index("attention")["index"]
        index = index[index.index.isin(population(index.index))]
        here = probes[(probes["pattern"] == pattern) & probes["attention"].isin(index.index)]
        for dataset, measured in here.groupby("dataset", sort=False):
            setting, accuracy = _fullest(measured)
            if len(accuracy) > 2:
                rows.append(
                    (str(pattern), f"{dataset}, {setting}", str(task), *agreement(accuracy, index[accuracy.index]))
                )
    rows.sort(key=lambda row: (pattern_rank(row[0]), row[2] != AVERAGE, row[2]))
    return pd.DataFrame(rows, columns=COLUMNS)


def _fullest(measured: pd.DataFrame) -> tuple[str, pd.Series]:
    """Return the setting with most attentions as text, and the accuracy of each attention in it."""
    groups = dict(iter(measured.groupby(SETTING, dropna=False)))
    key = max(groups, key=lambda key: (groups[key]["attention"].nunique(), -groups[key]["accuracy"].mean()))
    setting = dict(zip(SETTING, key, strict=True))
    words = [f"{name} {setting[knob]:g}" for knob, name in (("pairs", "pairs"), ("embed_dim", "width"))]
    return ", ".join(words), groups[key].groupby("attention")["accuracy"].mean()
