"""Do probes rank attentions as the tasks do?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.patterns import pattern_rank
from cab.scoring.agreement import COLUMNS as AGREEMENT
from cab.scoring.agreement import agreement
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import population

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [AGREEMENT[0], "probe", *AGREEMENT[1:]]
SETTING = ["preset", "pattern", "dataset", "pairs", "distance", "noise", "embed_dim"]
"""What tells apart the rows of one attention in a table of probes."""


def read_probes(path: Path) -> pd.DataFrame:
    """A table of probes, as `cab leaderboard` writes it to ``probes.csv``.

    Raises:
        ValueError: no such file, or one that lacks a column.
    """
    import pandas as pd

    if not path.is_file():
        raise UserError(f"no table of probes at {path}: name a probes.csv that `cab leaderboard` wrote")
    table = pd.read_csv(path)
    if lacking := {*SETTING, "attention", "accuracy"} - set(table.columns):
        raise UserError(f"{path} is no table of probes: it lacks the columns {', '.join(sorted(lacking))}")
    return table


def probe_agreement(probes: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of accuracy in each probe with the index of each task of the same pattern.

    A probe counts at one setting, the one that most of the attentions with an index in the task were asked at; of
    several such the hardest, by their mean accuracy, since at an easy one all answer everything.

    Args:
        probes: as :func:`read_probes` gives it.
        scores: as :func:`cab.scoring.score_table` gives them.

    Returns:
        Columns pattern, probe (``recall, pairs 16, ...``), and those of :func:`cab.scoring.rank_agreement`. ``none`` is
        left out as there, and so are pairs of probe and task that share fewer than three attentions.
    """
    import pandas as pd

    rows = []
    known = scores.dropna(subset=["index"])
    for (pattern, task), part in known.groupby(["pattern", "task"], sort=False):
        index = part.set_index("attention")["index"]
        index = index[index.index.isin(population(index.index))]
        here = probes[(probes["pattern"] == pattern) & probes["attention"].isin(index.index)]
        for dataset, asked in here.groupby("dataset", sort=False):
            setting, accuracy = _fullest(asked)
            if len(accuracy) > 2:
                rows.append(
                    (str(pattern), f"{dataset}, {setting}", str(task), *agreement(accuracy, index[accuracy.index]))
                )
    rows.sort(key=lambda row: (pattern_rank(row[0]), row[2] != AVERAGE, row[2]))
    return pd.DataFrame(rows, columns=COLUMNS)


def _fullest(asked: pd.DataFrame) -> tuple[str, pd.Series]:
    """The setting of most attentions in words, and the accuracy of each there."""
    groups = dict(iter(asked.groupby(SETTING, dropna=False)))
    key = max(groups, key=lambda key: (groups[key]["attention"].nunique(), -groups[key]["accuracy"].mean()))
    told = dict(zip(SETTING, key, strict=True))
    words = [f"{name} {told[knob]:g}" for knob, name in (("pairs", "pairs"), ("embed_dim", "width"))]
    return ", ".join(words), groups[key].groupby("attention")["accuracy"].mean()
