"""GPT-2 that remembers: block after block gives what layers give that see the same memory, and no more reaches them."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.transformer_xl import TransformerXLAttention
from cab import Attention, UserError
from cab.attention import DecodeState
from tests.helpers.backbones.records import same_gradients, small, tokens

XL = {"name": "transformer_xl", "segment": 4, "memory": 8}
"""Segments as long as the blocks that are read, so that the two cut gradients at the same places."""


def in_blocks(backbone: Any, blocks: Iterable[Tensor], mems: DecodeState) -> tuple[Tensor, DecodeState]:
    logits = []
    for block in blocks:
        found, mems = backbone(block, mems=mems)
        logits.append(found)
    return torch.cat(logits, dim=1), mems


def one_by_one(backbone: Any, ids: Tensor, length: int, remembered: int) -> Tensor:
    """The logits of one row: each layer of each block reads what it is given and a detached memory, token by token."""
    known: list[list[Tensor]] = [[] for _ in backbone.decoder_layers]
    logits = []
    for block in ids.split(length):
        xs = list(backbone.decoder_embedding(block[None], torch.arange(len(block))[None])[0])
        for layer, before in zip(backbone.decoder_layers, known, strict=True):
            memory = before[len(before) - min(remembered, len(before)) :]
            before += [x.detach() for x in xs]
            xs = [_layer(layer, memory, xs[: i + 1]) for i in range(len(xs))]
        logits.append(backbone.predict(backbone.finish(torch.stack(xs))))
    return torch.cat(logits)


def _layer(layer: Any, memory: list[Tensor], xs: list[Tensor]) -> Tensor:
    """What the layer makes of the last vector, which sees all."""
    attention: Attention = layer.self_attention
    parts = [layer.self_residual.enter(torch.stack(part)) for part in (memory, xs) if part]
    if isinstance(attention, TransformerXLAttention):  # which cuts the gradient at its own inputs, after the norm
        parts[:-1] = [part.detach() for part in parts[:-1]]
    read = torch.cat(parts)[None]
    query, key, value = attention.project(read, read, read)
    if isinstance(attention, TransformerXLAttention):
        distance = torch.arange(read.shape[1] - 1, -1, -1)[None]
        scores = attention.pair_logits(query[:, :, -1:], key, distance)
    else:
        scores = query[:, :, -1:] @ key.mT * attention.head_dim**-0.5
    y = attention.out_proj(attention.merge_heads(scores.softmax(dim=-1) @ value))[0, 0]
    x = layer.self_residual.leave(xs[-1], y)
    return layer.feed_forward_residual.leave(x, layer.feed_forward(layer.feed_forward_residual.enter(x)))


@pytest.mark.parametrize(("attention", "remembered", "positions"), [("vanilla", 4, "sinusoidal"), (XL, 8, "none")])
def test_logits_and_gradients_are_those_of_layers_that_see_the_same_memory(attention, remembered, positions):
    backbone, ids = small("gpt2", "CS", attention, positions=positions), tokens(2, 14)
    found, mems = in_blocks(backbone, ids.split(4, dim=1), backbone.init_mems(2, remembered))
    assert not any(x.requires_grad for x in mems.values())
    expected = torch.stack([one_by_one(backbone, row, 4, remembered) for row in ids])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    # Of later blocks alone: what reached the first would do so through the memory.
    same_gradients(backbone, found[:, 4:], expected[:, 4:], rtol=1e-8, atol=1e-9)


def test_padding_is_not_remembered():
    backbone, ids = small("gpt2", positions="none"), tokens(2, 9)
    _, mems = backbone(ids[:, :3], mems=backbone.init_mems(2, 5))
    _, mems = backbone(ids[:, 3:7], torch.tensor([[False, False, True, True], [False] * 4]), mems=mems)
    found, _ = backbone(ids[:, 7:], mems=mems)
    row = torch.cat([ids[0, :5], ids[0, 7:]])
    for expected, own in (([row[:3], row[3:5], row[5:]], found[0]), ([ids[1, :3], ids[1, 3:7], ids[1, 7:]], found[1])):
        logits, _ = in_blocks(backbone, [block[None] for block in expected], backbone.init_mems(1, 5))
        torch.testing.assert_close(own, logits[0, -2:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ["vanilla", XL])
def test_a_memory_that_is_cleared_has_no_effect_even_if_it_is_nan(attention):
    backbone, ids = small("gpt2", "CS", attention, positions="none"), tokens(2, 12)
    _, mems = backbone(ids[:, :4], mems=backbone.init_mems(2, 8))
    mems["inputs"][1] = torch.nan
    mems = backbone.reset_mems(mems, torch.tensor([False, True]))
    found, _ = in_blocks(backbone, ids[:, 4:].split(4, dim=1), mems)
    alone = [in_blocks(backbone, row.split(4, dim=1), backbone.init_mems(1, 8))[0] for row in (ids[:1], ids[1:, 4:])]
    expected = torch.cat([logits[:, -8:] for logits in alone])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    same_gradients(backbone, found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2_reversible", "gpt2_universal"])
def test_layers_that_are_reversible_or_repeated_remember_nothing(name):
    with pytest.raises(UserError, match="use backbone=gpt2"):
        small(name).init_mems(1, 4)
