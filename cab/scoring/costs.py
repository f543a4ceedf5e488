"""Loading of time and memory costs by length, from which efficiency lengths are computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes", "complexity"]
_OURS = set(COLUMNS[:6])
_SETTING = ["protocol", "batch_size", "embed_dim", "num_heads", "dtype", "device", "hardware", "threads", "torch"]
_PUBLISHED = {"attention", "length", "time_ms", "memory_mib"}


def load_costs(path: str | Path) -> pd.DataFrame:
    """Load costs with the columns attention, pattern, phase, length, seconds, bytes, complexity.

    Reads the output of ``cab efficiency`` and the published format ``attention,length,time_ms,memory_mib`` (pattern NS,
    forward). Column ``complexity`` (``n``, ``n log n``, ``n^2``, ...) defaults to ``n``. An empty time or memory (out
    of memory) becomes NaN. Rows whose ``kind`` is not ``attention`` are skipped.

    Raises:
        ValueError: the file is missing, lacks columns, contains invalid numbers, or mixes measurement settings.
    """
    import pandas as pd

    path = Path(path)
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except FileNotFoundError:
        raise UserError(f"no cost file at {path}; create it with `cab efficiency --out {path}`") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a CSV file of costs: {error}") from None
    table.columns = [str(name).strip() for name in table.columns]
    if set(table.columns) >= _PUBLISHED:
        milliseconds, mebibytes = (_numbers(table[name], path) for name in ("time_ms", "memory_mib"))
        table = table.assign(pattern="NS", phase="forward", seconds=milliseconds / 1e3, bytes=mebibytes * 2**20)
    lacking = sorted(_OURS - set(table.columns))
    if lacking:
        raise UserError(
            f"{path} lacks the columns {', '.join(lacking)}; required: {','.join(COLUMNS[:6])}, "
            f"or {','.join(sorted(_PUBLISHED))}"
        )
    if "kind" in table:
        table = table[table["kind"] == "attention"]
    _refuse_mixtures(table, path)
    if table.empty:
        raise UserError(f"{path} contains no costs")
    for name in ("length", "seconds", "bytes"):
        table[name] = _numbers(table[name], path)
    if table["length"].isna().any():
        raise UserError(f"{path}: column 'length' has an empty value")
    if "complexity" not in table:
        table["complexity"] = "n"
    return table[COLUMNS].fillna({"complexity": "n"})


def _refuse_mixtures(table: pd.DataFrame, path: Path) -> None:
    for name in table.columns.intersection(_SETTING):
        found = sorted(map(str, table[name].dropna().unique()))
        if len(found) > 1:
            raise UserError(f"{path} mixes costs with different {name} ({', '.join(found)}); keep rows with one {name}")


def _numbers(column: pd.Series, path: Path) -> pd.Series:
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce")
    wrong = (values.isna() & column.notna()) | (values < 0) | (values == float("inf"))
    if column.name == "length":
        wrong |= values == 0
    if wrong.any():
        kind = "positive" if column.name == "length" else "non-negative"
        raise UserError(f"{path}: {column.name} '{column[wrong].iloc[0]}' is not a finite {kind} number")
    return values
