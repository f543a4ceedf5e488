"""One layer for all steps: halting by token, and the ponder cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backbones.gpt2_universal import PONDER_WEIGHT
from backbones.layers.tokens import SinusoidalPositions
from cab.training import auxiliary_loss
from tests.helpers.backbones.records import padding, small, tokens

STEPS = 4


def halting() -> Any:
    """Tokens of which some halt early, and some never."""
    backbone = small("gpt2_act", num_layers=STEPS).train()
    torch.nn.init.normal_(backbone.layer_stack.halting.weight, std=0.3)
    torch.nn.init.constant_(backbone.layer_stack.halting.bias, -1.4)
    return backbone


def one_by_one(backbone: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Graves' equations of one row [1, n, D]: each token halts when its sum is full. Output, and steps + remainders."""
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
    outputs, costs = [], []
    for own, p in zip(states, ponder, strict=True):
        remainder = 1 - sum(p[:-1], torch.zeros(()).double())
        costs.append(len(p) + remainder)
        outputs.append(sum(w * s for w, s in zip([*p[:-1], remainder], own, strict=True)))
    return torch.stack(outputs)[None], torch.stack(costs)


def test_halting_is_graves() -> None:
    """Outputs, the ponder cost and all gradients, of rows one by one."""
    backbone, ids = halting(), tokens(3, 11)
    output, cost = backbone(ids), auxiliary_loss(backbone)
    rows = [one_by_one(backbone, backbone.decoder_embedding(row[None], torch.arange(11)[None])) for row in ids]
    expected = torch.cat([backbone.predict(backbone.final_norm(row)) for row, _ in rows])
    torch.testing.assert_close(output, expected)
    costs = torch.stack([each for _, each in rows])
    assert {2.0, 3.0, float(STEPS)} <= {*costs.floor().flatten().tolist()}
    slow = PONDER_WEIGHT * costs.mean()
    torch.testing.assert_close(cost, slow)
    parameters = list(backbone.parameters())
    sums = [found.square().sum() + loss for found, loss in ((output, cost), (expected, slow))]
    for again, plain in zip(*(torch.autograd.grad(x, parameters) for x in sums), strict=True):
        torch.testing.assert_close(again, plain)


def test_padding_costs_nothing_and_evaluation_neither() -> None:
    backbone, ids, mask = halting(), tokens(5, 19), padding(19)
    backbone(ids, mask)
    cost, costs = auxiliary_loss(backbone), []
    for row in range(5):
        backbone(ids[row : row + 1, ~mask[row]])
        costs += [auxiliary_loss(backbone)] * int((~mask[row]).sum())
    torch.testing.assert_close(cost, torch.stack(costs).mean())
    backbone.eval()(ids, mask)
    assert auxiliary_loss(backbone) is None
