"""RoBERTa in blocks between which the sequence is halved: the paper's equations, the way back to tokens."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Attention
from tests.helpers.backbones.records import padding, same_gradients, small, tokens


def groups(length: int) -> list[list[int]]:
    """The first token alone, then pairs, the last of which may be one."""
    return [[0], *(list(range(i, min(i + 2, length))) for i in range(1, length, 2))]


def written_out(backbone: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The last block's vectors [P, D] and the tokens' [n, D] of one row [n] without padding, as the paper has it."""

    def attend(slot: Attention, targets: Tensor, sources: Tensor) -> Tensor:
        parts = slot.q_proj(targets), slot.k_proj(sources), slot.v_proj(sources)
        q, k, v = (x.unflatten(-1, (slot.num_heads, slot.head_dim)).transpose(0, 1) for x in parts)
        weights = (q @ k.mT / slot.head_dim**0.5).softmax(dim=-1)
        return slot.out_proj((weights @ v).transpose(0, 1).flatten(1))

    def run(layer: Any, targets: Tensor, sources: Tensor) -> Tensor:
        x = layer.self_residual.norm(targets + attend(layer.self_attention, targets, sources))
        return layer.feed_forward_residual.norm(x + layer.feed_forward(x))

    h, layers, outputs = backbone.embedding(ids[None], torch.arange(len(ids))[None])[0], iter(backbone.layers), []
    held = [[i] for i in range(len(ids))]  # the tokens that each vector stands for
    for block, count in enumerate((2, 2, 1)):
        for number in range(count):
            sources = h
            if block > 0 and number == 0:
                h = torch.stack([sources[group].mean(dim=0) for group in groups(len(sources))])
                held = [[token for i in group for token in held[i]] for group in groups(len(sources))]
            h = run(next(layers), h, sources)
        outputs.append(h)
    h = torch.stack([outputs[0][i] + outputs[-1][p] for p, members in enumerate(held) for i in members])
    for layer in layers:
        h = run(layer, h, h)
    return outputs[-1], h


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_it_is_the_papers_equations(length):
    """Outputs and all gradients, at lengths that pairs fill and that they do not."""
    backbone, ids = small("roberta_funnel", num_layers=5), tokens(2, length)
    expected = torch.stack([written_out(backbone, row)[1] for row in ids])
    head = backbone.head_norm(F.gelu(backbone.head(expected)))
    logits, found = F.linear(head, backbone.embedding.tokens.weight, backbone.output_bias), backbone(ids)
    torch.testing.assert_close(found, logits)
    same_gradients(backbone, found, logits)


def test_each_layer_is_told_its_place_among_all():
    backbone = small("roberta_funnel", "NS", "differential", num_layers=5)
    found = [slot.initial for slot in backbone.modules() if hasattr(slot, "initial")]
    assert found == pytest.approx([0.8 - 0.6 * math.exp(-0.3 * index) for index in (0, 1, 3, 5, 6)])


def test_a_classifier_reads_the_first_vector_of_the_last_block():
    """Without a decoder, as the paper fine-tunes; it goes on from the weights of a masked language model."""
    backbone, pretrained = (small(name, num_layers=5) for name in ("roberta_funnel_classifier", "roberta_funnel"))
    ids, mask = tokens(5, 19), padding(19)
    assert len(backbone.layers) == 5
    backbone.take_pretrained(pretrained.state_dict())
    for row in range(5):
        last, _ = written_out(pretrained, ids[row, ~mask[row]])
        torch.testing.assert_close(backbone(ids, mask)[row], backbone.classifier(last[0]))
