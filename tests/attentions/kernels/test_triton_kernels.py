"""The Triton kernels of recurrences: interpreted against loops and readable forms, and compiled for a GPU."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions import efficient
from attentions.kernels import causal_abc
from attentions.kernels.delta_rule import BLOCK, delta_rule_chunked
from attentions.kernels.norms import gated_skip
from attentions.kernels.recurrence import block_recurrence
from attentions.mamba3 import turned
from cab import build_attention
from cab.efficiency.operations import count_operations
from cab.kernels import use
from tests.helpers.attentions.agreement import assert_forms_agree, draw, make, with_gradients
from tests.helpers.attentions.interpreter import compiled, interpreted, needs_triton, run_on_a_cpu
from tests.helpers.attentions.trust import slow_unless_new

SHARED_MEMORY = 227 * 1024  # bytes that a program may have on compute capability 9.0

ADDITIVE = (
    "abc", "based", "cosformer", "efficient", "flowformer", "gla", "hgrn2", "lightning", "linear", "luna",
    "norm_attention", "performer", "retention", "rfa", "rwkv6", "ssd",
)  # fmt: skip
CORRECTED = ("comba", "deltanet", "deltaproduct", "gated_deltanet", "kda", "rwkv7", "dpfp")
"""Attentions whose causal form has such recurrences."""
pytestmark = [needs_triton, *slow_unless_new(*ADDITIVE, *CORRECTED)]

Inputs = list[Tensor | None]


@pytest.fixture
def _fused(monkeypatch):
    """Every recurrence over blocks is the interpreted kernel's."""
    from attentions.kernels import triton_kernels

    for name in ("recurrence_kernel", "delta_rule_kernel", "gated_skip_kernel", "turned_kernel"):
        monkeypatch.setattr(triton_kernels, name, interpreted(getattr(triton_kernels, name)))
    run_on_a_cpu("triton", monkeypatch)


def upcast(inputs: Inputs) -> Inputs:
    return [None if x is None else x.double() for x in inputs]


def assert_near(results: list[Tensor], expected: list[Tensor], error: float) -> None:
    for got, wanted in zip(results, expected, strict=True):
        assert got.isfinite().all()
        assert (got.double() - wanted.double()).norm() <= error * wanted.double().norm()


def decay(kind: str, keys: int, count: int) -> Tensor | None:
    """Of each row of a state, of the whole state, of that of all sequences, or none."""
    shapes = {"head": (1, 2, count, 1, 1), "heads": (2, 2, count, 1, 1), "rows": (2, 2, count, keys, 1)}
    return torch.rand(shapes[kind]) if kind in shapes else None


def sums_case(shape: tuple[int, ...], kind: str) -> Inputs:
    keys, values, _, count = shape
    return [torch.randn(2, 2, keys, values), torch.randn(2, 2, count, keys, values), decay(kind, keys, count)]


def delta_case(shape: tuple[int, ...], kind: str) -> Inputs:
    keys, values, rows, count = shape
    sizes = [(2, 2, keys, values), *((2, 2, count, rows, width) for width in (values, keys, keys))]
    return [*(torch.randn(size) * size[-1] ** -0.5 for size in sizes), decay(kind, keys, count)]


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("dtype", "kinds", "error"),
    [
        (torch.float32, ("none", "head", "heads", "rows"), 1e-6),
        (torch.float64, ("rows",), 1e-14),
        (torch.bfloat16, ("none", "rows"), 2e-2),
    ],
)
@pytest.mark.parametrize(
    ("function", "case", "shape"),
    [
        (block_recurrence, sums_case, (5, 3, 0, 1)),
        (block_recurrence, sums_case, (16, 17, 0, 5)),
        (delta_rule_chunked, delta_case, (17, 20, 4, 5)),
        (delta_rule_chunked, delta_case, (40, 33, 32, 2)),
    ],
)
def test_the_kernel_is_the_loop(function, case, shape, dtype, kinds, error):
    """States of fewer numbers than a program holds, and of more; bfloat16 is summed in float32."""
    for kind in kinds:
        inputs = [None if x is None else x.to(dtype) for x in case(shape, kind)]
        with use("triton"):
            result = with_gradients(function, inputs)
        assert all(x.dtype is dtype for x in result)
        with use("pytorch"):
            assert_near(result, with_gradients(function, upcast(inputs)), error)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (2, 5), (2, 1)])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("shifts", [False, True])
def test_a_gate_after_a_skip(dtype, error, rows, tokens, norms, shifts):
    """Factors of a head, of its tokens and of its sequences; a width that is no power of two."""
    output, value, gate = torch.randn(2, 5, 3, 7).transpose(1, 2), torch.randn(2, 3, 5, 7), torch.randn(2, 5, 21)
    weight = torch.rand(21) if norms else None
    first = torch.randn(2, 3, 1, 7) if shifts else None
    given = output, torch.randn(rows, 3, tokens, 1), value, gate, weight, first
    inputs = [None if x is None else (x / 2).to(dtype) for x in given]
    function = functools.partial(gated_skip, eps=1e-5)
    with use("triton"):
        result = with_gradients(function, inputs)
    assert all(x.dtype is dtype for x in result)
    assert_near(result, with_gradients(function, upcast(inputs)), error)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("keys", "pairs"), [(10, 2), (8, 4)])
@pytest.mark.parametrize("scales", [False, True])
def test_turned_queries_and_keys(dtype, error, keys, pairs, scales):
    """Tokens of two programs, features that no pair has, and angles of many turns."""
    heads, norms = (torch.randn(2, 2, 1, 70, keys) / 2).to(dtype), torch.rand(2, keys)
    biases, turn, step = torch.randn(2, 3, 1, keys) / 2, torch.randn(2, 70, pairs), torch.rand(2, 3, 70)
    factors = torch.rand(2, 2, 3, 70) if scales else [None, None]
    inputs = [*heads, *norms, *biases, turn, step, torch.rand(2, 3, pairs), *factors]
    function = functools.partial(turned, eps=1e-5)
    with use("triton"):
        result = with_gradients(function, inputs)
    assert_near(result, with_gradients(function, upcast(inputs)), error)


@pytest.mark.usefixtures("_fused")
def test_what_the_kernel_computes_is_counted():
    module, x = build_attention("deltanet", pattern="CS", embed_dim=24, num_heads=3), torch.randn(2, BLOCK + 5, 24)
    count = count_operations(lambda: module(x))
    with use("pytorch"):
        unfused = count_operations(lambda: module(x))
    assert (count.products, count.others, count.moved) == (unfused.products, unfused.others, unfused.moved)
    assert count.products
    assert not count.unknown


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(
    ("name", "length"),
    [
        *(("abc", 70), ("efficient", 70), ("linear", 131), ("gla", 37), ("rwkv7", BLOCK + 5)),
        *((name, BLOCK + 5) for name in CORRECTED[:3]),
        *(pytest.param(name, n, marks=pytest.mark.slow) for name in ADDITIVE + CORRECTED for n in (1, 2 * BLOCK + 3)),
    ],
)
def test_attentions_equal_their_readable_forms(name, length, monkeypatch):
    for kernel in (efficient, causal_abc):
        monkeypatch.setattr(kernel, "SPAN", 64)
    module = make(name, "CS")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)  # RWKV-6's decays are exp of exp: to 1e-9 no two ways of summing agree on extreme ones
    assert_forms_agree(module, length, length)


@pytest.mark.slow
@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("name", ["abc", "linear", "performer", "gla", *(name for name in CORRECTED if name != "kda")])
def test_the_compiler_reads_the_kernel_as_one_operator(name):
    module = make(name, "CS")
    inputs, masks = draw(module, 70, 70)
    torch._dynamo.reset()
    results = []
    for call in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        output = call(*inputs, **masks)
        results.append([output, *torch.autograd.grad(output.square().sum(), [*inputs, *module.parameters()])])
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(plain, fast)


@pytest.mark.parametrize(
    ("pointer", "keys"),
    [
        ("*bf16", 48),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("*fp32", 64), ("*fp32", 256), ("*fp64", 128))),
    ],
)
def test_the_kernels_compile_for_a_gpu(pointer, keys, tmp_path, monkeypatch):
    import triton.language as tl

    from attentions.kernels import triton_kernels as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kind = tl.float64 if pointer == "*fp64" else tl.float32
    tensors = dict.fromkeys(("initial", "x", "w", "k", "decay", "added", "u", "states", "last"), pointer)
    for backwards, factors in ((False, 1), (True, keys)):
        constants: dict[str, Any] = {"ROWS": BLOCK, "KEYS": keys, "VALUES": 96, "FACTORS": factors, "TYPE": kind}
        constants |= {"ADDS": backwards, "BACKWARDS": backwards, **kernels.tiles(BLOCK, keys)}
        numbers, warps = {"num_blocks": "i32"}, kernels.num_warps(keys)
        made = compiled(kernels.delta_rule_kernel, tensors, numbers, constants, warps)
        assert ".target sm_90" in made.asm["ptx"]
        assert "mma.sync" in made.asm["ptx"]
        assert made.metadata.shared <= SHARED_MEMORY
    tensors = dict.fromkeys(("x", "skip", "value", "gate", "weight", "first", "output"), pointer)
    numbers = dict.fromkeys(("row_skips", "token_skips", "length"), "i32") | {"eps": "fp32"}
    constants = {"WIDTH": 8 * keys, "HEAD": keys, "NORMS": True, "SHIFT": 1, "TILE": 2048}
    compiled(kernels.gated_skip_kernel, tensors, numbers, constants, 4)
    heads = "query", "key", "query_norm", "key_norm", "query_bias", "key_bias", "query_turned", "key_turned", "products"
    names = *heads, "turn", "step", "starts", "query_factor", "key_factor"
    numbers = dict.fromkeys(("row_stride", "token_stride", "length", "num_blocks"), "i32") | {"eps": "fp32"}
    constants = {"HEADS": 8, "KEYS": keys, "PAIRS": keys // 4, "PAIR_TILE": 64, "REST_TILE": 128, "SCALES": True}
    constants |= {"BLOCK": BLOCK, "TILE": kernels.TURNED_TOKENS}
    compiled(kernels.turned_kernel, dict.fromkeys(names, pointer), numbers, constants, 4)
    tensors = dict.fromkeys(("initial", "added", "factor", "states", "last"), pointer)
    every = ("num_blocks", "size", "num_factors")
    for backwards, forgets, ones in ((False, True, ()), (True, True, every[2:]), (False, False, every[2:])):
        constants = {"BACKWARDS": backwards, "FORGETS": forgets, "TYPE": kind, "TILE": kernels.RECURRENCE_TILE}
        constants |= dict.fromkeys(ones, 1)  # a number that is 1 is a constant to Triton: one factor a head
        numbers = {name: "i32" for name in every if name not in ones}
        ptx = compiled(kernels.recurrence_kernel, tensors, numbers, constants, kernels.RECURRENCE_WARPS).asm["ptx"]
        assert ".target sm_90" in ptx
        if pointer != "*bf16":  # of two bytes no copy is
            assert "cp.async" in ptx  # the blocks to come are fetched while one is added
