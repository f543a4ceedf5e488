"""Text tables of costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from cab.efficiency.cost import DECODING, Cost
from cab.files.text_table import text_table

MEMORY_IS = {
    "cpu": "peak of torch's allocator during a call, above inputs and weights (scratch space of BLAS and FFT libraries "
    "not included)",
    "cuda": "peak of the CUDA allocator during a call, above inputs and weights",
}


ABOVE_ROOF = (
    "Above 100%: the call is faster than the measured rates permit. Its data fit into the caches, or other load slowed "
    "the measurement of the rates."
)
"""Note on roofline shares above 1."""


def tables(costs: Iterable[Cost]) -> str:
    """Return the tables of time, memory, roofline and third-party comparison, per pattern and phase."""
    blocks = [block for group in by_phase(costs) for block in phase_tables(group)]
    return "\n\n".join(blocks)


def by_phase(costs: Iterable[Cost]) -> Iterator[list[Cost]]:
    """Group consecutive costs of the same pattern and phase."""
    for _, group in groupby(costs, key=lambda cost: (cost.pattern, cost.phase)):
        yield list(group)


def phase_tables(costs: Sequence[Cost]) -> Iterator[str]:
    """Yield the tables of one pattern and phase."""
    first = costs[0]
    where = f"{first.hardware}, {first.dtype}"
    if first.device == "cpu":
        where += f", {first.threads} threads"
    size = f"{first.packed} lengths, " if first.packed else ""
    size += f"batch {first.batch_size}, width {first.embed_dim}, {first.num_heads} heads"
    if first.protocol == "paper":
        how = f"protocol paper: mean of the middle half of {first.repeats} unsynchronized calls"
        memory = "peak over all lengths so far, including weights"
    else:
        how = f"median of {first.repeats} interleaved rounds"
        memory = MEMORY_IS.get(first.device, "")
    head = f"{first.pattern} {first.phase}: {{}}\n{size}; {where}; {{}}"
    if first.phase in DECODING:
        yield grid(costs, head.format("ms per token after a prefix", how), time_cell)
        yield grid(
            costs, head.format("KiB of state", "all rows of the batch"), lambda c: f"{(c.bytes or 0) / 2**10:.1f}"
        )
        yield from roof_table(costs, head, how)
        return
    if first.protocol == "lra":
        yield from network_tables(costs, head, how, memory)
        return
    yield grid(costs, head.format("ms per call (relative to vanilla)", how), time_cell)
    yield grid(costs, head.format("MiB", memory), lambda c: f"{(c.bytes or 0) / 2**20:.1f}")
    yield from roof_table(costs, head, how)
    packed = [cost for cost in costs if cost.speedup_vs_padded]
    if packed:
        yield grid(packed, head.format("speedup of packed over padded sequences / memory ratio", how), padded_cell)
    compared = [cost for cost in costs if cost.best_third_party]
    if compared:
        title = head.format("speedup over the best third-party version: total / attention part / memory ratio", how)
        yield grid(
            compared,
            title,
            third_party_cell,
            name=lambda cost: f"{cost.attention} ({cost.best_third_party.split('@')[1]})",
        )


def network_tables(costs: Sequence[Cost], head: str, how: str, memory: str) -> Iterator[str]:
    """Yield the tables of Long Range Arena (Table 2): steps per second and memory relative to vanilla."""
    vanilla = {cost.length: cost.bytes for cost in costs if cost.attention == "vanilla"}

    def speed(cost: Cost) -> str:
        relative = f" ({1 / cost.relative_to_softmax:.2f})" if cost.relative_to_softmax else ""
        return f"{1 / (cost.seconds or math.inf):.3g}{relative}"

    def most(cost: Cost) -> str:
        usual = vanilla.get(cost.length)
        relative = f" ({(cost.bytes or 0) / usual:.2f})" if usual else ""
        return f"{(cost.bytes or 0) / 2**20:.0f}{relative}"

    yield grid(costs, head.format("steps per second (relative to vanilla)", f"two-layer classifier; {how}"), speed)
    yield grid(costs, head.format("MiB (relative to vanilla)", memory), most)


def roof_table(costs: Sequence[Cost], head: str, how: str) -> Iterator[str]:
    """Yield the table of roofline shares, if operations were counted."""
    counted = [cost for cost in costs if cost.roof_share is not None]
    if counted:
        rates = [(cost.matmul_rate or 0) / 1e9 for cost in counted], [(cost.bandwidth or 0) / 1e9 for cost in counted]
        products, copies = (f"{min(rate):.3g} to {max(rate):.3g}" for rate in rates)
        machine = f"matrix products {products} GFLOP/s, copies {copies} GB/s; {how}"
        table = grid(costs, head.format("% of the limiting roofline (c compute, m memory)", machine), roof_cell)
        above = any((cost.roof_share or 0) > 1 for cost in counted)
        yield f"{table}\n{ABOVE_ROOF}" if above else table


def roof_cell(cost: Cost) -> str:
    """Return the roofline share in percent and the limiting resource."""
    return "-" if cost.roof_share is None else f"{100 * cost.roof_share:.0f} {cost.roof[0]}"


def time_cell(cost: Cost) -> str:
    """Return the time in ms, and relative to vanilla."""
    relative = "" if cost.relative_to_softmax is None else f" ({cost.relative_to_softmax:.2f})"
    return f"{(cost.seconds or 0) * 1e3:.3g}{relative}"


def padded_cell(cost: Cost) -> str:
    """Return the comparison of packed with padded sequences."""
    return f"{cost.speedup_vs_padded or 0:.2f} / {cost.bytes_vs_padded or 0:.2f}"


def third_party_cell(cost: Cost) -> str:
    """Return the comparison with the best third-party implementation."""
    return " / ".join(
        "-" if x is None else f"{x:.2f}"
        for x in (cost.speedup_vs_third_party, cost.speedup_vs_third_party_without_projections, cost.bytes_ratio)
    )


def grid(
    costs: Sequence[Cost],
    title: str,
    cell: Callable[[Cost], str],
    name: Callable[[Cost], str] = lambda cost: cost.attention,
) -> str:
    """Return a table with one row per attention and one column per length; cells without a value show the status."""
    lengths = sorted({cost.length for cost in costs})
    texts: dict[str, dict[int, str]] = {}
    for cost in costs:
        texts.setdefault(name(cost), {})[cost.length] = cell(cost) if cost.status == "ok" else cost.status
    rows = [[label, *(row.get(length, "") for length in lengths)] for label, row in texts.items()]
    return f"{title}\n{text_table(['', *lengths], rows, align='lr')}"
