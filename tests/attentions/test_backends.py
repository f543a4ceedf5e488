"""On CUDA: which backends compute each attention, and that its forward pass never waits for the device."""

from __future__ import annotations

import csv
from importlib.util import find_spec

import pytest
import torch

from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions import on_fake_cuda

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("fla") is None, reason="backends that make setup installs on Linux"
)
NAMES = [entry.name for entry in ATTENTIONS]

SPAN = "the longest span, which is learned, is the width of its window"
BLOCKS = "random blocks are drawn on the host from a seed in the checkpoint"

READS: dict[tuple[str, str], str] = {
    ("adaptive_span", "NS"): SPAN,
    ("adaptive_span", "CS"): SPAN,
    ("bigbird", "NS"): BLOCKS,
}
"""Why an attention makes the host wait; at most seven."""

READS_WITH_PADDING: dict[tuple[str, str], str] = READS | {
    ("etc", "NS"): "the number of global tokens depends on the length of a sequence",
    ("fnet", "NS"): "a Fourier transform has the length of its sequence",
    ("sinkhorn", "NS"): "the number and the size of blocks depend on the length of a sequence",
}


def stored_rows(name: str) -> list[dict[str, str]]:
    with on_fake_cuda.TABLE.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["attention"] == name]


@pytest.mark.parametrize("name", NAMES)
def test_backends_are_those_of_the_table(name: str) -> None:
    changed = f"the backends of {name} have changed; if that is intended, run `{on_fake_cuda.WRITE}`"
    assert list(on_fake_cuda.rows(name)) == stored_rows(name), changed


def test_the_table_has_no_other_attention() -> None:
    with on_fake_cuda.TABLE.open(encoding="utf-8", newline="") as file:
        listed = list(dict.fromkeys(row["attention"] for row in csv.DictReader(file)))
    assert listed == NAMES, f"run `{on_fake_cuda.WRITE}`"


@pytest.mark.parametrize("name", NAMES)
def test_the_host_does_not_wait_in_a_forward_pass(name: str) -> None:
    """In training; if it does, its place is shown."""
    for pattern in map(str, ATTENTIONS.get(name).patterns):
        for padded, reads in ((False, READS), (True, READS_WITH_PADDING)):
            try:
                host = on_fake_cuda.forward(name, pattern, "autocast", trains=True, padded=padded)[0].host
            except Exception:  # with a number that a read made up
                assert (name, pattern) in reads
                continue
            assert ((name, pattern) in reads) == bool(host), (pattern, padded, host)


def test_few_attentions_make_the_host_wait() -> None:
    assert len(READS) <= 7
    assert len(READS_WITH_PADDING) <= 7
    assert {name for name, _ in READS_WITH_PADDING} <= set(NAMES)


@pytest.mark.parametrize("name", ["sigmoid", "kernelized", "synthesizer", "yoso_e", "flash_quad"])
def test_weights_and_values_are_multiplied_in_bfloat16(name: str) -> None:
    assert torch.bfloat16 in on_fake_cuda.forward(name, "NS", "autocast")[0].products
    assert on_fake_cuda.forward(name, "NS", "float32")[0].products == {torch.float32}


@pytest.mark.parametrize(
    ("name", "pattern"), [("compressive", "CS"), ("reformer", "CS"), ("routing", "CS"), ("yoso", "NS")]
)
def test_sizes_from_shapes_compile_to_one_graph(name: str, pattern: str) -> None:
    module = build_attention(name, pattern=pattern, embed_dim=32, num_heads=2).eval()
    x = torch.randn(2, 140, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))
