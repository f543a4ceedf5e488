"""The kernels of recurrent methods: blocks against one token after the other, decays at both ends of their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.kernels.delta_rule import delta_rule, generalized_delta_rule
from attentions.kernels.layers import ShortConvolution
from attentions.kernels.recurrence import BLOCK, recurrence

ROWS, HEADS, KEYS, VALUES = 2, 3, 5, 4


def additive(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token."""
    outputs = []
    for t in range(q.shape[2]):
        if g is not None:
            decay = g[:, :, t].exp()
            state = state * (decay[..., None, None] if g.dim() == 3 else decay.unsqueeze(-1))
        state = state + k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
        outputs.append((q[:, :, t].unsqueeze(-1) * state).sum(dim=-2))
    return torch.stack(outputs, dim=2), state


def corrected(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token."""
    outputs = []
    for t in range(q.shape[2]):
        if g is not None:
            state = state * g[:, :, t].exp()[..., None, None]
        missing = v[:, :, t] - (k[:, :, t].unsqueeze(-1) * state).sum(dim=-2)
        state = state + (b[:, :, t].unsqueeze(-1) * k[:, :, t]).unsqueeze(-1) * missing.unsqueeze(-2)
        outputs.append((q[:, :, t].unsqueeze(-1) * state).sum(dim=-2))
    return torch.stack(outputs, dim=2), state


def removed(q: Tensor, k: Tensor, v: Tensor, r: Tensor, e: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token."""
    outputs = []
    for t in range(q.shape[2]):
        transition = g[:, :, t].exp().diag_embed() - e[:, :, t].unsqueeze(-1) * r[:, :, t].unsqueeze(-2)
        state = transition @ state + k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
        outputs.append((q[:, :, t].unsqueeze(-1) * state).sum(dim=-2))
    return torch.stack(outputs, dim=2), state


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def decays(kind: str, length: int) -> Tensor | None:
    """Many near one and some that forget all, each of a token, or of a token's feature."""
    shape = (ROWS, HEADS, length) if kind == "head" else (ROWS, HEADS, length, KEYS)
    return None if kind == "none" else -((drawn(*shape).square() * 4) ** 3)


def assert_same(fast: Callable[..., Any], slow: Callable[..., Any], inputs: list[Tensor | None]) -> None:
    leaves = [x.requires_grad_() for x in inputs if x is not None]
    results = []
    for function in (fast, slow):
        output, state = function(*inputs)
        loss = output.cos().sum() + state.sin().sum()
        results.append([output, state, *torch.autograd.grad(loss, leaves)])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["none", "head", "feature"])
@pytest.mark.parametrize("length", [1, 2, 3, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_blocks_of_the_additive_rule_are_its_steps(length: int, kind: str) -> None:
    heads = [drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES)]
    assert_same(recurrence, additive, [*heads, decays(kind, length), drawn(ROWS, HEADS, KEYS, VALUES)])


@pytest.mark.parametrize("kind", ["none", "head", "feature"])
def test_queries_and_keys_of_all_heads_at_once(kind: str) -> None:
    shared = [drawn(ROWS, 1, 70, KEYS) for _ in range(2)]
    log_decay, state = decays(kind, 70), drawn(ROWS, HEADS, KEYS, VALUES)
    assert_same(recurrence, additive, [*shared, drawn(ROWS, HEADS, 70, VALUES), log_decay, state])


@pytest.mark.parametrize("kind", ["none", "head"])
@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, 2 * BLOCK + 5])
def test_blocks_of_the_delta_rule_are_its_steps(length: int, kind: str) -> None:
    query, key, value = (drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES))
    key = key / key.norm(dim=-1, keepdim=True)
    strength, state = 2 * torch.rand(ROWS, HEADS, length, dtype=torch.float64), drawn(ROWS, HEADS, KEYS, VALUES)
    assert_same(delta_rule, corrected, [query, key, value, strength, decays(kind, length), state])


def removals(length: int) -> tuple[Tensor, Tensor]:
    """Directions of length one, and a share in 0 to 1 of each of their features."""
    removal = drawn(ROWS, HEADS, length, KEYS)
    removal = removal / removal.norm(dim=-1, keepdim=True)
    return removal, removal * torch.rand_like(removal)


@pytest.mark.parametrize("largest", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 37])
def test_blocks_of_the_generalized_delta_rule_are_its_steps(length: int, largest: float) -> None:
    heads = [drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES)]
    log_decay = -largest * torch.rand(ROWS, HEADS, length, KEYS, dtype=torch.float64)
    state = drawn(ROWS, HEADS, KEYS, VALUES)
    assert_same(generalized_delta_rule, removed, [*heads, *removals(length), log_decay, state])


@pytest.mark.parametrize("rate", [0.0, -0.6, -1.0])
def test_dividing_decays_keeps_digits(rate: float) -> None:
    """float32 against float64 over many blocks, at both ends of the decays' range."""
    length = 301
    heads = [drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES)]
    log_decay = torch.full_like(heads[0], rate)
    inputs = [*heads, *removals(length), log_decay, drawn(ROWS, HEADS, KEYS, VALUES)]
    exact = generalized_delta_rule(*inputs)
    for got, wanted in zip(generalized_delta_rule(*(x.float() for x in inputs)), exact, strict=True):
        assert (got - wanted).norm() < 2e-6 * wanted.norm()


@pytest.mark.parametrize("kind", ["head", "feature"])
@pytest.mark.parametrize("rate", [-1e30, -200.0, -1e-7])
def test_digits_are_kept_beside_what_is_forgotten(rate: float, kind: str) -> None:
    """float32 against float64: the rate at some tokens, slow decays at the others, through whole blocks."""
    length = 3 * BLOCK
    heads = [drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES)]
    log_decay = -torch.rand_like(heads[0]) / 100
    log_decay[:, :, ::7] = rate
    if kind == "head":
        log_decay = log_decay[..., 0]
    state = drawn(ROWS, HEADS, KEYS, VALUES)
    inputs = [x.float() for x in (*heads, log_decay, state)]
    narrow = recurrence(*inputs)
    exact = recurrence(*(x.double() for x in inputs))
    for got, wanted in zip(narrow, exact, strict=True):
        assert (got - wanted).norm() < 1e-6 * wanted.norm()


@pytest.mark.parametrize("bias", [False, True])
def test_short_convolution_is_torch_s_own(bias: bool) -> None:
    module = ShortConvolution(HEADS, KEYS, 4, bias=bias).double()
    plain = torch.nn.Conv1d(HEADS * KEYS, HEADS * KEYS, 4, groups=HEADS * KEYS, bias=bias, padding=3).double()
    plain.weight.data = module.weight.data.permute(1, 3, 2, 0).flatten(0, 1)
    if module.bias is not None:
        plain.bias.data = module.bias.data.flatten()
    x = drawn(ROWS, HEADS, 9, KEYS)
    flat = x.transpose(2, 3).flatten(1, 2)
    expected = plain(flat)[..., :9].unflatten(1, (HEADS, KEYS)).transpose(2, 3)
    output, last = module(x, module.init_decode_state(ROWS, x), None)
    torch.testing.assert_close(output, expected)
    assert torch.equal(last, x[:, :, -3:])
