"""What a visit found, on one screen."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cab.visit.conduct import machine_of

Row = dict[str, str]
WIDTH, HEIGHT = 110, 40


def read_table(folder: Path, name: str) -> list[Row]:
    """The rows of a table, none where it is missing."""
    path = folder / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(folder: Path) -> str:
    """At most 40 lines of at most 110 characters."""
    facts = machine_of(folder)
    where = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "triton", "cuda", "driver") if facts.get(name))
    lines = [
        f"{where}; {versions}; {facts['visited']} UTC" + ("; shortened, to try the code" if facts["short"] else "")
    ]
    for part in read_table(folder, "parts"):
        lines.append(f"{part['part']}: {part['status']} after {float(part['seconds']):.0f} s {part['detail']}".rstrip())
        rows = read_table(folder, part["part"])
        lines += [f"  {line}" for line in SUMMARIES[part["part"]](rows)]
    return "\n".join(line[:WIDTH] for line in lines[:HEIGHT])


def checks(rows: Sequence[Row]) -> Iterator[str]:
    pairs = {(row["attention"], row["pattern"]) for row in rows}
    failed = [row for row in rows if row["passed"] == "false"]
    yield f"{len(rows)} rows of {len(pairs)} attentions and patterns, {len(failed)} failed"
    yield from few(f"{row['attention']} {row['pattern']} {row.get('check') or row['form']}" for row in failed)


def few(names: Iterator[str]) -> Iterator[str]:
    """As many as fit a line, each once."""
    found = list(dict.fromkeys(names))
    if found:
        yield "failed: " + ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def runs(rows: Sequence[Row]) -> Iterator[str]:
    counted = Counter(row["status"] for row in rows)
    yield f"{len(rows)} runs: " + ", ".join(f"{count} {status}" for status, count in counted.items())
    for row in rows:
        if row.get("what") == "resume":
            yield f"resumed run: {row['detail']}"
    shares = [float(row["harness"]) for row in rows if row.get("harness")]
    if shares:
        yield f"of a step outside forward, backward and optimiser: {100 * max(shares):.0f}% at most"
    yield from few(
        f"{row['task']} {row['backbone']} {row['pattern']} ({row['detail'][:40]})"
        for row in rows
        if row["status"] not in ("finished", "differs") and row.get("what") != "resume"
    )


def costs(rows: Sequence[Row]) -> Iterator[str]:
    """Forward and backward in CS: ms against length of what stands first, and from where on a method is faster."""
    counted = Counter(row["status"] for row in rows)
    yield f"{len(rows)} costs: " + ", ".join(f"{count} {status}" for status, count in counted.items())
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        if (row["pattern"], row["phase"], row["status"]) == ("CS", "forward+backward", "ok"):
            times.setdefault(row["attention"], {})[int(row["length"])] = 1e3 * float(row["seconds"])
    lengths = sorted({length for found in times.values() for length in found})
    if lengths:
        yield "CS forward+backward, ms".ljust(30) + "".join(f"{length:>10}" for length in lengths)
    shown = [name for name in times if name != "projections"][:10]
    for name in shown:
        yield name.ljust(30) + "".join(
            f"{times[name][n]:>10.3g}" if n in times[name] else f"{'-':>10}" for n in lengths
        )


def throughputs(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        head = f"{row['attention']} {row['form']}, n {row['length']}, {row['dtype']}: "
        if row["status"] != "ok":
            yield f"{head}{row['status']} {row['detail']}"
            continue
        share, bytes_ = 100 * float(row["utilisation"]), float(row["bytes"]) / 2**30
        yield f"{head}{float(row['tokens_per_second']):.0f} tokens/s, {share:.0f}% of the matmul rate, {bytes_:.1f} GiB"


SUMMARIES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "verify": checks,
    "agreement": checks,
    "training": runs,
    "efficiency": costs,
    "throughput": throughputs,
    "suite": runs,
}
