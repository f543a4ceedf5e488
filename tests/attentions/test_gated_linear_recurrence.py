"""The Triton kernel of sums that forget: interpreted against the loop and readable forms, and compiled for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attentions import efficient
from attentions.kernels import causal_abc, recurrence as kernels
from attentions.kernels.recurrence import BLOCK, recurrence
from cab import build_attention
from tests.attentions.agreement import assert_compiles, assert_forms_agree, make
from tests.attentions.interpreter import compiled, interpreted, needs_triton
from tests.attentions.test_recurrence import additive

pytestmark = needs_triton

ADDITIVE = (
    "abc", "based", "cosformer", "efficient", "flowformer", "gla", "hgrn2", "lightning", "linear", "luna",
    "norm_attention", "performer", "retention", "rfa", "rwkv6", "ssd",
)  # fmt: skip
"""Attentions whose causal form has such sums."""


@pytest.fixture
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum is formed by the interpreted kernel."""
    from attentions.kernels import triton_kernels

    monkeypatch.setattr(
        triton_kernels,
        "recurrence_kernel",
        interpreted(triton_kernels.recurrence_kernel),
    )
    for module in (kernels, causal_abc):
        monkeypatch.setattr(module, "uses_triton", lambda _: True)


def sums_and_gradients(inputs: list[Tensor | None]) -> list[Tensor]:
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    before, last = kernels.gated_linear_recurrence(*leaves)  # type: ignore[arg-type]
    loss = before.double().cos().sum() + last.double().sin().sum()
    return [before, last, *torch.autograd.grad(loss, [x for x in leaves if x is not None])]


def assert_near(found: list[Tensor], expected: list[Tensor], error: float) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert got.isfinite().all()
        assert (got.double() - wanted.double()).norm() <= error * wanted.double().norm()


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("dtype", "kinds", "error"),
    [
        (torch.float32, ("none", "head", "heads", "rows"), 1e-6),
        (torch.float64, ("rows",), 1e-14),
        (torch.bfloat16, ("none", "rows"), 1e-2),
    ],
)
@pytest.mark.parametrize("shape", [(5, 3, 1), (16, 17, 5)])
def test_the_kernel_is_the_loop(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    kinds: tuple[str, ...],
    error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States of fewer numbers than a program holds, and of more; bfloat16 is summed in float32."""
    width, value_width, count = shape
    factors = {"head": (1, 2, count, 1, 1), "heads": (2, 2, count, 1, 1), "rows": (2, 2, count, width, 1)}
    cases, state = [], (width, value_width)
    for kind in kinds:
        factor = torch.rand(factors[kind]).to(dtype) if kind in factors else None
        cases.append([torch.randn(2, 2, *state).to(dtype), torch.randn(2, 2, count, *state).to(dtype), factor])
    found = [sums_and_gradients(case) for case in cases]
    monkeypatch.setattr(kernels, "uses_triton", lambda _: False)
    for sums, case in zip(found, cases, strict=True):
        assert all(x.dtype is dtype for x in sums)
        assert_near(sums, sums_and_gradients([None if x is None else x.double() for x in case]), error)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("kind", ["none", "head", "feature"])
@pytest.mark.parametrize(("length", "width"), [(2, 4), (BLOCK + 1, 8), (2 * BLOCK + 5, 17)])
def test_a_recurrence_is_its_steps(kind: str, length: int, width: int) -> None:
    """Float32, outputs and every gradient."""
    log_decay = {"none": None, "head": -torch.rand(2, 3, length), "feature": -torch.rand(2, 3, length, width)}[kind]
    heads = [torch.randn(2, 3, length, size) for size in (width, width, width + 1)]
    inputs = [*heads, log_decay, torch.randn(2, 3, width, width + 1)]
    leaves = [x.requires_grad_() for x in inputs if x is not None]
    results = []
    for function, given in ((recurrence, inputs), (additive, [None if x is None else x.double() for x in inputs])):
        output, state = function(*given)
        loss = output.double().cos().sum() + state.double().sin().sum()
        results.append([output, state, *torch.autograd.grad(loss, leaves)])
    assert_near(*results, error=1e-5)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("abc", 70),
        ("efficient", 70),
        ("linear", 2 * BLOCK + 3),
        ("gla", 37),
        *(pytest.param(name, length, marks=pytest.mark.slow) for name in ADDITIVE for length in (1, BLOCK + 3)),
    ],
)
def test_attentions_equal_their_readable_forms(name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (efficient, causal_abc):
        monkeypatch.setattr(kernel, "SPAN", 64)
    module = make(name, "CS")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)  # RWKV-6's decays are exp of exp: to 1e-9 no two ways of summing agree on extreme ones
    assert_forms_agree(module, length, length)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("name", ["linear", "gla"])
def test_in_bfloat16(name: str) -> None:
    module = build_attention(name, pattern="CS", embed_dim=24, num_heads=3)
    x = torch.randn(2, BLOCK + 5, 24, requires_grad=True)
    results = []
    for module.use_reference, low in ((False, True), (True, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            output = module(x)
        results.append([output, *torch.autograd.grad(output.float().cos().sum(), [x, *module.parameters()])])
    assert_near(*results, error=3e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("name", ["abc", "linear", "performer", "gla"])
def test_the_compiler_reads_the_kernel_as_one_operator(name: str) -> None:
    assert_compiles(make(name, "CS"), 70)


@pytest.mark.parametrize("pointer", ["*fp32", "*bf16", "*fp64"])
def test_the_kernel_compiles_for_a_gpu(pointer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.language as tl

    from attentions.kernels.triton_kernels import RECURRENCE_TILE, RECURRENCE_WARPS, recurrence_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tensors = dict.fromkeys(("first", "added", "factor", "before", "last"), pointer)
    every = ("num_blocks", "size", "num_factors")
    for backwards, forgets, ones in ((False, True, ()), (True, True, every[2:]), (False, False, every[2:])):
        kind = tl.float64 if pointer == "*fp64" else tl.float32
        constants = {"BACKWARDS": backwards, "FORGETS": forgets, "TYPE": kind, "TILE": RECURRENCE_TILE}
        constants |= dict.fromkeys(ones, 1)  # a number that is 1 is a constant to Triton: one factor a head
        numbers = {name: "i32" for name in every if name not in ones}
        ptx = compiled(recurrence_kernel, tensors, numbers, constants, RECURRENCE_WARPS).asm["ptx"]
        assert ".target sm_90" in ptx
        if pointer != "*bf16":  # of two bytes no copy is
            assert "cp.async" in ptx  # the blocks to come are fetched while one is added
