"""Windows and convolutions by plain autograd, beside the kernels that have their gradient by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from plain_sums import Forms, compared
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels import depthwise, relative_window, windowed
from attentions.kernels.blocks import of_block

SHAPE = (1, 8)


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


def local(length: int) -> Forms:
    window = windowed.Window(8, 7)
    inputs = leaves(*[(*SHAPE, length, 64)] * 3)
    return compared(lambda *x: windowed.by_blocks(*x, window), lambda *x: plain_window(window, *x), inputs)


def window_and_slots(length: int) -> Forms:
    window = windowed.Window(7, 7, 15)
    inputs = leaves(*[(*SHAPE, length, 64)] * 3, *[(*SHAPE, 16, 64)] * 2)
    return compared(lambda *x: windowed.by_blocks(*x[:3], window, x[3:]), lambda *x: plain_window(window, *x), inputs)


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


def relative_window_and_slots(length: int) -> Forms:
    num_slots = (length - 1) // CHUNKS.size
    rows, slots = [(*SHAPE, length, 64)] * 3, [(*SHAPE, num_slots, 64)] * 2
    inputs = leaves(*rows, *slots, (8, 256, 64), (8, num_slots, 64), (8, 64), (8, 64))
    return compared(relative, plain_relative, inputs)


# --- the depthwise convolution ---------------------------------------------------------------------------------------


def depthwise_conv(length: int) -> Forms:
    inputs = leaves((*SHAPE, length, 64), (8, 1, 5, 1))
    return compared(depthwise.depthwise_conv, lambda x, weight: F.conv2d(x, weight, padding=(2, 0), groups=8), inputs)


KERNELS: dict[str, Callable[[int], Forms]] = {
    "windowed (local)": local,
    "windowed (longshort NS)": window_and_slots,
    "relative_window": relative_window_and_slots,
    "depthwise": depthwise_conv,
}
