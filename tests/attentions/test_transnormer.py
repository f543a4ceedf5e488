"""NormAttention, DiagAttention, and TransNormer, which is one or the other by depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions.transnormer import DiagAttention
from cab import PaddingMasks, build_attention, build_backbone


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", ["NS", "CS"])
@pytest.mark.parametrize(
    ("name", "options"), [("diag_attention", {"block_size": 4, "weights": "rela"}), ("norm_attention", {})]
)
def test_sums_that_nothing_divides_do_not_overflow(
    name: str, options: dict[str, Any], pattern: str, dtype: torch.dtype
) -> None:
    """Heads of 100 have weights of 1e4 and sums of 1e6.

    Autocast keeps outputs within 3, gradients within 6 units of rounding of float32's of the same rounded heads.
    """
    module = build_attention(name, pattern=pattern, embed_dim=64, num_heads=2, **options)
    heads = [100 * torch.randn(2, 2, 30, 32) for _ in range(3)]
    results = []
    for kind in (torch.float32, dtype):
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in heads]
        with torch.autocast("cpu", dtype, enabled=kind is dtype):
            output = module.attend(*leaves, PaddingMasks())
        assert output.dtype is kind
        weights = torch.linspace(-1, 1, output.numel()).view_as(output).cos()
        results.append([output, *torch.autograd.grad((output.float() * weights).sum(), leaves)])
    for units, wanted, got in zip((3, 6, 6, 6), *results, strict=True):
        assert (got - wanted).abs().max() <= units * torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_the_early_half_is_diagonal(count: int) -> None:
    """The middle layer of an odd number is late; in a network each of them fills one slot."""
    network = build_backbone(
        "gpt2", attention="transnormer_t2", pattern="CS", vocab_size=9, embed_dim=8, num_heads=2, num_layers=count
    )
    assert len(network.attention_layers()) == count
    slots = [network.get_submodule(path) for path, _ in network.attention_layers()]
    early = [isinstance(slot.form, DiagAttention) for slot in slots]
    assert early == [True] * (count // 2) + [False] * (count - count // 2)
