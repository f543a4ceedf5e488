"""Generated series in files of the official layout, for tests that need a file of a data set but not its content."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd

ETT = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
WEATHER = [
    *("Visibility", "DryBulbFarenheit", "DryBulbCelsius", "WetBulbFarenheit", "DewPointFarenheit"),
    *("DewPointCelsius", "RelativeHumidity", "WindSpeed", "WindDirection", "StationPressure", "Altimeter"),
    "WetBulbCelsius",
]
ISO, AMERICAN = "%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M"


def write(path: Path, columns: list[str], rows: int, *, freq: str = "h", dates: str = ISO) -> None:
    """Write a file, compressed if its name ends in ``.gz``, with (7 r + 3 c) mod 10 in row r and channel c."""
    lines = [",".join(["date", *columns])]
    cycle = [",".join(str((7 * row + 3 * channel) % 10) for channel in range(len(columns))) for row in range(10)]
    when = pd.date_range("2016-07-01", periods=rows, freq=freq).strftime(dates)
    lines += [f"{date},{cycle[row % 10]}" for row, date in enumerate(when)]
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_series(root: Path) -> Path:
    """Write the files of the published series into ``root/lstf``; return ``root``."""
    folder = root / "lstf"
    folder.mkdir()
    for name in ("ETTh1.csv", "ETTh2.csv"):
        write(folder / name, ETT, 17_420)
    write(folder / "ETTm1.csv.gz", ETT, 69_680, freq="15min")
    write(folder / "WTH.csv", WEATHER, 35_064, dates=AMERICAN)
    return root
