"""A measured cost, its CSV format, and its comparison with an earlier table."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from cab.errors import UserError
from cab.files.disk import sanitize_csv_cell
from cab.files.text_table import csv_rows, parse_number

DECODING_PHASES = ("decode", "decode-graph")
"""Phases that decode token by token."""

CAUSAL_PHASES = ("prefill", *DECODING_PHASES)
"""Phases of generation, which only causal patterns have."""

LAUNCH_BOUND, BUSY_SHARE = "launch-bound", 0.8
"""Detail of a cost whose call keeps the GPU busy for less than this share of its time."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of one attention, pattern, phase and length.

    Attributes:
        seconds: time per call, such as one prompt, or per token when decoding; None if not measured, see ``status``.
        bytes: peak memory of tensors during a call, above inputs and weights; when decoding, size of the state.
        p10, p90: 10th and 90th percentile of the seconds over rounds.
        status: ``ok``, ``oom`` (out of memory), ``unsupported`` (the attention rejects the length, precision or
            backend), ``failed`` (it raised an exception), ``timeout`` (its calls took longer than the time limit),
            ``impossible`` (faster than the measured roofline permits), or ``unverified`` (it fails `cab verify` and is
            not timed).
        detail: reason of the status, or :data:`LAUNCH_BOUND`.
        complexity: the declared complexity of an attention, as in :func:`cab.register_attention`.
        kind: ``attention``, ``third_party`` (third-party implementation), ``projections`` (the four linear maps) or
            ``padded`` (sequences padded to the longest).
        relative_to_softmax: median over rounds of the seconds relative to ``fastest_softmax``.
        relative_to_softmax_without_projections: the same ratio after subtracting the time of the projections.
        best_third_party: the fastest third-party implementation.
        speedup_vs_third_party: its time relative to that of the module, median over rounds.
        speedup_vs_third_party_without_projections: the same ratio for the attention part.
        bytes_ratio: bytes relative to those of the third-party implementation.
        flops: floating-point operations of the algorithm (per token when decoding); None if an operator is not
            counted (:mod:`cab.efficiency.operations`).
        product_flops: those in matrix products.
        least_bytes: inputs, outputs, weights and state, each counted once.
        moved_bytes: bytes read and written by the operators of the forward pass.
        roof, roof_share: limiting roofline (``compute`` or ``memory``), and the share of it that is reached.
        matmul_rate, bandwidth: measured rates of the machine in FLOP/s and bytes/s (:mod:`cab.efficiency.machine`).
        clock, clock_most: clock of the GPU after the rounds of the length, and its maximum clock, in MHz.
        temperature: its temperature in degrees Celsius.
        throttled: its reasons for throttling.
        kernels: package whose kernels replaced those of the attention; such costs have no roofline.
        packed: distribution of the lengths of packed sequences.
        speedup_vs_padded: seconds of padded relative to packed sequences, median over rounds.
        bytes_vs_padded: bytes of packed relative to padded sequences.
        compiled: ``yes`` if modules were compiled with torch.compile.
        fastest_softmax: ``vanilla`` or, on CUDA, the fastest of its backends.
        seconds_without_projections: median over rounds of the seconds above those of the projections.
        host_seconds: on CUDA, time per call, or per token, until all kernels are queued.
        busy: on CUDA, share of a call in which kernels run.
        power: power draw of the GPU in watts during repeated calls.
        joules_per_token: energy of a call for each of its tokens.
        backends: backends of operations that ran (:mod:`cab.kernels`), with the refusals of others.
        unchecked: backends that ran without having passed check group ``kernels`` of `cab verify`.
        device_kernels: kernels that ran on the GPU in one call and how often, the slowest first.
        seconds_vs_former, bytes_vs_former: relative to an earlier table.
        change: ``faster`` or ``slower`` than in the earlier table; empty if the percentiles of both overlap.
        pairs_kept: largest share of the visible pairs that an attention with a choice of keys (``most_keys``) reads; 1
            for the length equals attention to all keys.
    """

    attention: str
    pattern: str
    phase: str
    length: int
    seconds: float | None = None
    bytes: int | None = None
    p10: float | None = None
    p90: float | None = None
    status: str = "ok"
    detail: str = ""
    complexity: str = ""
    kind: str = "attention"
    relative_to_softmax: float | None = None
    relative_to_softmax_without_projections: float | None = None
    best_third_party: str = ""
    speedup_vs_third_party: float | None = None
    speedup_vs_third_party_without_projections: float | None = None
    bytes_ratio: float | None = None
    flops: int | None = None
    product_flops: int | None = None
    least_bytes: int | None = None
    moved_bytes: int | None = None
    roof: str = ""
    roof_share: float | None = None
    matmul_rate: float | None = None
    bandwidth: float | None = None
    clock: int | None = None
    clock_most: int | None = None
    temperature: int | None = None
    throttled: str = ""
    kernels: str = ""
    packed: str = ""
    speedup_vs_padded: float | None = None
    bytes_vs_padded: float | None = None
    protocol: str = "default"
    repeats: int = 0
    batch_size: int = 0
    embed_dim: int = 0
    num_heads: int = 0
    dtype: str = ""
    device: str = ""
    hardware: str = ""
    threads: int = 0
    torch: str = ""
    compiled: str = ""
    fastest_softmax: str = ""
    seconds_without_projections: float | None = None
    host_seconds: float | None = None
    busy: float | None = None
    power: float | None = None
    joules_per_token: float | None = None
    backends: str = ""
    device_kernels: str = ""
    seconds_vs_former: float | None = None
    bytes_vs_former: float | None = None
    change: str = ""
    unchecked: str = ""
    pairs_kept: float | None = None


COST_COLUMNS = tuple(field.name for field in dataclasses.fields(Cost))
"""Columns of the CSV; `cab crossover` reads the first six."""


def write_costs(costs: Iterable[Cost], file: TextIO) -> Iterator[Cost]:
    """Write the header and each cost as soon as it is available, and yield the cost."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COST_COLUMNS)
    for cost in costs:
        values = (getattr(cost, name) for name in COST_COLUMNS)
        texts = (f"{x:.6g}" if isinstance(x, float) else "" if x is None else x for x in values)
        writer.writerow(map(sanitize_csv_cell, texts))
        file.flush()
        yield cost


# --- comparison with an earlier table ---------------------------------------------------------------------------------

IDENTITY = (
    *("attention", "pattern", "phase", "length", "protocol", "packed", "batch_size", "embed_dim", "num_heads", "dtype"),
    *("device", "compiled"),
)
"""Columns in which a row and its former one agree."""
MACHINE = ("hardware", "threads", "torch")
COMPARED_NUMBERS = ("seconds", "bytes", "p10", "p90")
NEEDED = ("attention", "pattern", "phase", "length", "status", *COMPARED_NUMBERS)


@dataclass(frozen=True)
class Former:
    """Measured costs of an earlier table, by the values of :data:`IDENTITY`."""

    costs: Mapping[tuple[str, ...], Mapping[str, float]]
    machines: frozenset[tuple[str, ...]]

    @classmethod
    def read(cls, path: Path) -> Former:
        """Read the output of ``cab efficiency --out``; raises UserError for a file without such costs."""
        if not path.is_file():
            raise UserError(f"no costs at {path}; create them with `cab efficiency --out {path}`")
        costs, machines = {}, set()
        for _, row in csv_rows(path, NEEDED):
            if row["status"] == "ok":
                numbers = {name: parse_number(row[name]) for name in COMPARED_NUMBERS}
                costs[_identity(row)] = {name: value for name, value in numbers.items() if value is not None}
                machines.add(tuple(row.get(name, "") for name in MACHINE))
        if not costs:
            raise UserError(f"{path} has no row of status ok; pass a file of `cab efficiency --out`")
        return cls(costs, frozenset(machines))

    def compare(self, cost: Cost) -> Cost:
        """Return the cost with its ratios to the former one; time changes if the percentiles of both do not overlap."""
        row = {name: str(getattr(cost, name)) for name in IDENTITY}
        former = self.costs.get(_identity(row), {})
        if cost.status != "ok" or not former:
            return cost
        low, high, p10, p90 = former.get("p10"), former.get("p90"), cost.p10, cost.p90
        change = ""
        if low and high and p10 and p90 and low < high and p10 < p90:  # one round has no spread
            change = "slower" if p10 > high else "faster" if p90 < low else ""
        ratios = {
            f"{name}_vs_former": getattr(cost, name) / former[name]
            for name in ("seconds", "bytes")
            if getattr(cost, name) is not None and former.get(name)
        }
        return dataclasses.replace(cost, **ratios, change=change)

    def differences(self, costs: Iterable[Cost]) -> str:
        """Return a note on another machine or version than that of the earlier table, or an empty text."""
        machines = {tuple(str(getattr(cost, name)) for name in MACHINE) for cost in costs}
        if machines == self.machines:
            return ""
        now, before = ("; ".join(sorted(map(" / ".join, found))) for found in (machines, self.machines))
        return f"measured with {now} ({', '.join(MACHINE)}); the earlier table with {before}"


def _identity(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the columns; older files lack some, which then have their default."""
    defaults = {field.name: str(field.default) for field in dataclasses.fields(Cost)}
    return tuple(row.get(name) or defaults[name] for name in IDENTITY)
