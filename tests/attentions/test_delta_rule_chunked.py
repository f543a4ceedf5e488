"""The Triton kernel of delta rules: interpreted against the loop and readable forms, and compiled for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.kernels import delta_rule as kernels
from attentions.kernels.delta_rule import BLOCK, WIDEST, delta_rule, delta_rule_chunked, generalized_delta_rule
from cab import build_attention
from cab.efficiency.operations import count_operations
from tests.attentions.agreement import assert_compiles, assert_forms_agree, make, with_output
from tests.attentions.interpreter import compiled, interpreted, needs_triton
from tests.attentions.test_gated_linear_recurrence import assert_near
from tests.attentions.test_recurrence import corrected, removed

pytestmark = needs_triton

SHARED_MEMORY = 227 * 1024
"""Bytes that a program may have on compute capability 9.0."""


@pytest.fixture
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every walk over blocks is the interpreted kernel's."""
    from attentions.kernels import triton_kernels

    kernel = interpreted(triton_kernels.delta_rule_kernel)
    monkeypatch.setattr(triton_kernels, "delta_rule_kernel", kernel)
    monkeypatch.setattr(kernels, "uses_triton", lambda _: True)


def with_gradients(function: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor | None]) -> list[Tensor]:
    """Outputs, and the gradients of a function of them all."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    loss = sum((x.double() * (1 + number)).sin().sum() for number, x in enumerate(outputs))
    return [*outputs, *torch.autograd.grad(loss, [x for x in leaves if x is not None])]  # type: ignore[arg-type]


def upcast(inputs: list[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.double() for x in inputs]


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("dtype", "kinds", "error"),
    [
        (torch.float32, ("none", "head", "heads", "rows"), 1e-6),
        (torch.float64, ("rows",), 1e-14),
        (torch.bfloat16, ("none", "rows"), 2e-2),
    ],
)
@pytest.mark.parametrize("shape", [(5, 3, 1, 1), (17, 20, 4, 5), (40, 33, 32, 2)])
def test_the_kernel_is_the_loop(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    kinds: tuple[str, ...],
    error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sides that are no power of two, and more columns than a program has; bfloat16 is summed in float32."""
    keys, values, rows, count = shape
    factors = {"head": (1, 2, count, 1, 1), "heads": (2, 2, count, 1, 1), "rows": (2, 2, count, keys, 1)}
    cases: list[list[Tensor | None]] = []
    for kind in kinds:
        sizes = [(2, 2, keys, values), *((2, 2, count, rows, width) for width in (values, keys, keys))]
        drawn = [torch.randn(size) * size[-1] ** -0.5 for size in sizes]
        factor = torch.rand(factors[kind]).to(dtype) if kind in factors else None
        cases.append([*(x.to(dtype) for x in drawn), factor])
    found = [with_gradients(delta_rule_chunked, case) for case in cases]
    monkeypatch.setattr(kernels, "uses_triton", lambda _: False)
    for states, case in zip(found, cases, strict=True):
        assert all(x.dtype is dtype for x in states)
        assert_near(states, with_gradients(delta_rule_chunked, upcast(case)), error)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("kind", ["none", "head"])
@pytest.mark.parametrize(
    ("length", "keys", "values"), [(1, 3, 5), (2, 4, 2), (BLOCK + 1, 8, 17), (2 * BLOCK + 5, 21, 6)]
)
def test_a_delta_rule_is_its_steps(kind: str, length: int, keys: int, values: int) -> None:
    """Float32, outputs and every gradient."""
    query, key, value = (torch.randn(2, 3, length, width) for width in (keys, keys, values))
    key = key / key.norm(dim=-1, keepdim=True)
    log_decay = None if kind == "none" else -torch.rand(2, 3, length)
    inputs = [query, key, value, torch.rand(2, 3, length), log_decay, torch.randn(2, 3, keys, values)]
    assert_near(with_gradients(delta_rule, inputs), with_gradients(corrected, upcast(inputs)), 1e-5)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(("length", "keys", "values"), [(1, 3, 5), (15, 8, 17), (37, 21, 6)])
def test_a_generalized_delta_rule_is_its_steps(length: int, keys: int, values: int) -> None:
    """Float32, outputs and every gradient."""
    query, key, value = (torch.randn(2, 3, length, width) for width in (keys, keys, values))
    removal = torch.randn(2, 3, length, keys)
    removal = removal / removal.norm(dim=-1, keepdim=True)
    erasure, log_decay = removal * torch.rand_like(removal), -torch.rand_like(removal)
    inputs: list[Tensor | None] = [query, key, value, removal, erasure, log_decay, torch.randn(2, 3, keys, values)]
    assert_near(with_gradients(generalized_delta_rule, inputs), with_gradients(removed, upcast(inputs)), 1e-5)


def test_states_too_wide_for_the_kernel_go_a_step_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, which is not interpreted here, would refuse tensors of the CPU."""
    monkeypatch.setattr(kernels, "uses_triton", lambda _: True)
    query, key, value = (torch.randn(1, 1, 3, width) for width in (WIDEST + 1, WIDEST + 1, 2))
    output, _ = delta_rule(query, key, value, torch.rand(1, 1, 3), None, torch.zeros(1, 1, WIDEST + 1, 2))
    assert output.isfinite().all()


@pytest.mark.usefixtures("_fused")
def test_what_the_kernel_computes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = build_attention("deltanet", pattern="CS", embed_dim=24, num_heads=3), torch.randn(2, BLOCK + 5, 24)
    found = count_operations(lambda: module(x))
    monkeypatch.setattr(kernels, "uses_triton", lambda _: False)
    assert found == count_operations(lambda: module(x))
    assert not found.unknown


NAMES = ("deltanet", "gated_deltanet", "rwkv7", "dpfp")


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("name", "length"),
    [
        *((name, BLOCK + 5) for name in NAMES[:3]),
        *(pytest.param(name, length, marks=pytest.mark.slow) for name in NAMES for length in (1, 2 * BLOCK + 3)),
    ],
)
def test_attentions_equal_their_readable_forms(name: str, length: int) -> None:
    assert_forms_agree(make(name, "CS"), length, length)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("name", NAMES[:3])
def test_in_bfloat16(name: str) -> None:
    """Output and all gradients together; a small gradient alone, such as that of a rate, has few digits in bfloat16."""
    module = with_output(build_attention(name, pattern="CS", embed_dim=24, num_heads=3))
    x = torch.randn(2, BLOCK + 5, 24, requires_grad=True)
    results = []
    for module.use_reference, low in ((False, True), (True, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            output = module(x)
        gradients = torch.autograd.grad(output.float().cos().sum(), [x, *module.parameters()])
        results.append([torch.cat([y.float().flatten() for y in (output, *gradients)])])
    assert_near(*results, error=2e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("name", NAMES)
def test_the_compiler_reads_the_kernel_as_one_operator(name: str) -> None:
    assert_compiles(make(name, "CS"), BLOCK + 5)


@pytest.mark.parametrize(
    ("pointer", "keys"),
    [
        ("*bf16", 48),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("*fp32", 64), ("*fp32", 256), ("*fp64", 128))),
    ],
)
def test_the_kernel_compiles_for_a_gpu(
    pointer: str, keys: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton.language as tl

    from attentions.kernels.triton_kernels import delta_rule_kernel, num_warps, tiles

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = ("first", "own", "read", "late", "factor", "added", "written", "before", "last")
    kind = tl.float64 if pointer == "*fp64" else tl.float32
    for backwards, factors in ((False, 1), (True, keys)):
        constants: dict[str, Any] = {"ROWS": BLOCK, "KEYS": keys, "VALUES": 96, "FACTORS": factors, "TYPE": kind}
        constants |= {"ADDS": backwards, "BACKWARDS": backwards, **tiles(BLOCK, keys)}
        numbers = {"num_blocks": "i32"}
        made = compiled(delta_rule_kernel, dict.fromkeys(names, pointer), numbers, constants, num_warps(keys))
        assert ".target sm_90" in made.asm["ptx"]
        assert "mma.sync" in made.asm["ptx"]
        assert made.metadata.shared <= SHARED_MEMORY
