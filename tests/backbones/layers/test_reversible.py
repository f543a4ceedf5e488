"""Reversible layers: what they compute, their gradients and memory, and what is counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.layers import reversible
from cab import Backbone, build_backbone
from cab.training import auxiliary_loss
from cab.verification.growth import peak_bytes
from tests.helpers.backbones.language_models import SMALL, padding, small, tokens


def network(attention: Any = "vanilla", **options: Any) -> Backbone:
    return small("gpt2_reversible", "CS", attention, **options)


def objective(backbone: Backbone, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """A loss of the output, and what the network adds to it."""
    torch.manual_seed(7)
    output = backbone(ids, mask).flatten(0, -2)
    own = auxiliary_loss(backbone)
    loss = F.cross_entropy(output, torch.arange(len(output)) % output.shape[1])
    return loss if own is None else loss + own


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to autograd to keep what it needs."""
    monkeypatch.setattr(reversible, "couple_reversibly", reversible.couple)


def test_two_streams_take_turns() -> None:
    """y_1 = x_1 + attention(norm(x_2)), y_2 = x_2 + feed_forward(norm(y_1)); the mean of the two comes out."""
    backbone, ids = network(), tokens(2, 13)
    first = second = backbone.decoder_embedding(ids, torch.arange(13)[None])
    for layer in backbone.decoder_layers:
        first = first + layer.self_attention(layer.self_residual.norm(second))
        second = second + layer.feed_forward(layer.feed_forward_residual.norm(first))
    expected = backbone.predict(backbone.final_norm((first + second) / 2))
    torch.testing.assert_close(backbone(ids), expected)


@pytest.mark.parametrize("num_layers", [1, 2, 9])
def test_gradients_are_those_of_the_plain_network(num_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, with dropout of every kind and padding; the same random numbers are drawn, and as many."""
    options = {"num_layers": num_layers, "dropout": 0.3, "attention_dropout": 0.2}
    backbone, ids, mask = network(**options).float().train(), tokens(5, 19), padding(19)
    found = []
    for _ in range(2):
        backbone.zero_grad()
        loss = objective(backbone, ids, mask)
        drawn = torch.rand(())
        loss.backward()
        found.append((loss.item(), drawn.item(), torch.cat([p.grad.flatten() for p in backbone.parameters()])))
        plainly(monkeypatch)
    assert found[0][:2] == found[1][:2]
    assert (found[0][2] - found[1][2]).norm() <= 1e-5 * found[1][2].norm()


def test_memory_hardly_grows_with_depth() -> None:
    """Peak of a forward and a backward pass; what is left of the growth is 5 kB of random state a branch."""

    def peak(name: str, num_layers: int) -> int:
        sizes = {**SMALL["gpt2"], "num_layers": num_layers}
        backbone = build_backbone(name, attention="linear", pattern="CS", **sizes).train()
        ids = tokens(1, 512)
        for parameter in backbone.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return peak_bytes(lambda: backbone(ids).sum().backward())

    assert peak("gpt2_reversible", 8) <= 1.15 * peak("gpt2_reversible", 2)
    assert peak("gpt2", 8) > 2 * peak("gpt2", 2)


def test_a_gradient_that_leaves_out_the_output_is_named() -> None:
    backbone = network({"name": "compressive", "segment": 4, "memory": 4, "compressed": 3}, num_layers=3).train()
    backbone(tokens(2, 21))
    own = auxiliary_loss(backbone)
    assert own is not None
    with pytest.raises(RuntimeError, match="let the gradient come through the network's output"):
        own.backward()
