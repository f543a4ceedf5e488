"""Tables of costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from cab.efficiency.cost import DECODING, Cost

MEMORY_IS = {
    "cpu": "most bytes that torch's allocator held during a call, above inputs and weights (its events, summed in "
    "time order; the scratch of BLAS and FFT libraries is not seen)",
    "cuda": "peak of the CUDA allocator during a call, above inputs and weights",
}


def tables(costs: Iterable[Cost]) -> str:
    """Time, memory and the comparison with peers, a block for each pattern and phase."""
    blocks = [block for group in by_phase(costs) for block in phase_tables(group)]
    return "\n\n".join(blocks)


def by_phase(costs: Iterable[Cost]) -> Iterator[list[Cost]]:
    """Costs of the same pattern and phase."""
    for _, group in groupby(costs, key=lambda cost: (cost.pattern, cost.phase)):
        yield list(group)


def phase_tables(costs: Sequence[Cost]) -> Iterator[str]:
    first = costs[0]
    where = f"{first.hardware}, {first.dtype}"
    if first.device == "cpu":
        where += f", {first.threads} threads"
    size = f"batch {first.batch_size}, width {first.embed_dim}, {first.num_heads} heads"
    if first.protocol == "paper":
        how = f"paper's protocol: mean of the middle half of {first.repeats} unsynchronised calls"
        memory = "peak so far, weights included"
    else:
        how = f"median of {first.repeats} interleaved rounds"
        memory = MEMORY_IS.get(first.device, "")
    head = f"{first.pattern} {first.phase}: {{}}\n{size}; {where}; {{}}"
    if first.phase in DECODING:
        yield grid(costs, head.format("ms a token after a prefix", how), time_cell)
        yield grid(
            costs, head.format("KiB of state", "all rows of the batch"), lambda c: f"{(c.bytes or 0) / 2**10:.1f}"
        )
        yield from roof_table(costs, head, how)
        return
    if first.protocol == "lra":
        yield from network_tables(costs, head, how, memory)
        return
    yield grid(costs, head.format("ms a call (relative to vanilla)", how), time_cell)
    yield grid(costs, head.format("MiB", memory), lambda c: f"{(c.bytes or 0) / 2**20:.1f}")
    yield from roof_table(costs, head, how)
    compared = [cost for cost in costs if cost.best_third_party]
    if compared:
        title = head.format("times faster than the best peer, whole / attention part / its memory", how)
        yield grid(
            compared, title, peer_cell, name=lambda cost: f"{cost.attention} ({cost.best_third_party.split('@')[1]})"
        )


def network_tables(costs: Sequence[Cost], head: str, how: str, memory: str) -> Iterator[str]:
    """As Table 2 of Long Range Arena: more steps a second than vanilla is above 1, less memory is below."""
    vanilla = {cost.length: cost.bytes for cost in costs if cost.attention == "vanilla"}

    def speed(cost: Cost) -> str:
        relative = f" ({1 / cost.relative_to_softmax:.2f})" if cost.relative_to_softmax else ""
        return f"{1 / (cost.seconds or math.inf):.3g}{relative}"

    def most(cost: Cost) -> str:
        usual = vanilla.get(cost.length)
        relative = f" ({(cost.bytes or 0) / usual:.2f})" if usual else ""
        return f"{(cost.bytes or 0) / 2**20:.0f}{relative}"

    yield grid(costs, head.format("steps a second (relative to vanilla)", f"two-layer classifier; {how}"), speed)
    yield grid(costs, head.format("MiB (relative to vanilla)", memory), most)


def roof_table(costs: Sequence[Cost], head: str, how: str) -> Iterator[str]:
    """Of the machine's own rate, what each reaches; nothing where no operations were counted."""
    counted = [cost for cost in costs if cost.roof_share is not None]
    if counted:
        rates = [(cost.matmul_rate or 0) / 1e9 for cost in counted], [(cost.bandwidth or 0) / 1e9 for cost in counted]
        products, copies = (f"{min(rate):.3g} to {max(rate):.3g}" for rate in rates)
        machine = f"matrix products {products} GFLOP/s, copies {copies} GB/s; {how}"
        yield grid(costs, head.format("% of the nearer roof (c compute, m memory)", machine), roof_cell)


def roof_cell(cost: Cost) -> str:
    return "-" if cost.roof_share is None else f"{100 * cost.roof_share:.0f} {cost.roof[0]}"


def time_cell(cost: Cost) -> str:
    relative = "" if cost.relative_to_softmax is None else f" ({cost.relative_to_softmax:.2f})"
    return f"{(cost.seconds or 0) * 1e3:.3g}{relative}"


def peer_cell(cost: Cost) -> str:
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
    """A row for each attention, a column for each length; what was not measured says why."""
    lengths = sorted({cost.length for cost in costs})
    texts: dict[str, dict[int, str]] = {}
    for cost in costs:
        texts.setdefault(name(cost), {})[cost.length] = cell(cost) if cost.status == "ok" else cost.status
    rows = [["", *map(str, lengths)]]
    rows += [[label, *(row.get(length, "") for length in lengths)] for label, row in texts.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])
