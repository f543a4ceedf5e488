"""One layer for all steps: weights that are shared, halting by token, the ponder cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.layers.tokens import SinusoidalPositions
from backbones.layers.universal import PONDER_WEIGHT, FixedSteps
from cab import Backbone
from cab.training import auxiliary_loss
from tests.helpers.backbones.language_models import padding, small, tokens
from tests.helpers.backbones.learning import same_gradients

STEPS = 4


def universal(attention: str = "vanilla", **options: Any) -> Backbone:
    return small("gpt2_universal", "CS", attention, num_layers=STEPS, **options)


def halting(attention: str = "vanilla", **options: Any) -> Backbone:
    """Tokens of which some halt early, and some never."""
    backbone = small("gpt2_act", "CS", attention, num_layers=STEPS, **options)
    torch.nn.init.normal_(backbone.layer_stack.halting.weight, std=0.3)
    torch.nn.init.constant_(backbone.layer_stack.halting.bias, -1.4)
    return backbone


def steps_of(backbone: Backbone, *inputs: Any) -> Tensor:
    """The steps of each token, [B, N]."""
    seen: list[Tensor] = []
    hook = backbone.layer_stack.ponder.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    backbone(*inputs)
    hook.remove()
    return seen[0]


def objective(backbone: Backbone, ids: Tensor) -> Tensor:
    output = backbone(ids).flatten(0, -2)
    loss = F.cross_entropy(output, torch.arange(len(output)) % output.shape[1])
    own = auxiliary_loss(backbone)
    return loss if own is None else loss + own


def test_fixed_steps_are_a_network_of_layers_with_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, outputs and gradients; the layer's gradient is the sum of those of its copies."""
    monkeypatch.setattr(FixedSteps, "embed_step", lambda _, x, *__: x)
    shared, stacked = universal("abc"), small("gpt2", "CS", "abc", num_layers=STEPS)
    layers, copies = shared.decoder_layers, stacked.decoder_layers
    assert (len(layers), len(copies)) == (1, STEPS)
    weights = {key: value for key, value in shared.state_dict().items() if "layers.0." not in key}
    for number in range(STEPS):
        copies[number].load_state_dict(layers[0].state_dict())
    assert stacked.load_state_dict(weights, strict=False).unexpected_keys == []
    ids, mask = tokens(5, 19), padding(19)
    output, expected = shared(ids, mask), stacked(ids, mask)
    assert torch.equal(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    for key, parameter in layers[0].named_parameters():
        summed = sum(dict(layer.named_parameters())[key].grad for layer in copies)
        torch.testing.assert_close(parameter.grad, summed)


def test_learned_positions_have_learned_steps() -> None:
    backbone = universal(positions="learned", max_length=30).train()
    assert backbone.layer_stack.numbers.table.weight.shape == (STEPS, 24)
    objective(backbone, tokens(2, 11)).backward()
    assert (backbone.layer_stack.numbers.table.weight.grad.abs().amax(dim=1) > 0).all()


def one_by_one(backbone: Backbone, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Graves' equations of one row [1, n, D]: each token halts when its sum is full. Output, steps and remainders."""
    stack, layer, n = backbone.layer_stack, backbone.decoder_layers[0], x.shape[1]
    places = SinusoidalPositions(24)(torch.arange(n)[None])
    states, ponder = [[] for _ in range(n)], [[] for _ in range(n)]
    halted = [False] * n
    for t in range(1, STEPS + 1):
        step = SinusoidalPositions(24, offset=0)(torch.tensor([t]))
        after = layer(x + (step + (places if t > 1 else 0.0)).double())
        x = torch.stack([x[0, i] if halted[i] else after[0, i] for i in range(n)])[None]
        for i in range(n):
            if not halted[i]:
                states[i].append(x[0, i])
                ponder[i].append(torch.sigmoid(stack.halting.weight[0] @ x[0, i] + stack.halting.bias[0]))
                halted[i] = bool(sum(ponder[i]) >= 0.99)
    outputs, remainders = [], []
    for own, p in zip(states, ponder, strict=True):
        remainders.append(1 - sum(p[:-1], torch.zeros(()).double()))
        weights = [*p[:-1], remainders[-1]]
        outputs.append(sum(w * s for w, s in zip(weights, own, strict=True)))
    return torch.stack(outputs)[None], torch.tensor([len(p) for p in ponder]), torch.stack(remainders)


def test_halting_is_graves() -> None:
    """Outputs, steps, the ponder cost and all gradients, of rows one by one."""
    backbone, ids = halting().train(), tokens(3, 11)
    steps = steps_of(backbone, ids)
    assert set(steps.unique().tolist()) >= {2.0, 3.0, float(STEPS)}
    auxiliary_loss(backbone)
    output = backbone(ids)
    cost = auxiliary_loss(backbone)
    rows = [one_by_one(backbone, backbone.decoder_embedding(row[None], torch.arange(11)[None])) for row in ids]
    expected = torch.cat([backbone.predict(backbone.final_norm(row)) for row, _, _ in rows])
    torch.testing.assert_close(output, expected)
    assert torch.equal(steps, torch.stack([count for _, count, _ in rows]).double())
    slow = PONDER_WEIGHT * torch.stack([count + remainder for _, count, remainder in rows]).mean()
    torch.testing.assert_close(cost, slow)
    parameters = dict(backbone.named_parameters())
    gradients = [
        torch.autograd.grad(found.square().sum() + loss, list(parameters.values()))
        for found, loss in ((output, cost), (expected, slow))
    ]
    for name, again, plain in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(again, plain, msg=lambda text, name=name: f"{name}: {text}")


def test_padding_costs_nothing_and_evaluation_neither() -> None:
    backbone, ids, mask = halting().train(), tokens(5, 19), padding(19)
    backbone(ids, mask)
    cost = auxiliary_loss(backbone)
    costs = []
    for row in range(5):
        backbone(ids[row : row + 1, ~mask[row]])
        costs += [auxiliary_loss(backbone)] * int((~mask[row]).sum())
    torch.testing.assert_close(cost, torch.stack(costs).mean())
    backbone.eval()(ids, mask)
    assert auxiliary_loss(backbone) is None


def test_activations_are_recomputed_and_the_cost_counted_once() -> None:
    backbone, ids = halting(dropout=0.2), tokens(3, 11)
    assert same_gradients(backbone, lambda network: objective(network, ids)) < 1e-10
