"""Efficient attention, Set Transformer, Luna and Linformer: readable forms, limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions import efficient
from attentions.efficient import BLOCK, read_cumulative_means
from attentions.kernels.numerics import mask_value
from attentions.linformer import LinformerAttention
from cab import PaddingMasks, UserError, build_attention
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import (
    assert_forms_agree,
    make,
)

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
    """1,024 tokens: outputs within 3, gradients within 6 units of rounding of float32's of the same heads.

    Slots of Luna are projected once more, which rounds them once more.
    """
    options = {**OPTIONS.get(name, {}), **({"max_length": 1024} if name == "linformer" else {})}
    module = build_attention(name, pattern=pattern, embed_dim=16, num_heads=2, **options)
    x, source = torch.randn(2, 1, 1024, 16)
    source = source if module.pattern.is_cross else x
    with torch.no_grad():
        exact = [y.to(dtype).float() for y in module.project(x, source, source)]
        extras = module.key_side_inputs(source)
    results = []
    for kind in (torch.float32, dtype):
        heads = [y.to(kind).requires_grad_() for y in exact]
        with torch.autocast("cpu", dtype, enabled=kind is dtype):
            output = module.attend(*heads, PaddingMasks(), **extras)
        weights = torch.linspace(-1, 1, output.numel()).view_as(output).cos()
        results.append([output, *torch.autograd.grad((output.float() * weights).sum(), heads)])
    assert results[1][0].dtype is dtype
    for units, wanted, got in zip((3, 6, 6, 6), *results, strict=True):
        assert (got - wanted).abs().max() <= units * torch.finfo(dtype).eps * wanted.abs().max()


def test_running_means_of_equal_keys_are_means() -> None:
    value = torch.randn(1, 2, 70, 3, dtype=torch.float64)
    read = torch.rand(1, 2, 70, 4, dtype=torch.float64).softmax(dim=-1)
    logits = torch.full((1, 2, 70, 4), 5.0, dtype=torch.float64)
    mass, mean = torch.full((1, 2, 4), mask_value(), dtype=torch.float64), torch.zeros(1, 2, 4, 3, dtype=torch.float64)
    output, mass, mean = read_cumulative_means(read, logits, value, mass, mean)
    count = torch.arange(1, 71).unsqueeze(-1)
    torch.testing.assert_close(output, value.cumsum(dim=2) / count)
    torch.testing.assert_close(mean, value.mean(dim=2, keepdim=True).expand_as(mean))
    torch.testing.assert_close(mass, torch.full_like(mass, 70.0).log() + 5.0)


def test_running_means_whose_weights_grow_beyond_every_float() -> None:
    module = make("efficient", "CS")
    x = torch.randn(1, 100, 24, dtype=torch.float64) * torch.linspace(1, 1000, 100, dtype=torch.float64).view(-1, 1)
    x.requires_grad_()
    output = module(x)
    assert output.isfinite().all()
    assert torch.autograd.grad(output.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(("name", "option"), [("set_transformer", "num_inducing"), ("luna", "num_landmarks")])
def test_one_slot_gives_every_target_the_same(name: str, option: str) -> None:
    output = make(name, "NS", **{option: 1})(torch.randn(1, 9, 24, dtype=torch.float64))
    torch.testing.assert_close(output, output[:, :1].expand_as(output))


def test_linformer_with_identities_is_softmax_attention() -> None:
    module, vanilla = make("linformer", "NS", num_landmarks=12, max_length=12), make("vanilla", "NS")
    assert isinstance(module, LinformerAttention)
    for mix in (module.mix_k, module.mix_v):
        torch.nn.init.eye_(mix)
    vanilla.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    torch.testing.assert_close(module(x), vanilla(x))


def test_linformer_is_defined_up_to_its_length() -> None:
    module = make("linformer", "NC", max_length=8)
    source = torch.zeros(1, 9, 24, dtype=torch.float64)
    with pytest.raises(UserError, match=r"increase attention\.max_length"):
        module(source, source, source)
