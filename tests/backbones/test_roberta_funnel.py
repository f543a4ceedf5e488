"""RoBERTa in blocks between which the sequence is halved: the paper's equations, padding, the way back to tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab import Attention, Backbone, build_backbone
from tests.backbones.test_backbones_language import compare_gradients
from tests.helpers.backbones.language_models import WIDTH, padding, slots, small, tokens

BLOCKS = [2, 2, 1]


def funnel(attention: str = "vanilla") -> Backbone:
    return small("roberta_funnel", "NS", attention, num_layers=5)


def classifier() -> Backbone:
    sizes = {**WIDTH, "max_length": 37, "num_layers": 5, "num_classes": 3}
    return build_backbone("roberta_funnel_classifier", pattern="NS", **sizes).double().eval()


def groups(length: int) -> list[list[int]]:
    """The first token alone, then pairs, the last of which may be one."""
    return [[0], *(list(range(i, min(i + 2, length))) for i in range(1, length, 2))]


def written_out(backbone: Backbone, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The last block's vectors [P, D] and the tokens' [n, D] of one row [n] without padding, as the paper has it."""

    def attend(slot: Attention, target: Tensor, sources: Tensor) -> Tensor:
        q, k, v = (
            heads.unflatten(-1, (slot.num_heads, slot.head_dim))
            for heads in (slot.q_proj(target), slot.k_proj(sources), slot.v_proj(sources))
        )
        weights = (torch.einsum("he,mhe->hm", q, k) / slot.head_dim**0.5).softmax(dim=-1)
        return slot.out_proj(torch.einsum("hm,mhe->he", weights, v).flatten())

    def run(layer: nn.Module, targets: Tensor, sources: Tensor) -> Tensor:
        attended = torch.stack([attend(layer.self_attention, target, sources) for target in targets])
        x = layer.self_residual.norm(targets + attended)
        return layer.feed_forward_residual.norm(x + layer.feed_forward(x))

    h, layers, outputs = backbone.embedding(ids[None], torch.arange(len(ids))[None])[0], iter(backbone.layers), []
    held = [[i] for i in range(len(ids))]  # the tokens that each vector stands for
    for block, count in enumerate(BLOCKS):
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


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_it_is_the_papers_equations(length: int) -> None:
    """Outputs and all gradients, at lengths that pairs fill and that they do not."""
    backbone, ids = funnel(), tokens(2, length)
    found = backbone.encode(ids, None)
    expected = torch.stack([written_out(backbone, row)[1] for row in ids])
    torch.testing.assert_close(found, expected)
    head = backbone.head_norm(F.gelu(backbone.head(expected)))
    logits = head @ backbone.embedding.tokens.weight.t() + backbone.output_bias
    compare_gradients(backbone, backbone(ids), logits)


def test_slots_and_their_depths() -> None:
    """The attention under test everywhere but where lengths differ; each layer is told its place among all."""
    backbone = build_backbone(
        "roberta_funnel", attention="abc", pattern="NS", other_attention={"NC": "performer"}, num_layers=5,
        vocab_size=23, embed_dim=16, num_heads=2, ffn_dim=16, max_length=32,
    )  # fmt: skip
    kinds = [(str(slot.pattern), type(slot).__name__) for slot in slots(backbone)]
    own, other = ("NS", "ABCAttention"), ("NC", "PerformerAttention")
    assert kinds == [own, own, other, own, other, own, own]
    depths = small("roberta_funnel", "NS", "differential", num_layers=5)
    assert [slot.initial for slot in slots(depths) if hasattr(slot, "initial")] == pytest.approx(
        [0.8 - 0.6 * 2.718281828459045 ** (-0.3 * index) for index in (0, 1, 3, 5, 6)]
    )


def test_a_classifier_reads_the_first_vector_of_the_last_block() -> None:
    """Without a decoder, as the paper fine-tunes; it goes on from the weights of a masked language model."""
    backbone, pretrained, ids, mask = classifier(), funnel(), tokens(5, 19), padding(19)
    assert len(backbone.layers) == 5
    backbone.take_pretrained(pretrained.state_dict())
    for row in range(5):
        last, _ = written_out(pretrained, ids[row, ~mask[row]])
        expected = backbone.classifier(last[0])
        torch.testing.assert_close(backbone(ids, mask)[row], expected)
