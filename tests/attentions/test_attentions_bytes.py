"""Bytes that a layer's forward pass moves on a GPU, relative to the layer of flash-linear-attention 0.6.0.

Both are counts on fake CUDA tensors with the same stubs of kernels. In the table, ``gb_before`` is with heads in
float32 around the kernel of the recurrence, ``gb`` now, ``gb_fla`` that of the other layer of equal sizes in bfloat16.
"""

from __future__ import annotations

import csv

import pytest
import torch

from cab import build_attention
from tests.helpers.attentions.trust import slow_unless_new
from tests.helpers.command import ROOT
from tests.helpers.fake_cuda import fake_cuda, to_fake_cuda

TABLE = ROOT / "results" / "efficiency" / "layer_bytes.csv"
ROWS = {row["attention"]: row for row in csv.DictReader(TABLE.read_text().splitlines())}

ABOVE = {
    "mamba3": "queries and keys of every head, and states of blocks, which the other layer has inside of its kernel",
}
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
def test_bytes_of_a_layer(name: str) -> None:
    row, moved = ROWS[name], gigabytes(name)
    assert moved == pytest.approx(float(row["gb"]), abs=1e-3)
    ratio = moved / float(row["gb_fla"])
    assert ratio == pytest.approx(float(row["ratio"]), abs=0.01)
    assert (ratio > float(row["limit"])) is (name in ABOVE)
