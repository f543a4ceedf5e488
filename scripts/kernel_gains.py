"""What gradients by hand buy over autograd of the same forward pass, written to results/efficiency/kernel_gains.csv.

Forward+backward in float32 on a CPU with 2 threads, 8 heads of width 64, both forms in turn: medians of the seconds,
and exact peaks of the memory. ``python scripts/kernel_gains.py [KERNEL...]`` measures these anew, or all.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels import depthwise, relative_window, windowed
from attentions.kernels.blocks import of_block
from cab.memory import peak_bytes

TABLE = Path(__file__).parents[1] / "results" / "efficiency" / "kernel_gains.csv"
LENGTHS, ROUNDS = (512, 4096, 8192), 5
SHAPE = (1, 8)

Form = Callable[..., Tensor | tuple[Tensor, ...]]
Kernel = Callable[[int], tuple[Form, Form, list[Tensor]]]
"""From a length to the kernel, plain PyTorch for the same, and the tensors that have gradients."""


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


# --- windows ---------------------------------------------------------------------------------------------------------


def plain_window(window: windowed.Window, *inputs: Tensor) -> Tensor:
    query, key, value, *slots = inputs
    slot_key, slot_value = slots or (None, None)
    means = []
    for block in windowed._blocks(query, key, window):
        keys, values = (windowed._join(x, block.keys, s) for x, s in ((key, slot_key), (value, slot_value)))
        means.append(windowed._weights(of_block(query, block.queries), keys, block, None) @ values)
    return torch.cat(means, dim=1).unflatten(0, SHAPE)


def local(length: int) -> tuple[Form, Form, list[Tensor]]:
    window = windowed.Window(8, 7)
    return (
        lambda *x: windowed.by_blocks(*x, window),
        lambda *x: plain_window(window, *x),
        leaves(*[(*SHAPE, length, 64)] * 3),
    )


def window_and_slots(length: int) -> tuple[Form, Form, list[Tensor]]:
    window = windowed.Window(7, 7, 15)
    return (
        lambda *x: windowed.by_blocks(*x[:3], window, x[3:]),
        lambda *x: plain_window(window, *x),
        leaves(*[(*SHAPE, length, 64)] * 3, *[(*SHAPE, 16, 64)] * 2),
    )


# --- windows with relative positions ---------------------------------------------------------------------------------

CHUNKS = relative_window.Chunks(256, 32, 1)
NAMES = ("slot_key", "slot_value", "key_position", "slot_position", "content_bias", "position_bias")


def relative(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
    return relative_window.causal_longshort(query, key, value, CHUNKS, **dict(zip(NAMES, others, strict=True)))


def plain_relative(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
    slot_key, slot_value, key_position, slot_position, *biases = others
    slots = slot_key.flatten(0, 1), slot_value.flatten(0, 1)
    means = []
    for block in relative_window._blocks(query, key_position.shape[1], CHUNKS):
        parts = relative_window._parts(
            block, query, key, slots[0], (key_position, slot_position), [bias.unsqueeze(1) for bias in biases]
        )
        width = parts.key.shape[1]
        columns = slice(block.first_column, block.first_column + width)
        by_key = relative_window._by_key(parts.position_query @ parts.key_position.mT)[..., columns]
        logits = torch.cat([by_key + parts.content_query @ parts.key.mT, parts.query @ parts.slot_key.mT], dim=-1)
        values = torch.cat([of_block(value, block.keys), slots[1][:, : block.slots]], dim=1)
        means.append(logits.softmax(dim=-1) @ values)
    return torch.cat(means, dim=1).unflatten(0, SHAPE)


def relative_window_and_slots(length: int) -> tuple[Form, Form, list[Tensor]]:
    num_slots = (length - 1) // CHUNKS.size
    rows, slots = [(*SHAPE, length, 64)] * 3, [(*SHAPE, num_slots, 64)] * 2
    return relative, plain_relative, leaves(*rows, *slots, (8, 256, 64), (8, num_slots, 64), (8, 64), (8, 64))


# --- the depthwise convolution ---------------------------------------------------------------------------------------


def depthwise_conv(length: int) -> tuple[Form, Form, list[Tensor]]:
    return (
        depthwise.depthwise_conv,
        lambda x, weight: F.conv2d(x, weight, padding=(2, 0), groups=8),
        leaves((*SHAPE, length, 64), (8, 1, 5, 1)),
    )


KERNELS: dict[str, Kernel] = {
    "windowed (local)": local,
    "windowed (longshort NS)": window_and_slots,
    "relative_window": relative_window_and_slots,
    "depthwise": depthwise_conv,
}


# --- measuring -------------------------------------------------------------------------------------------------------


def differentiated(form: Form, inputs: list[Tensor]) -> list[Tensor]:
    """Outputs and gradients."""
    outputs = form(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    return [*outputs, *torch.autograd.grad(outputs, inputs, [torch.ones_like(x) for x in outputs], allow_unused=True)]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, length: int) -> dict[str, object]:
    *forms, inputs = KERNELS[name](length)
    calls = [lambda form=form: differentiated(form, inputs) for form in forms]
    for by_hand, plain in zip(*(call() for call in calls), strict=True):
        torch.testing.assert_close(by_hand, plain, rtol=1e-3, atol=1e-3)
    times = [[seconds(call) for call in calls] for _ in range(ROUNDS)]
    hand, plain = (statistics.median(column) for column in zip(*times, strict=True))
    held, kept = (peak_bytes(call) for call in calls)
    return {
        "kernel": name,
        "length": length,
        "seconds by hand": f"{hand:.5f}",
        "seconds plain": f"{plain:.5f}",
        "bytes by hand": held,
        "bytes plain": kept,
    }


def main(names: list[str]) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    for name in (name for name in KERNELS if not names or name.split()[0] in names):
        rows = pd.DataFrame([measure(name, length) for length in LENGTHS])
        if TABLE.exists():
            before = pd.read_csv(TABLE, dtype=str)
            rows = pd.concat([before[before["kernel"] != name], rows])
        rows.to_csv(TABLE, index=False)
        print(rows[rows["kernel"] == name].to_string(index=False), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
