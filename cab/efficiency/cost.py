"""One measured cost, and the CSV that is made of them."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from cab.files.sanitize import csv_cell

DECODING = ("decode", "decode-graph")
"""Phases of tokens one by one."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of one attention, pattern, phase and length.

    Args:
        seconds: of one call; where it decodes, of one token. None where nothing was measured, see ``status``.
        bytes: most bytes that tensors held at once during a call, above inputs and weights; of decoding,
            bytes of the state.
        p10, p90: percentiles of the seconds over rounds.
        status: ``ok``, ``oom`` (out of memory), ``unsupported`` (the attention refuses this length or
            precision), ``failed`` (it raised), ``unverified`` (it fails `cab verify` and is not timed).
        complexity: the declared growth of an attention, as in :func:`cab.register_attention`.
        kind: ``attention``, ``third_party`` (somebody else's implementation) or ``projections`` (the four linear
            maps alone).
        relative_to_softmax: median over rounds of the seconds relative to ``vanilla`` in the same round.
        relative_to_softmax_without_projections: the same for the attention part, the seconds less those of the
            projections.
        best_third_party, speedup_vs_third_party, speedup_vs_third_party_without_projections, bytes_ratio: the fastest
            peer, how many times faster than it the whole module and the attention part are (medians over rounds), and
            the bytes relative to its.
        flops, product_flops: floating-point operations that the algorithm takes (of a token where it decodes), and
            those of them in matrix products; None where an operator is not counted (:mod:`cab.efficiency.operations`).
        least_bytes, moved_bytes: inputs, outputs, weights and state, each once; and what the operators of the forward
            pass read and wrote.
        roof, roof_share: which roof is nearer, ``compute`` or ``memory``, and the share of it that is reached.
        matmul_rate, bandwidth: the machine's own, in operations and bytes a second (:mod:`cab.efficiency.roof`).
        clock, clock_most, temperature, throttled: of a GPU, right after the rounds of this length: MHz, the most that
            it can have, degrees, and why it is slower than it could be (:mod:`cab.efficiency.gpu_state`).
        kernels: the package whose kernels an attention took in place of its own, which are timed without a roof.
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


COLUMNS = tuple(field.name for field in dataclasses.fields(Cost))
"""Columns of the CSV; the first six are what `cab crossover` reads."""


def write_costs(costs: Iterable[Cost], file: TextIO) -> Iterator[Cost]:
    """Write the header and a row for each cost as soon as it is there, and pass it on."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cost in costs:
        writer.writerow(csv_cell(_text(getattr(cost, name))) for name in COLUMNS)
        file.flush()
        yield cost


def _text(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
