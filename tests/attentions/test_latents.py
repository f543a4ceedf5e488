"""Attentions by latents, Gaussian kernels and hashes: limits, precision, weights that grow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attentions import efficient, yoso as collisions
from attentions.efficient import BLOCK
from attentions.gaussian import SkyformerAttention, SoftAttention
from attentions.yoso import HashedAttention
from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import assert_forms_agree, assert_rounds_as_float32, make
from tests.public_numbers.golden import distance

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


def test_kernelized_rows_over_their_sums_are_softmax_attention_where_keys_have_one_norm() -> None:
    query, key = torch.randn(2, 1, 1, 9, 4, dtype=torch.float64)
    key, value = F.normalize(key, dim=-1), torch.randn(1, 1, 9, 4, dtype=torch.float64)
    module = build_attention("kernelized", pattern="NS", embed_dim=4, num_heads=1)
    weights = module.reference(query[0], key[0], torch.eye(9, dtype=torch.float64)[None])
    mean = weights / weights.sum(dim=-1, keepdim=True) @ value[0]
    torch.testing.assert_close(mean, F.scaled_dot_product_attention(query, key, value)[0])


def test_skyformer_with_every_token_as_landmark_is_kernelized_attention() -> None:
    sky, kernelized = make("skyformer", "NS", num_landmarks=24, ridge=1e-9), make("kernelized", "NS")
    assert isinstance(sky, SkyformerAttention)
    kernelized.load_state_dict(sky.state_dict(), strict=False)
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    torch.testing.assert_close(sky(x), kernelized(x), rtol=1e-5, atol=1e-5)


def test_soft_with_its_queries_as_landmarks_is_kernelized_attention() -> None:
    soft, kernelized = make("soft", "NS", num_landmarks=12, conv_kernel_size=None, ridge=1e-9), make("kernelized", "NS")
    assert isinstance(soft, SoftAttention)
    soft.landmark_map, soft.landmark_norm = torch.nn.Identity(), torch.nn.Identity()
    soft.landmarks = lambda means: means  # type: ignore[method-assign]
    state = soft.state_dict() | {f"k_proj.{part}": soft.state_dict()[f"q_proj.{part}"] for part in ("weight", "bias")}
    kernelized.load_state_dict(state)
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    torch.testing.assert_close(soft(x), kernelized(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["yoso", "yoso_e"])
@pytest.mark.parametrize(("count", "tau"), [(1, 1), (2, 1), (3, 2), (512, 9), (513, 10), (1024, 10), (4000, 12)])
def test_hashes_are_as_long_as_in_the_released_configurations(name: str, count: int, tau: int) -> None:
    module = make(name, "NS")
    assert isinstance(module, HashedAttention)
    assert module.length_of_hash(torch.tensor([count])).tolist() == [tau]


def test_yoso_tends_to_its_expectation() -> None:
    """With 4,000 hashes, in output and gradient; the heads are the same."""
    sampled = make("yoso", "NC", num_hashes=4_000, hash_length=3).eval()
    expected = make("yoso_e", "NC", hash_length=3)
    expected.load_state_dict(sampled.state_dict(), strict=False)
    inputs = [torch.randn(1, n, 24, dtype=torch.float64, requires_grad=True) for n in (7, 9, 9)]
    outputs = [module(*inputs) for module in (sampled, expected)]
    results = [[output, *torch.autograd.grad(output.sin().sum(), inputs)] for output in outputs]
    for ours, limit in zip(*results, strict=True):
        assert distance(ours, limit) < 0.07


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_both_ways_to_weight_collisions_agree(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pairs that collide, in several pieces, and of all pairs; with padding, and with one crowded bucket."""
    codes = [torch.randint(0, 8, (4, 3, n)) for n in (19, 23)]
    for code in codes:
        code[torch.rand(code.shape) < share] = 2
        code[:, 1, 11:] = 8
    left, right, x = (torch.randn(3, n, 5, dtype=torch.float64) for n in (19, 23, 23))
    same = (codes[0].unsqueeze(3) == codes[1].unsqueeze(2)) & (codes[0].unsqueeze(3) < 8)
    expected = (left @ right.mT * same.sum(dim=0)) @ x
    torch.testing.assert_close(collisions._bucket_sums(*codes, x, 8), (same.sum(dim=0).double() @ x))
    monkeypatch.setattr(collisions, "PAIRS", 13)
    for factor in (0, 10**6):
        monkeypatch.setattr(collisions, "SPARSE", factor)
        torch.testing.assert_close(collisions._weighted_sums(*codes, left, right, x, 8), expected)
