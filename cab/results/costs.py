"""Costs of attentions: committed measurements, tables of costs for efficiency lengths, and sizes of decode states."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.text_table import counted, csv_rows, parse_number, read_csv
from cab.patterns import Pattern
from cab.records.cost_sizes import BOARD_SIZES, EARLY, FALLBACK, LENGTH as LENGTH
from cab.records.files import PAPER_DIR
from cab.records.identity import hash_of
from cab.records.names import installed_code
from cab.records.verified import COMMITTED, read_rows
from cab.registry.tables import tuned_options
from cab.results.cells import PRESET, SUITE, TUNED

if TYPE_CHECKING:
    import pandas as pd

    from cab.registry.entries import AttentionEntry

READ_COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes", "complexity"]
_SETTING = ["run", "protocol", "batch_size", "embed_dim", "num_heads", "dtype", "device"]
_SETTING += ["hardware", "threads", "torch", "compiled"]
_PUBLISHED = ["attention", "length", "memory_mib", "time_ms"]


def load_costs(*paths: str | Path, protocol: str = "") -> pd.DataFrame:
    """Load costs with the columns attention, pattern, phase, length, seconds, bytes, complexity, setting.

    Reads the output of ``cab efficiency`` and the published format ``attention,length,time_ms,memory_mib`` (pattern NS,
    forward). Column ``complexity`` (``n``, ``n log n``, ``n^2``, ...) defaults to ``n``. An empty time or memory (out
    of memory) becomes NaN. Rows whose ``kind`` is not ``attention`` are skipped. With ``protocol``, those of another
    protocol are, if the file has any of this one. ``setting`` says which rows may be compared: what differs among the
    file, the run and the settings of the rows, or an empty text.

    Raises:
        UserError: a row has an invalid or missing value, or is that of an earlier line again.
    """
    import pandas as pd

    tables = [_load_costs(Path(path), protocol) for path in paths]
    if len(tables) > 1:
        for path, table in zip(paths, tables, strict=True):
            table["setting"] = [f"{path}, {setting}" if setting else str(path) for setting in table["setting"]]
    return pd.concat(tables, ignore_index=True)


def _load_costs(path: Path, protocol: str) -> pd.DataFrame:
    import pandas as pd

    if not path.exists():
        raise UserError(f"no cost file at {path}; create it with `cab efficiency --out {path}`")
    lines: dict[tuple[str, ...], int] = {}
    rows, costs = [], []
    for line, row in csv_rows(path, strip=True):
        if row.get("kind", "attention") != "attention":
            continue
        if (first := lines.setdefault(tuple(row.values()), line)) != line:
            raise UserError(f"{path}, line {line}: the costs of line {first} again; remove one of them")
        rows.append(row)
        costs.append(_cost(row, f"{path}, line {line}"))
    if not rows:
        raise UserError(f"{path} contains no costs")
    used = [i for i, row in enumerate(rows) if protocol and row.get("protocol") == protocol] or range(len(rows))
    settings = _setting(pd.DataFrame([rows[i] for i in used]))
    return pd.DataFrame([costs[i] for i in used], columns=READ_COLUMNS).assign(setting=settings)


def _cost(row: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the values of :data:`READ_COLUMNS` in a row of a file of costs."""
    if row.keys() >= set(_PUBLISHED):
        row = {"pattern": Pattern.NS, "phase": "forward", **row}
        seconds, size = (_measurement(row, name, place) for name in ("time_ms", "memory_mib"))
        seconds, size = seconds / 1e3, size * 2**20
    elif lacking := sorted({*READ_COLUMNS[:6]} - row.keys()):
        required = f"{','.join(READ_COLUMNS[:6])}, or {','.join(_PUBLISHED)}"
        raise UserError(f"{place}: no column {', '.join(lacking)}; required: {required}")
    else:
        seconds, size = (_measurement(row, name, place) for name in ("seconds", "bytes"))
    if empty := [name for name in READ_COLUMNS[:4] if not row[name]]:
        raise UserError(f"{place}: no {empty[0]}")
    if row["pattern"] not in list(Pattern):
        raise UserError(f"{place}: the pattern must be one of {', '.join(Pattern)}, got '{row['pattern']:.40}'")
    length = _measurement(row, "length", place)
    if length < 1 or length != int(length):
        raise UserError(f"{place}: the length must be a positive whole number of tokens, got '{row['length']:.40}'")
    texts = {"complexity": row.get("complexity") or "n", **{name: row[name] for name in READ_COLUMNS[:3]}}
    return {**texts, "length": int(length), "seconds": seconds, "bytes": size}


def _measurement(row: Mapping[str, str], column: str, place: str) -> float:
    """Return a finite number of at least 0, or NaN for an empty value."""
    text = row[column]
    value = parse_number(text) if text else math.nan
    if value is None or value < 0:
        raise UserError(f"{place}: {column} must be a finite number of at least 0, or empty, got '{text:.40}'")
    return value


def _setting(table: pd.DataFrame) -> list[str]:
    """Return the settings that distinguish each row from rows of other settings, as few as suffice."""
    names = [name for name in _SETTING if name in table and table[name].nunique() > 1]
    counts = [len(table[names[:size]].drop_duplicates()) for size in range(1, len(names) + 1)]
    shown = names[: counts.index(counts[-1]) + 1] if names else []
    rows = table[shown].to_dict("records")
    return [", ".join(f"{name} {value or 'none'}" for name, value in row.items()) for row in rows]


MEASURED = PAPER_DIR.parent / "efficiency" / "costs.csv"
COSTS_FOLDER = "costs"
"""Folder in ``results_dir`` with the costs that `cab run suite=core` measures."""
RUNS = {"NS": "roof_ns", "CS": "roof_cs"}
"""Run of the forward passes of each pattern, which measures every attention on one machine."""
DECODING_RUN = "decode_cs"
STATE = "suite state"
"""Phase of the decode state in the network of the suite: its bytes in float32; the detail says whether it grows."""
GROWS = "grows"
TOKENS = 88
"""Length of the sequences of ``recall``."""
STATE_WIDTH = 32
"""Width of the network of ``recall``, whose attention has one head."""
STATES_FILE = SUITE / "states.csv"


@dataclass(frozen=True)
class State:
    """Size of the decode state of one layer in the network of ``recall``, in numbers; per token if it grows."""

    numbers: float
    grows: bool

    @property
    def total(self) -> float:
        """Numbers after :data:`TOKENS` tokens."""
        return self.numbers * TOKENS if self.grows else self.numbers

    @property
    def text(self) -> str:
        """The size for tables."""
        return f"{self.numbers:,.0f}" + (" per token" if self.grows else "")


@dataclass(frozen=True)
class MeasuredCost:
    """Cost of an attention at ``length`` tokens, :data:`LENGTH` or :data:`FALLBACK`; None if it is not measured.

    Time and peak memory of a forward pass are relative to fused softmax attention. ``has_constant_state`` is False if
    the size after :data:`EARLY` tokens is unknown, and ``suite_state`` is that in the network of the suite.
    """

    time: float | None = None
    memory: float | None = None
    decode_ms: float | None = None
    state_bytes: int | None = None
    has_constant_state: bool = False
    complexity: str = ""
    suite_state: State | None = None
    length: int = LENGTH


Costs = Mapping[tuple[str, str], MeasuredCost]
"""Costs by attention and pattern."""


@functools.cache
def measured_costs() -> Costs:
    """Return the committed costs, which were measured on one machine."""
    runs = (*RUNS.values(), DECODING_RUN)
    return costs_in(row for row in read_csv(MEASURED) if row["run"] in runs)


def costs_in(rows: Iterable[Mapping[str, str]]) -> Costs:
    """Return the costs among rows of ``cab efficiency`` that have the length and the sizes of the committed ones."""
    found: dict[tuple[str, str], dict[tuple[str, int], Mapping[str, str]]] = {}
    for row in rows:
        phase, length = row.get("phase", ""), int(_number(row, "length") or 0)
        setting = {"status": "ok", "kind": "attention", "protocol": "default", "batch_size": "1"}
        setting["embed_dim"] = str(BOARD_SIZES.get(phase, {}).get("embed_dim"))
        is_of_board = length in (EARLY, FALLBACK, LENGTH) and setting.items() <= row.items() and not row.get("packed")
        if is_of_board or phase == STATE:
            found.setdefault((row["attention"], row["pattern"]), {})[phase, length] = row
    return {
        (name, pattern): _measured(own, found.get(("vanilla", pattern), {})) for (name, pattern), own in found.items()
    }


def _measured(
    rows: Mapping[tuple[str, int], Mapping[str, str]], softmax: Mapping[Any, Mapping[str, str]]
) -> MeasuredCost:
    """Return the cost of an attention from its rows and those of softmax attention, by phase and length."""
    longest = LENGTH if ("forward", LENGTH) in rows else FALLBACK
    forward, early = rows.get(("forward", longest), {}), rows.get(("decode", EARLY), {})
    decode = rows.get(("decode", LENGTH)) or rows.get(("decode", FALLBACK), {})
    memory, of_softmax = (_number(row, "bytes") for row in (forward, softmax.get(("forward", longest), {})))
    seconds, state, of_suite = _number(decode, "seconds"), _number(decode, "bytes"), rows.get((STATE, TOKENS), {})
    numbers = _number(of_suite, "bytes")
    return MeasuredCost(
        time=_number(forward, "relative_to_softmax"),
        memory=memory / of_softmax if memory is not None and of_softmax else None,
        decode_ms=None if seconds is None else 1e3 * seconds,
        state_bytes=None if state is None else int(state),
        has_constant_state=bool(decode) and early.get("bytes") == decode["bytes"],
        complexity=(forward or decode or early).get("complexity", ""),
        suite_state=None if numbers is None else State(numbers / 4, of_suite.get("detail") == GROWS),
        length=longest if forward else LENGTH,
    )


def _number(row: Mapping[str, str], column: str) -> float | None:
    """Return the number in a row of a CSV file, or None for an empty or invalid value."""
    return parse_number(row.get(column) or "")


@functools.cache
def _committed_codes() -> frozenset[tuple[str, str]]:
    return frozenset((row.attention, row.code_hash) for row in read_rows(COMMITTED))


def is_committed(attention: str, program: str) -> bool:
    """Return whether code is that of an attention in this repository, to which its tables apply."""
    return (cost_name(attention), program) in _committed_codes()


def is_edited(attention: str) -> bool:
    """Return whether an attention of this repository is installed with other code than that of its tables."""
    codes = {code for name, code in _committed_codes() if name == attention}
    return bool(codes) and installed_code(attention) not in codes


def has_committed_cost(attention: str, program: str) -> bool:
    """Return whether an attention with this code is among those of :func:`measured_costs`, in any pattern."""
    return is_committed(attention, program) and any(name == cost_name(attention) for name, _ in measured_costs())


def cost_name(attention: str) -> str:
    """Return the name in tables of costs of an attention in tables, which no learning rate or other code changes."""
    return (attention.rpartition(" [")[0] if attention.endswith("]") else attention).removesuffix(TUNED)


def cost_path(results_dir: Path, attention: str, pattern: str, program: str, earlier: str = "") -> Path:
    """Return the file with the costs of an attention with this code in a pattern, or under its ``earlier`` digest."""
    keys = [[cost_name(attention), pattern, code] for code in (program, earlier or program)]
    paths = [results_dir / COSTS_FOLDER / f"{hash_of({'cost': key})}.csv" for key in keys]
    return next((path for path in paths if path.is_file()), paths[0])


def cost_of(attention: str, pattern: str, program: str, folders: Iterable[Path], earlier: str = "") -> MeasuredCost:
    """Return the cost of an attention with this code: the committed one, or that measured in one of the folders."""
    key = cost_name(attention), pattern
    if has_committed_cost(attention, program):
        return measured_costs().get(key, MeasuredCost())
    paths = (cost_path(folder, attention, pattern, program, earlier) for folder in folders)
    return next((read_costs(path).get(key, MeasuredCost()) for path in paths if path.is_file()), MeasuredCost())


def read_costs(path: Path) -> Costs:
    """Return the costs in an output file of ``cab efficiency``, see :func:`costs_in`."""
    return costs_in(read_csv(path))


@functools.cache
def cost_hardware() -> tuple[str, ...]:
    """Return processor, threads and version of PyTorch of the forward passes of :data:`RUNS`."""
    machines = {
        f"{row['hardware']}, {counted(int(row['threads']), 'thread')}, PyTorch {row['torch']}"
        for row in read_csv(MEASURED)
        if row["run"] in RUNS.values()
    }
    return tuple(sorted(machines))


# --- size of the decode state -----------------------------------------------------------------------------------------


@functools.cache
def suite_states() -> dict[str, State]:
    """Return the states of this repository's causal attentions, from configs/suite/states.csv."""
    rows = read_csv(STATES_FILE)
    return {row["attention"]: State(float(row["numbers"]), row["grows"] == "yes") for row in rows}


def suite_state(entry: AttentionEntry) -> State | None:
    """Measure the state of an attention with the options of cell ``recall`` CS; None without this pattern."""
    if "CS" not in entry.patterns:
        return None
    return measure_state(entry, tuned_options("probe", "mixer", "CS", entry.name, preset=PRESET))


def measure_state(entry: AttentionEntry, options: Mapping[str, Any]) -> State:
    """Measure the state of a causal attention in the network of cell ``recall`` CS."""
    from cab.composite import count_layers  # imports torch
    from cab.registry.build import build_attention, decode_state

    attention = build_attention(entry.name, pattern="CS", embed_dim=STATE_WIDTH, num_heads=1, **options).eval()
    layers = count_layers(attention)
    before, after = (
        sum(tensor.numel() for tensor in decode_state(attention, count).values() if tensor.is_floating_point()) / layers
        for count in (64, 128)
    )
    return State((after - before) / 64, grows=True) if after > before else State(after, grows=False)
