"""Attentions by latents, and by sums of weights that can grow: readable forms, precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions import efficient
from attentions.efficient import BLOCK
from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import assert_forms_agree, assert_rounds_as_float32, make

OPTIONS: dict[str, dict[str, Any]] = {
    "efficient": {},
    "set_transformer": {"num_inducing": 3},
    "luna": {"num_landmarks": 4},
    "linformer": {"num_landmarks": 5, "max_length": 40},
}
CASES = [(name, str(pattern)) for name in OPTIONS for pattern in ATTENTIONS.get(name).patterns]


def test_causal_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficient, "SPAN", 2 * BLOCK)
    assert_forms_agree(make("efficient", "CS"), 2 * BLOCK + 5, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "pattern"), [*CASES, ("skyformer", "NS"), ("skyformer", "NC")])
def test_long_sequences_in_low_precision(name: str, pattern: str, dtype: torch.dtype) -> None:
    """1,024 tokens."""
    options = {**OPTIONS.get(name, {}), **({"max_length": 1024} if name == "linformer" else {})}
    module = build_attention(name, pattern=pattern, embed_dim=16, num_heads=2, **options)
    x, source = torch.randn(2, 1, 1024, 16)
    source = source if module.pattern.is_cross else x
    with torch.no_grad():
        heads, extras = module.project(x, source, source), module.key_side_inputs(source)
    assert_rounds_as_float32(module, heads, dtype, **extras)


@pytest.mark.parametrize(
    ("name", "pattern", "options"),
    [
        ("abc", "CS", {}),
        ("efficient", "CS", {}),
        *(("scatterbrain", pattern, {"window": 2}) for pattern in ("NS", "CS")),
    ],
)
def test_weights_that_grow_beyond_every_float(name: str, pattern: str, options: dict[str, Any]) -> None:
    """Logits that rise by hundreds along the sequence: no output and no gradient is NaN."""
    module = make(name, pattern, **options)
    x = torch.randn(1, 100, 24, dtype=torch.float64) * torch.linspace(1, 1000, 100, dtype=torch.float64).view(-1, 1)
    output = module(x.requires_grad_())
    gradients = torch.autograd.grad(output.sum(), [x, *module.parameters()])
    assert all(tensor.isfinite().all() for tensor in (output, *gradients))


@pytest.mark.parametrize(("name", "option"), [("set_transformer", "num_inducing"), ("luna", "num_landmarks")])
def test_one_slot_gives_every_target_the_same(name: str, option: str) -> None:
    output = make(name, "NS", **{option: 1})(torch.randn(1, 9, 24, dtype=torch.float64))
    torch.testing.assert_close(output, output[:, :1].expand_as(output))
