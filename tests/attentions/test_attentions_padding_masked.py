"""Padding that a device masks instead of cutting it off: what `by_length` calls with ``masks``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions.kernels import chunks
from cab import build_attention
from tests.helpers.attentions.agreement import with_output

LENGTHS = (97, 70, 31, 1, 64)

CASES: list[tuple[str, dict[str, Any]]] = [
    ("adaptive_span", {"max_span": 64, "ramp": 8}),
    ("axial", {"width": 16}),
    ("axial", {"width": 16, "spread": "merged"}),
    ("axial", {"width": 0}),
    ("cluster_former", {"num_clusters": 4, "chunk_size": 16}),
    ("diag_attention", {"block_size": 16}),
    ("diag_attention", {"block_size": 16, "weights": "rela"}),
    ("funnel", {"factor": 3}),
    ("image_local", {"block": 16}),
    ("logsparse", {}),
    ("logsparse", {"local": 3, "restart": 40}),
    ("longformer", {"window": 7}),
    ("longformer", {"window": 7, "dilation": 3, "num_globals": 5}),
    ("longformer", {"window": 7, "num_globals": 2, "share_global": True}),
    ("poolingformer", {"window": 6, "pooled_window": 24}),
    ("routing", {"num_clusters": 4, "window": 20}),
    ("sparse_transformer", {"stride": 16, "summary": 4}),
    ("sparse_transformer", {"stride": 16, "summary": 4, "spread": "heads"}),
    ("sparse_transformer", {"stride": 16, "layout": "strided"}),
    ("sparse_transformer", {"stride": 16, "layout": "strided", "spread": "heads"}),
    ("sparse_transformer", {"stride": 0, "layout": "strided"}),
    ("transformer_xl", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{options}" for name, options in CASES])
def test_masked_padding_is_as_good_as_none(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients of both forms, whatever the padded tokens contain."""
    torch.manual_seed(0)
    module = with_output(build_attention(name, pattern="NS", embed_dim=32, num_heads=4, **options)).double()
    for parameter_name, parameter in module.named_parameters():
        if parameter_name.endswith("bias"):  # padded keys and values are not zero
            torch.nn.init.normal_(parameter)
    x = torch.randn(len(LENGTHS), LENGTHS[0], 32, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(LENGTHS[0]) >= torch.tensor(LENGTHS)[:, None]
    target = torch.randn_like(x)
    wanted = [x, *module.parameters()]

    def both() -> list[torch.Tensor]:
        module.zero_grad()
        output = module(x, query_padding_mask=mask)
        gradients = torch.autograd.grad((output * target).sum(), wanted, allow_unused=True, materialize_grads=True)
        return [output, *gradients]

    cut = both()
    monkeypatch.setattr(chunks, "CUTS_PADDING", set())
    for masked, expected in zip(both(), cut, strict=True):
        torch.testing.assert_close(masked, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["axial", "longformer", "routing"])
def test_a_sequence_of_padding_alone_has_finite_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CUTS_PADDING", set())
    module = build_attention(name, pattern="NS", embed_dim=32, num_heads=4)
    mask = torch.zeros(2, 70, dtype=torch.bool)
    mask[1] = True
    output = module(torch.randn(2, 70, 32), query_padding_mask=mask)
    output.sum().backward()
    assert output[1].eq(0.0).all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
