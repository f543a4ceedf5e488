"""The registry of operations: which backend computes, what is counted, and what a named backend refuses."""

import pytest
import torch
from torch import Tensor

from cab import build_attention, kernels
from cab.errors import UnsupportedError, UserError
from cab.kernels import Backend, Operation, use, used
from tests.helpers.attentions.interpreter import run_on_a_cpu


def double(x: Tensor, *, factor: int = 2) -> Tensor:
    return x * factor


def negated(x: Tensor, *, factor: int = 2) -> Tensor:
    return -x * factor


X = torch.ones(3)


@pytest.fixture
def doubling(monkeypatch):
    """An operation whose backends have another sign: one for long vectors, and one of CUDA."""
    monkeypatch.setattr(kernels, "_OPERATIONS", {})
    limits = {"device": "cpu", "dtypes": (torch.float32,)}
    limits |= {"compiles": False, "is_deterministic": False, "refuses": lambda x, **_: "empty" if not len(x) else None}
    limits["declines"] = lambda x, **_: "short" if len(x) < 3 else None
    return Operation("doubling", double, Backend("fla", negated, **limits), Backend("triton", negated))


def test_the_first_backend_that_does_not_refuse_computes(doubling):
    with used() as uses, used() as inner:
        assert torch.equal(doubling(X, factor=3), -3 * X)
        assert torch.equal(doubling(X.double()), 2 * X.double())
        assert torch.equal(doubling(X[:2]), 2 * X[:2])
        assert torch.equal(doubling.rounding_to(torch.bfloat16)(X), 2 * X)
    assert uses == inner
    assert uses.counts == {"doubling": {"fla": 1, "pytorch": 3}}
    assert uses.names == {"fla", "pytorch"}
    assert uses.refusals == {"doubling": {"fla": "bfloat16", "triton": "not on cuda"}}
    doubling(X)
    assert uses.counts["doubling"].total() == 4


def test_a_named_backend_computes_or_refuses(doubling, monkeypatch):
    """It also computes what it declines unless it is named; an operation without it is computed by its reference.

    A type that is not that of the layer is no reason to refuse.
    """
    other = Operation("other", double, Backend("flex", negated, device="cpu"))
    with use("fla"):
        assert torch.equal(doubling(X[:2]), -2 * X[:2])
        assert torch.equal(other(X), 2 * X)
        for dtype, inputs, reason in ((torch.float32, X[:0], "empty"), (torch.float64, X.double(), "float64")):
            with pytest.raises(UnsupportedError, match=f"fla does not compute doubling: {reason}"):
                doubling.rounding_to(dtype)(inputs)
        assert torch.equal(doubling(X.double()), 2 * X.double())  # upcast by its caller
        monkeypatch.setattr(doubling.backends[0], "is_installed", False)
        with pytest.raises(UnsupportedError, match="not installed"):
            doubling(X)
    with use({"doubling": "pytorch"}):
        assert torch.equal(doubling(X), 2 * X)
        assert torch.equal(other(X), -2 * X)
    with use("triton"), pytest.raises(UnsupportedError, match="triton does not compute doubling: not on cuda"):
        doubling(X)
    monkeypatch.setattr(doubling.backends[0], "refuses", lambda *_, **__: pytest.fail("asked, although it declines"))
    monkeypatch.setattr(doubling.backends[0], "is_installed", True)
    assert torch.equal(doubling(X[:2]), 2 * X[:2])
    assert kernels.backends() == {"doubling": ("fla", "triton", "pytorch"), "other": ("flex", "pytorch")}


def test_where_torch_is_deterministic(doubling):
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(doubling(X), 2 * X)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("doubling")
@pytest.mark.parametrize("selection", ["fls", {"doubling": "flash"}, {"halving": "fla"}])
def test_unknown_names(selection):
    with pytest.raises(UserError, match="unknown kernels"), use(selection):
        pass


def test_compiled_operations_are_counted_where_they_are_traced(doubling):
    torch.compiler.reset()
    compiled = torch.compile(doubling.__call__, fullgraph=True, backend="eager")
    with used() as uses:
        assert torch.equal(compiled(X), 2 * X)
        compiled(X)
    assert uses.counts == {"doubling": {"pytorch": 1}}
    assert uses.refusals["doubling"]["fla"] == "torch.compile"


@pytest.mark.parametrize("selection", [None, "flash"])
def test_softmax_is_one_graph_where_its_kernels_run(selection, monkeypatch):
    """As on CUDA: torch has a flash kernel for CPUs, too."""
    run_on_a_cpu("flash", monkeypatch)
    module, x = build_attention("vanilla", pattern="CS", embed_dim=32, num_heads=2).eval(), torch.randn(2, 70, 32)
    module, x = module.bfloat16(), x.bfloat16()
    expected = module(x)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with use(selection), used() as uses, torch.no_grad():
        assert torch.equal(compiled(x), expected)
    assert uses.counts == {"softmax": {selection or "pytorch": 1}}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gla", {}),
        ("local", {}),
        ("vanilla", {"window": 5, "positions": "alibi"}),
        pytest.param("deltaproduct", {}, marks=pytest.mark.slow),
    ],
)
def test_a_layer_is_one_graph(name, options):
    module, x = build_attention(name, pattern="CS", embed_dim=32, num_heads=2, **options).eval(), torch.randn(2, 70, 32)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for selection in (None, "pytorch"):
        with use(selection):
            assert torch.equal(compiled(x), module(x))
