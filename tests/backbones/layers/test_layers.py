"""Layers against plain forms: reversible ones, one that halts by token, batch norm, losses; farthest points."""

import os
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones import gpt2_reversible
from backbones.gpt2_universal import PONDER_WEIGHT
from backbones.layers import token_losses as token_losses_module
from backbones.layers.points import MOST_POINTS, NEAR_ORIGIN, farthest_points
from backbones.layers.speech import MaskedBatchNorm1d
from backbones.layers.token_losses import token_losses
from backbones.layers.tokens import SinusoidalPositions
from cab.kernels import used
from cab.training import auxiliary_loss
from cab.verification.growth import peak_bytes
from engines.torch.parallel import GlobalBatchNorm1d
from tests.helpers.attentions.interpreter import compiled, needs_triton, run_on_a_cpu
from tests.helpers.backbones.records import RECORDS, objective, padding, small, tokens
from tests.helpers.command import run_module


@pytest.mark.parametrize("num_layers", [1, 9])
def test_reversible_gradients_are_those_of_the_plain_network(num_layers, monkeypatch):
    """In float32, with dropout of every kind and padding; the same random numbers are drawn, and as many."""
    backbone = small("gpt2_reversible", num_layers=num_layers, dropout=0.3, attention_dropout=0.2).float().train()
    inputs, found = {"tokens": tokens(5, 19), "padding_mask": padding(19)}, []
    for _ in range(2):
        backbone.zero_grad()
        torch.manual_seed(7)
        loss = objective(backbone, inputs)
        drawn = torch.rand(())
        loss.backward()
        found.append((loss.item(), drawn.item(), torch.cat([p.grad.flatten() for p in backbone.parameters()])))
        monkeypatch.setattr(gpt2_reversible, "couple_reversibly", gpt2_reversible.couple)
    assert found[0][:2] == found[1][:2]
    assert (found[0][2] - found[1][2]).norm() <= 1e-5 * found[1][2].norm()


def test_memory_of_reversible_layers_hardly_grows_with_depth():
    """Peak of a forward and a backward pass; what is left of the growth is 5 kB of random state a branch."""

    def peak(name: str, num_layers: int) -> int:
        backbone = RECORDS["gpt2_reversible"].build(name, attention="linear", num_layers=num_layers).train()
        ids = tokens(1, 512)
        for parameter in backbone.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return peak_bytes(lambda: backbone(ids).sum().backward())

    assert peak("gpt2_reversible", 8) <= 1.15 * peak("gpt2_reversible", 2)
    assert peak("gpt2", 8) > 2 * peak("gpt2", 2)


def test_a_reversible_gradient_that_leaves_out_the_output_is_named():
    attention = {"name": "compressive", "segment": 4, "memory": 4, "compressed": 3}
    backbone = small("gpt2_reversible", attention=attention, num_layers=3).train()
    backbone(tokens(2, 21))
    own = auxiliary_loss(backbone)
    assert own is not None
    with pytest.raises(RuntimeError, match="let the gradient come through the network's output"):
        own.backward()


@pytest.mark.parametrize("kind", [MaskedBatchNorm1d, GlobalBatchNorm1d])
def test_statistics_of_batch_norm_are_those_of_the_real_positions(kind, monkeypatch):
    """Away from the origin, too; outputs, statistics and gradients, in one process and as in several."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda sums: sums)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    real = torch.arange(7) < torch.tensor([7, 1, 4])[:, None]
    x = (300 + torch.randn(3, 7, 5)).masked_fill(~real[..., None], 1e4).requires_grad_()
    results = []
    for norm in (kind(5, momentum=0.3), nn.BatchNorm1d(5, momentum=0.3)):
        norm.load_state_dict({**norm.state_dict(), "weight": torch.arange(5) - 1.5, "bias": torch.arange(5) / 3})
        given = () if type(norm) is nn.BatchNorm1d else (~real,)
        y = norm(x.transpose(1, 2), *given).transpose(1, 2)[real] if given else norm(x[real])
        gradients = torch.autograd.grad((y * torch.arange(y.numel()).view_as(y).cos()).sum(), [x, *norm.parameters()])
        results.append([y, *norm.buffers(), *gradients])
        assert (gradients[0][~real] == 0).all()
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "around", "error"),
    [
        (torch.float64, nullcontext(), 1e-14),
        (torch.float32, torch.autocast("cpu", torch.bfloat16), 1e-2),
        (torch.bfloat16, nullcontext(), 1e-2),
    ],
)
def test_losses_of_tokens_are_those_of_all_logits(dtype, around, error, has_bias, monkeypatch):
    """Some logits at a time, values and gradients; and of no vector."""
    monkeypatch.setattr(token_losses_module, "AT_ONCE", 5 * 53 + 7)  # five vectors

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        logits = F.linear(x, weight, bias).flatten(0, -2)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)

    for shape in ((0,), (3, 9)):
        x, weight, bias = (torch.randn(*size, dtype=dtype) for size in ((*shape, 8), (53, 8), (53,)))
        targets, each, results = torch.randint(53, shape), torch.randn(shape), []
        for function in (token_losses, plain):
            own = [leaf.clone().requires_grad_() for leaf in (x, 2 * weight, bias)[: 2 + has_bias]]
            with around:
                losses = function(*own[:2], own[2] if has_bias else None, targets)
            results.append([losses, *torch.autograd.grad((losses * each).sum(), own)])
        for got, wanted in zip(*results, strict=True):
            assert got.dtype is wanted.dtype
            assert (got - wanted).norm() <= error * wanted.norm()


def test_losses_have_second_derivatives(monkeypatch):
    monkeypatch.setattr(token_losses_module, "AT_ONCE", 20)
    x, weight = (torch.randn(size, 3, dtype=torch.float64, requires_grad=True) for size in (5, 7))
    targets, results = torch.tensor([0, 6, 2, 2, 1]), []
    for losses_of in (token_losses, lambda x, w, _, y: F.cross_entropy(F.linear(x, w), y, reduction="none")):
        [gradient] = torch.autograd.grad(losses_of(x, weight, None, targets).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), (x, weight)))
    torch.testing.assert_close(*results)


def halting() -> Any:
    """Tokens of which some halt early, and some never, in four steps."""
    backbone = small("gpt2_act", num_layers=4).train()
    torch.nn.init.normal_(backbone.layer_stack.halting.weight, std=0.3)
    torch.nn.init.constant_(backbone.layer_stack.halting.bias, -1.4)
    return backbone


def one_by_one(backbone: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Graves' equations of one row [1, n, D]: each token halts when its sum is full. Output, and steps + remainders."""
    stack, layer, n = backbone.layer_stack, backbone.decoder_layers[0], x.shape[1]
    places = SinusoidalPositions(24)(torch.arange(n)[None])
    states, ponder, halted = [[] for _ in range(n)], [[] for _ in range(n)], [False] * n
    for t in range(1, 5):
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


def test_halting_is_graves():
    """Outputs, the ponder cost and all gradients, of rows one by one."""
    backbone, ids = halting(), tokens(3, 11)
    output, cost = backbone(ids), auxiliary_loss(backbone)
    rows = [one_by_one(backbone, backbone.decoder_embedding(row[None], torch.arange(11)[None])) for row in ids]
    expected = torch.cat([backbone.predict(backbone.final_norm(row)) for row, _ in rows])
    torch.testing.assert_close(output, expected)
    costs = torch.stack([each for _, each in rows])
    assert {2.0, 3.0, 4.0} <= {*costs.floor().flatten().tolist()}
    slow = PONDER_WEIGHT * costs.mean()
    torch.testing.assert_close(cost, slow)
    sums = [found.square().sum() + loss for found, loss in ((output, cost), (expected, slow))]
    torch.testing.assert_close(*(torch.autograd.grad(x, list(backbone.parameters())) for x in sums))


def test_padding_costs_nothing_and_evaluation_neither():
    backbone, ids, mask = halting(), tokens(5, 19), padding(19)
    backbone(ids, mask)
    cost, costs = auxiliary_loss(backbone), []
    for row in range(5):
        backbone(ids[row : row + 1, ~mask[row]])
        costs += [auxiliary_loss(backbone)] * int((~mask[row]).sum())
    torch.testing.assert_close(cost, torch.stack(costs).mean())
    backbone.eval()(ids, mask)
    assert auxiliary_loss(backbone) is None


def clouds(num_points: int) -> Tensor:
    """Four clouds: random; half of it zero padding; on a grid, with many equal distances; all points at the origin."""
    grid = torch.randint(-2, 3, (num_points, 3)).float()
    padded = torch.randn(num_points, 3)
    padded[num_points // 2 :] = 0.0
    return torch.stack([torch.randn(num_points, 3), padded, grid, torch.zeros(num_points, 3)])


@pytest.mark.slow
@needs_triton
def test_the_kernel_chooses_the_points_of_the_loop(monkeypatch):
    """In a process of its own: the interpreter has to be chosen before Triton is loaded."""
    if "TRITON_INTERPRET" not in os.environ:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        done = run_module("pytest", "-x", "-q", "-p", "no:xdist", __file__, "-k", "of_the_loop")
        assert done.returncode == 0, done.stdout + done.stderr
        return
    sizes = ((37, 20), (37, 50), (1, 3))
    given = [(clouds(n).transpose(1, 2).contiguous().transpose(1, 2), count) for n, count in sizes]
    expected = [farthest_points(*each) for each in given]
    run_on_a_cpu("triton", monkeypatch)
    with used() as uses:
        assert all(torch.equal(farthest_points(*each), other) for each, other in zip(given, expected, strict=True))
    assert uses.counts == {"farthest_points": {"triton": 3}}


@needs_triton
def test_the_kernel_compiles_for_a_gpu(tmp_path, monkeypatch):
    from backbones.layers.triton_kernels import farthest_points_kernel, tile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = tile(MOST_POINTS)
    constants = {"NEAR_ORIGIN": NEAR_ORIGIN, "TILE": sizes["TILE"]}
    numbers = dict.fromkeys(("num_points", "num_steps", "stride"), "i32")
    tensors = {"points": "*fp32", "chosen": "*i64"}
    made = compiled(farthest_points_kernel, tensors, numbers, constants, sizes["num_warps"])
    assert ".target sm_90" in made.asm["ptx"]
    assert made.metadata.shared <= 1024  # for the reductions: the points are in registers


@pytest.mark.slow
def test_the_compiler_reads_one_operator():
    points = clouds(37)
    read = torch.compile(lambda x: farthest_points(x, 40) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(read(points), farthest_points(points, 40) + 1)
