"""On CUDA: which backends compute each attention, what it moves, and that its forward pass never waits for the device.

They can only change with the code of the attention, so those of code that has passed are slow tests.
"""

import csv
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions import on_fake_cuda
from tests.helpers.attentions.interpreter import needs_fla, needs_triton
from tests.helpers.attentions.trust import slow_unless_new
from tests.helpers.command import ROOT
from tests.helpers.fake_cuda import fake_cuda, to_fake_cuda

NAMES = [pytest.param(e.name, marks=[needs_triton, needs_fla, *slow_unless_new(e.name)]) for e in ATTENTIONS]

SPAN = "the longest span, which is learned, is the width of its window"
READS: dict[tuple[str, str], str] = {
    ("adaptive_span", "NS"): SPAN,
    ("adaptive_span", "CS"): SPAN,
    ("bigbird", "NS"): "random blocks are drawn on the host from a seed in the checkpoint",
    ("etc", "NS"): "the number of global tokens depends on the length of a sequence",
    ("fnet", "NS"): "a Fourier transform has the length of its sequence",
    ("sinkhorn", "NS"): "the number and the size of blocks depend on the length of a sequence",
}
"""Why an attention makes the host wait."""


@pytest.mark.parametrize("name", NAMES)
def test_backends_are_those_of_the_table(name):
    changed = f"the backends of {name} have changed; if that is intended, run `{on_fake_cuda.WRITE}`"
    assert list(on_fake_cuda.rows(name)) == [row for row in on_fake_cuda.stored() if row["attention"] == name], changed


def test_the_table_has_registered_attentions():
    assert {row["attention"] for row in on_fake_cuda.stored()} <= set(ATTENTIONS.names()), f"run `{on_fake_cuda.WRITE}`"


@pytest.mark.parametrize("name", NAMES)
def test_the_host_does_not_wait_in_a_forward_pass(name):
    """In training, with padding; if it does, its place is shown."""
    for pattern in map(str, ATTENTIONS.get(name).patterns):
        try:
            host = on_fake_cuda.forward(name, pattern, "autocast", trains=True, padded=True)[0].host
        except Exception:  # with a number that a read made up
            assert (name, pattern) in READS
            continue
        assert ((name, pattern) in READS) == bool(host), (pattern, host)


WAITS: list[Callable[[Tensor], object]] = [
    lambda x: x.sum().item(),
    lambda x: bool((x > 0).any()),
    lambda x: x[0].tolist(),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x.__setitem__(x > 0, 0.0),
    lambda x: x.repeat_interleave((x[0] > 0).long(), dim=1),
    lambda x: x.cpu(),
    lambda x: torch.zeros(4).to(x.device),
    lambda x: torch.tensor([1.0, 2.0], device=x.device),
    lambda x: x[[0, 1]],
]
NO_WAITS: list[Callable[[Tensor], object]] = [
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x[torch.arange(2, device=x.device)],
    lambda x: torch.zeros(4).to(x.device, non_blocking=True),
    lambda x: x * torch.tensor(2.0),
    lambda _: torch.arange(5).nonzero().tolist(),
]


@pytest.mark.parametrize(("functions", "waits"), [(WAITS, True), (NO_WAITS, False)])
def test_fake_tensors_see_every_wait(functions, waits):
    for function in functions:
        with fake_cuda() as counts:
            function(torch.empty(4, 6, device="cuda"))
        assert bool(counts.host) is waits


# --- bytes ---

TABLE = ROOT / "results" / "efficiency" / "layer_bytes.csv"
ROWS = {row["attention"]: row for row in csv.DictReader(TABLE.read_text().splitlines())}
"""Bytes of layers and of those of flash-linear-attention 0.6.0, with the same stubs of kernels.

``gb_before`` is with heads in float32 around the kernel of the recurrence, ``gb`` now, ``gb_fla`` that of the other
layer of equal sizes in bfloat16.
"""

ABOVE = {"mamba3": "queries and keys of every head, and states of blocks, which the other layer has in its kernel"}
"""Layers above the limit, and why."""


def gigabytes(name: str) -> float:
    """Count the bytes of four sequences of 8,192 tokens with 8 heads of 64 features under autocast."""
    module = build_attention(name, pattern="CS", embed_dim=512, num_heads=8).eval()
    with fake_cuda(torch.bfloat16) as counts:
        to_fake_cuda(module)
        x = torch.empty(4, 8192, 512, dtype=torch.bfloat16, device="cuda")
        counts.bytes = 0
        module(x)
        return counts.bytes / 1e9


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_unless_new(name)) for name in ROWS])
def test_bytes_of_a_layer(name):
    row, moved = ROWS[name], gigabytes(name)
    assert moved == pytest.approx(float(row["gb"]), abs=1e-3)
    ratio = moved / float(row["gb_fla"])
    assert ratio == pytest.approx(float(row["ratio"]), abs=0.01)
    assert (ratio > float(row["limit"])) is (name in ABOVE)
