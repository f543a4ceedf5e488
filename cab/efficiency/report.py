"""Text tables of costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from cab.efficiency.cost import BUSY_SHARE, DECODING_PHASES, LAUNCH_BOUND, Cost
from cab.files.text_table import counted, text_table
from cab.records.verified import UNVERIFIED_MARK

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

LAUNCHES = f"* {LAUNCH_BOUND}: kernels run for less than {BUSY_SHARE:.0%} of a call, which waits for the host."
"""Note on marked times."""

UNCHECKED = f"{UNVERIFIED_MARK} a backend has not passed `cab verify --checks kernels`; column `unchecked` names it."
"""Note on times of such backends."""

Text = Callable[[Cost], str]


def tables(costs: Iterable[Cost]) -> str:
    """Return the tables of time, memory, roofline and third-party comparison, per batch size, pattern and phase."""
    groups = groupby(costs, key=lambda cost: (cost.batch_size, cost.pattern, cost.phase))
    return "\n\n".join(table for _, group in groups for table in phase_tables(list(group)))


def phase_tables(costs: Sequence[Cost]) -> Iterator[str]:
    """Yield the tables of one pattern and phase."""
    facts = costs[0]
    size = f"{facts.packed} lengths, " if facts.packed else ""
    size += f"batch {facts.batch_size}, width {facts.embed_dim}, {counted(facts.num_heads, 'head')}"
    threads = f", {counted(facts.threads, 'thread')}" if facts.device == "cpu" else ""
    where = f"{facts.hardware}, {facts.dtype}{threads}{', torch.compile' * bool(facts.compiled)}"
    how, memory = f"median of {facts.repeats} interleaved rounds", MEMORY_IS.get(facts.device, "")
    if facts.protocol == "paper":
        how = f"protocol paper: mean of the middle half of {facts.repeats} unsynchronized calls"
        memory = "peak over all lengths so far, including weights"

    def table(
        title: str, note: str, cell: Text, rows: Sequence[Cost] = costs, name: Text = lambda cost: cost.attention
    ) -> str:
        return f"{facts.pattern} {facts.phase}: {title}\n{size}; {where}; {note}\n{grid(rows, cell, name)}"

    if facts.protocol == "lra":  # as in Tay et al. 2021, Table 2
        vanilla = {cost.length: cost.bytes for cost in costs if cost.attention == "vanilla"}
        yield table("steps per second (relative to vanilla)", f"two-layer classifier; {how}", _speed)
        yield table("MiB (relative to vanilla)", memory, lambda cost: _memory(cost, vanilla.get(cost.length)))
        return
    is_decoding = facts.phase in DECODING_PHASES
    others = {cost.fastest_softmax for cost in costs} - {"", "vanilla"}
    softmax = "the fastest softmax kernel" if others else "vanilla"
    times = table("ms per token after a prefix" if is_decoding else f"ms per call (relative to {softmax})", how, _time)
    notes = [LAUNCHES] * any(cost.detail == LAUNCH_BOUND for cost in costs)
    notes += [UNCHECKED] * any(cost.unchecked for cost in costs)
    yield "\n".join([times, *notes])
    if is_decoding:
        yield table("KiB of state", "all rows of the batch", lambda cost: f"{(cost.bytes or 0) / 2**10:.1f}")
    else:
        yield table("MiB", memory, lambda cost: f"{(cost.bytes or 0) / 2**20:.1f}")
    if chosen := [cost for cost in costs if cost.pairs_kept is not None]:
        note = "at most; 100: the choice removes none at this length"
        yield table("% of the pairs that are kept", note, lambda cost: f"{100 * (cost.pairs_kept or 0):.3g}", chosen)
    if any(cost.host_seconds for cost in costs):
        yield table("ms of the host / % of the call in which kernels run / watts / mJ per token", how, _gpu)
    if changed := [cost for cost in costs if cost.change or (cost.bytes_vs_former or 1.0) != 1.0]:
        note = "times whose percentiles do not overlap"
        yield table("changes from the earlier table: time / memory ratio", note, _change, changed)
    rated = [cost for cost in costs if cost.roof_share is not None]
    if rated:
        rates = [(cost.matmul_rate or 0) / 1e9 for cost in rated], [(cost.bandwidth or 0) / 1e9 for cost in rated]
        products, copies = (f"{min(rate):.3g} to {max(rate):.3g}" for rate in rates)
        note = f"matrix products {products} GFLOP/s, copies {copies} GB/s; {how}"
        roofs = table("% of the limiting roofline (c compute, m memory)", note, _roof)
        is_above = any((cost.roof_share or 0) > 1 for cost in rated)
        yield f"{roofs}\n{ABOVE_ROOF}" if is_above else roofs
    if packed := [cost for cost in costs if cost.speedup_vs_padded]:
        title = "speedup of packed over padded sequences / memory ratio"
        yield table(title, how, lambda cost: f"{cost.speedup_vs_padded:.2f} / {cost.bytes_vs_padded:.2f}", packed)
    if compared := [cost for cost in costs if cost.best_third_party]:
        measured = {(cost.attention, cost.length): cost for cost in costs}
        yield table(
            "ms beyond the projections / MiB, each with that of the best third-party version",
            how,
            lambda cost: _third_party(cost, measured[cost.best_third_party, cost.length]),
            compared,
            lambda cost: f"{cost.attention} ({cost.best_third_party.split('@')[1]})",
        )


def grid(costs: Sequence[Cost], cell: Text, name: Text) -> str:
    """Return a table with one row per attention and one column per length; cells without a value show the status."""
    lengths = sorted({cost.length for cost in costs})
    texts: dict[str, dict[int, str]] = {}
    for cost in costs:
        texts.setdefault(name(cost), {})[cost.length] = cell(cost) if cost.status == "ok" else cost.status
    rows = [[label, *(row.get(length, "") for length in lengths)] for label, row in texts.items()]
    return text_table(["", *lengths], rows, align="lr")


# --- cells ------------------------------------------------------------------------------------------------------------


def _time(cost: Cost) -> str:
    mark = "*" * (cost.detail == LAUNCH_BOUND) + UNVERIFIED_MARK * bool(cost.unchecked)
    return f"{(cost.seconds or 0) * 1e3:.3g}{_ratio(cost.relative_to_softmax)}{mark}"


def _speed(cost: Cost) -> str:
    return f"{1 / (cost.seconds or math.inf):.3g}{_ratio(cost.relative_to_softmax and 1 / cost.relative_to_softmax)}"


def _memory(cost: Cost, vanilla: int | None) -> str:
    return f"{(cost.bytes or 0) / 2**20:.0f}{_ratio(vanilla and (cost.bytes or 0) / vanilla)}"


def _ratio(ratio: float | None) -> str:
    return f" ({ratio:.2f})" if ratio else ""


def _roof(cost: Cost) -> str:
    return "-" if cost.roof_share is None else f"{100 * cost.roof_share:.0f} {cost.roof[0]}"


def _gpu(cost: Cost) -> str:
    factors = (cost.host_seconds, 1e3), (cost.busy, 100), (cost.power, 1), (cost.joules_per_token, 1e3)
    return " / ".join(_number(value, factor) for value, factor in factors)


def _change(cost: Cost) -> str:
    time = f"{cost.seconds_vs_former:.2f}" if cost.change else "-"
    return f"{time} / {cost.bytes_vs_former:.2f}" if cost.bytes_vs_former else time


def _third_party(cost: Cost, other: Cost) -> str:
    times = (_number(x.seconds_without_projections, 1e3) for x in (cost, other))
    return f"{' '.join(times)} / {' '.join(_number(x.bytes, 2.0**-20) for x in (cost, other))}"


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:.3g}"
