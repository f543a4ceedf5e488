"""Implementations of kernels for windows, listed keys and buckets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions import logsparse
from attentions.bases.sparse import SparseAttention
from attentions.kernels import buckets, over_blocks, window_attention
from attentions.kernels.chunks import in_chunks
from attentions.kernels.numerics import attention_weights, mask_value, recompute
from attentions.kernels.over_blocks import by_key
from attentions.kernels.window_attention import Chunks, Distances, Slots, Window
from cab import build_attention
from tools.benchmarks.sum_kernels import HEADS, SLOTS, WIDTH, Forms, compared, normal

# --- windows ---------------------------------------------------------------------------------------------------------


def plain_window(window: Window, *inputs: Tensor) -> Tensor:
    """Compute window attention [h, N, E], with or without memory slots [h, r, E]."""
    query, key, value, *slots = inputs
    left, right, segment, _ = window
    size = segment * max(1, 64 // segment)
    length = query.shape[1]
    count = -(-length // size)
    q = F.pad(query * query.shape[-1] ** -0.5, (0, 0, 0, size * count - length)).unflatten(1, (count, size))
    keys, values = (
        F.pad(x, (0, 0, left, right + size * count - length)).unfold(1, size + left + right, size) for x in (key, value)
    )
    place = torch.arange(count * size).view(count, size, 1)
    at = place[:, :1] - left + torch.arange(size + left + right)
    start = place // segment * segment
    hidden = (at < 0) | (at >= length) | (at < start - left) | (at >= start + segment + right)
    if not slots:
        return (attention_weights(q @ keys, hidden, 0.0) @ values.mT).flatten(1, 2)[:, :length]
    hidden = F.pad(hidden, (0, slots[0].shape[1]))
    weights = attention_weights(torch.cat([q @ keys, q @ slots[0][:, None].mT], dim=-1), hidden, 0.0)
    width = keys.shape[-1]
    output = weights[..., :width] @ values.mT + weights[..., width:] @ slots[1][:, None]
    return output.flatten(1, 2)[:, :length]


def window_forms(window: Window, inputs: list[Tensor]) -> Forms:
    cost = 3 * inputs[0].shape[2] * (80 if len(inputs) == 3 else 100)

    def by_hand(*x: Tensor) -> Tensor:
        query, key, value, *slots = x
        return window_attention.by_blocks(query, key, value, window, slots=Slots(slots[0], slots[1]) if slots else None)

    def plain(*x: Tensor) -> Tensor:
        return plain_window(window, *(part.flatten(0, 1) for part in x)).unflatten(0, (1, HEADS))

    def checkpointed(*x: Tensor) -> Tensor:
        return in_chunks(lambda *part: plain_window(window, *part), x, cost=cost)

    return compared(inputs, by_hand, plain, checkpointed)


def local(length: int) -> Forms:
    return window_forms(Window(8, 7), normal(*[(1, HEADS, length, WIDTH)] * 3))


def window_and_slots(length: int) -> Forms:
    shapes = [(1, HEADS, length, WIDTH)] * 3 + [(1, HEADS, SLOTS, WIDTH)] * 2
    return window_forms(Window(7, 7, 15), normal(*shapes))


# --- windows with relative positions ---------------------------------------------------------------------------------

CHUNKS = Chunks(256, 32, before=0)


def relative(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
    slot_key, slot_value, embeddings, slot_embeddings, biases, content = others
    window, distances = Window(CHUNKS.window - 1, 0), Distances(embeddings, biases, content)
    slots = Slots(slot_key, slot_value, chunks=CHUNKS, embeddings=slot_embeddings)
    return window_attention.by_blocks(query, key, value, window, slots=slots, distances=distances)


class LongShortBlocks:
    """Compute LongShort's causal window with autograd, in blocks of four chunks."""

    size = 64

    def block(self, number: int, query: Tensor, *rest: Tensor) -> Tensor:
        """Compute a block [h, n, E] from the tokens up to its end, [h, <= W - 1 + n, E], and all slots."""
        key, value, slot_key, slot_value, embeddings, slot_embeddings, biases, content = rest
        n, num_keys, scale = query.shape[1], key.shape[1], WIDTH**-0.5
        q = (query + content[:, None]) * scale
        of_distance = by_key(q @ embeddings.mT + biases[:, None])[..., -num_keys:]
        seen = (number * self.size + n - 1) // CHUNKS.size
        i = number * self.size + torch.arange(n)[:, None]
        finished, s = i // CHUNKS.size, torch.arange(seen)
        of_slot = query @ slot_embeddings.mT
        at = ((s - finished) % slot_embeddings.shape[1]).expand(len(query), -1, -1)
        of_slot = (query @ slot_key[:, :seen].mT + of_slot.gather(2, at)) * scale
        of_slot = of_slot.masked_fill(s >= finished, mask_value())
        logits = torch.cat([of_distance + q @ key.mT, of_slot], dim=-1)
        weights = logits.softmax(dim=-1)
        return weights[..., :num_keys] @ value + weights[..., num_keys:] @ slot_value[:, :seen]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *others: Tensor, checkpointed: bool) -> Tensor:
        heads = [x.flatten(0, 1) for x in (query, key, value, *others[:2])]
        query, key, value, *slots = heads
        pieces = [x.split(self.size, dim=1) for x in (query, key, value)]
        window = CHUNKS.window // self.size
        outputs = []
        for number, q in enumerate(pieces[0]):

            def run(q: Tensor, *rest: Tensor, number: int = number) -> Tensor:
                count = min(number, window) + 1
                keys, values = torch.cat(rest[:count], dim=1), torch.cat(rest[count : 2 * count], dim=1)
                first = max(0, keys.shape[1] - (CHUNKS.window - 1 + q.shape[1]))
                return self.block(number, q, keys[:, first:], values[:, first:], *rest[2 * count :])

            near = slice(max(0, number - window), number + 1)
            arguments = [q, *pieces[1][near], *pieces[2][near], *slots, *others[2:]]
            outputs.append(recompute(run, *arguments) if checkpointed else run(*arguments))
        return torch.cat(outputs, dim=1).unflatten(0, (1, HEADS))


def relative_window_and_slots(length: int) -> Forms:
    num_slots = (length - 1) // CHUNKS.size
    rows, slots = [(1, HEADS, length, WIDTH)] * 3, [(1, HEADS, num_slots, WIDTH)] * 2
    inputs = normal(*rows, *slots, (8, 256, 64), (8, num_slots, 64), (8, 256), (8, 64))
    form = LongShortBlocks()
    return compared(inputs, relative, lambda *x: form(*x, checkpointed=False), lambda *x: form(*x, checkpointed=True))


# --- listed keys -----------------------------------------------------------------------------------------------------


def offset_forms(length: int) -> Forms:
    back = [0, *(2**p for p in range(length.bit_length()))]
    distances = [-d for d in back if d < length]

    def shifted(x: Tensor, by: int) -> Tensor:
        return F.pad(x, (0, 0, -by, 0))[:, : x.shape[1]]

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = torch.stack([(query * shifted(key, p)).sum(dim=-1) for p in distances], dim=-1) * WIDTH**-0.5
        hidden = torch.arange(length)[:, None] < -torch.tensor(distances)
        weights = logits.masked_fill(hidden, mask_value()).softmax(dim=-1)
        output = torch.zeros_like(query)
        for column, p in enumerate(distances):
            output = output.addcmul(weights[..., column, None], shifted(value, p))
        return output

    def whole(*x: Tensor) -> Tensor:
        return plain(*(part.flatten(0, 1) for part in x)).unflatten(0, (1, HEADS))

    def checkpointed(*x: Tensor) -> Tensor:
        return in_chunks(plain, x, cost=length * WIDTH * len(distances))

    inputs = normal(*[(1, HEADS, length, WIDTH)] * 3)
    return compared(
        inputs, lambda q, k, v: logsparse.relative_offset_attention(q, k, v, distances), whole, checkpointed
    )


def tile_forms(name: str, pattern: str) -> Callable[[int], Forms]:
    """Return the tiles of an attention pattern."""

    def gathered(listed: list[over_blocks.Block], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = [
            tile.keys if isinstance(tile.keys, Tensor) else torch.arange(len(key[0]))[tile.keys] for tile in listed
        ]
        if any(place.dim() == 2 for place in places):
            places = [place.expand(len(key), -1) for place in places]
            index = torch.cat(places, dim=1)[:, :, None].expand(-1, -1, WIDTH)
            keys, values = (x.gather(1, index) for x in (key, value))
        else:
            keys, values = (x.index_select(1, torch.cat(places)) for x in (key, value))
        widths = [place.shape[-1] for place in places]
        order = [
            tile.queries if isinstance(tile.queries, Tensor) else torch.arange(len(query[0]))[tile.queries]
            for tile in listed
        ]
        queries = query.index_select(1, torch.cat(order)).split([len(x) for x in order], dim=1)
        outputs = []
        for tile, q, k, v in zip(listed, queries, keys.split(widths, dim=1), values.split(widths, dim=1), strict=True):
            logits = q * WIDTH**-0.5 @ k.mT
            outputs.append(
                (logits if tile.hidden is None else logits.masked_fill(tile.hidden, mask_value())).softmax(dim=-1) @ v
            )
        return torch.cat(outputs, dim=1).index_select(1, torch.cat(order).argsort())

    def forms(length: int) -> Forms:
        attention = build_attention(name, pattern=pattern, embed_dim=HEADS * WIDTH, num_heads=HEADS)
        inputs = normal(*[(1, HEADS, length, WIDTH)] * 3)
        with mock.patch.object(sys.modules[type(attention).__module__], "tiled_attention") as call:
            assert isinstance(attention, SparseAttention)
            attention.attend_visible(*inputs)
        listed = call.call_args.args[3] if len(call.call_args.args) > 3 else call.call_args.kwargs["tiles"]

        def whole(*x: Tensor) -> Tensor:
            return gathered(listed, *(part.flatten(0, 1) for part in x)).unflatten(0, (1, HEADS))

        def checkpointed(*x: Tensor) -> Tensor:
            outputs = []
            for head in range(HEADS):
                own = [
                    tile._replace(
                        keys=tile.keys[head] if isinstance(tile.keys, Tensor) and tile.keys.dim() == 2 else tile.keys,
                        hidden=tile.hidden[head] if tile.hidden is not None and tile.hidden.dim() == 3 else tile.hidden,
                    )
                    for tile in listed
                ]
                outputs.append(recompute(gathered, own, *(part[0, head : head + 1] for part in x)))
            return torch.cat(outputs).unsqueeze(0)

        return compared(inputs, lambda q, k, v: over_blocks.tiled_attention(q, k, v, listed), whole, checkpointed)

    return forms


REACH, ROUNDS = buckets.BucketWindow(32, 32), 2


def bucket_forms(length: int) -> Forms:
    """Compare two rounds of random buckets of 64 tokens on average."""
    size = buckets.CPU_BLOCK
    number = torch.randint(max(1, length // size), (ROUNDS, 1, HEADS, length))
    order = number.argsort(dim=-1, stable=True)

    def heads_of(heads: slice, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute [1, h, N, E] from blocks of sorted tokens and their neighboring blocks."""
        found, totals = [], []
        for turn in range(ROUNDS):
            rows = buckets._Round(turn, number[:, :, heads], order[:, :, heads], REACH)
            blocks_of = [rows.sort(x).split(size, dim=1) for x in (query * WIDTH**-0.5, key, value)]
            means, masses = [], []
            for block, q in enumerate(blocks_of[0]):
                near = slice(max(0, block - 1), block + 2)
                k, v = (torch.cat(x[near], dim=1) for x in blocks_of[1:])
                begin, low = block * size, near.start * size
                where = slice(begin, begin + q.shape[1]), slice(low, low + k.shape[1])
                logits = rows.logits(q, k, *where)
                means.append(logits.softmax(dim=2) @ v)
                masses.append(logits.logsumexp(dim=2))
            found.append(rows.unsort(torch.cat(means, dim=1), query))
            totals.append(rows.unsort(torch.cat(masses, dim=1), query[..., 0]))
        shares = torch.stack(totals).softmax(dim=0).unsqueeze(-1)
        return (shares * torch.stack(found)).sum(dim=0)

    def checkpointed(*x: Tensor) -> Tensor:
        heads = [slice(head, head + 1) for head in range(HEADS)]
        return torch.cat([recompute(heads_of, one, *(part[:, one] for part in x)) for one in heads], dim=1)

    inputs = normal(*[(1, HEADS, length, WIDTH)] * 3)
    return compared(
        inputs,
        lambda q, k, v: buckets.bucket_attention(q, k, v, number, REACH),
        lambda q, k, v: heads_of(slice(0, HEADS), q, k, v),
        checkpointed,
    )


KERNELS: dict[str, Callable[[int], Forms]] = {
    "window_attention (local)": local,
    "window_attention (longshort NS)": window_and_slots,
    "window_attention (longshort CS)": relative_window_and_slots,
    "offsets (logsparse CS)": offset_forms,
    "tiles (bigbird NS)": tile_forms("bigbird", "NS"),
    "tiles (image_local CS)": tile_forms("image_local", "CS"),
    "tiles (sparse_transformer CS)": tile_forms("sparse_transformer", "CS"),
    "buckets (two rounds)": bucket_forms,
}
