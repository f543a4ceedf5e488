"""Kernelized attention, Skyformer, SOFT and YOSO's expectation: readable forms, limits, public code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attentions.kernels import target_blocks
from attentions.skyformer import SkyformerAttention
from attentions.soft import SoftAttention
from cab import UserError, build_attention
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import (
    assert_causal,
    assert_decodes,
    assert_forms_agree,
    assert_padding_is_nothing,
    make,
)
from tests.attentions.public import OUTPUT, assert_gives, distance, vectors, with_weights

OPTIONS: dict[str, dict[str, Any]] = {
    "kernelized": {},
    "yoso": {"hash_length": 3},
    "skyformer": {"num_landmarks": 5},
    "soft": {"num_landmarks": 4, "conv_kernel_size": 3},
}
CASES = [(name, str(pattern)) for name in OPTIONS for pattern in ATTENTIONS.get(name).patterns]


@pytest.mark.parametrize(("name", "pattern"), CASES)
def test_fast_form_is_the_readable_one(name: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_blocks, "ON_CPU", 1)  # several blocks of targets
    module = make(name, pattern, **OPTIONS[name])
    assert_forms_agree(module, 37, 23)
    assert_forms_agree(module, 1, 1, masked=False)
    assert_padding_is_nothing(module, 11, 17)


def test_causal_form() -> None:
    module = make("kernelized", "CS")
    assert_causal(module, 9)
    assert_decodes(module, 14, 0, (6, 3, 1))


@pytest.mark.parametrize("name", ["kernelized", "yoso", "skyformer"])
def test_decoding_with_a_source(name: str) -> None:
    assert_decodes(make(name, "CC", **OPTIONS[name]), 9, 13, (4, 1))


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


def test_yosos_weights_are_collision_probabilities() -> None:
    """Of 20,000 hashes of 3 hyperplanes."""
    module = build_attention("yoso", pattern="NC", embed_dim=5, num_heads=1, hash_length=3)
    query, key = torch.randn(1, 1, 4, 5), torch.randn(1, 1, 6, 5)
    planes = torch.randn(20_000, 3, 5)
    codes = [(torch.einsum("hpe,ne->hnp", planes, x[0, 0]) > 0) for x in (query, key)]
    collisions = (codes[0][:, :, None] == codes[1][:, None]).all(dim=-1).float().mean(dim=0)
    weights = module.weigh(query, key, None, torch.tensor(6))  # type: ignore[operator]
    torch.testing.assert_close(weights[0, 0], collisions, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("yoso", {"hash_length": 0}),
        ("skyformer", {"num_landmarks": 1}),
        ("skyformer", {"ridge": 0.0}),
        ("soft", {"num_landmarks": 0}),
        ("soft", {"conv_kernel_size": 4}),
        ("soft", {"ridge": 0.0}),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        build_attention(name, pattern="NS", embed_dim=8, num_heads=2, **options)


# --- public code ----------------------------------------------------------------------------------------


def test_kernelized_attention_of_its_authors() -> None:
    """pkuzengqi/Skyformer 1a677cb, ``SoftmaxAttention_RBF``."""
    data = vectors("kernelized")
    assert_gives(with_weights(build_attention("kernelized", pattern="NS", embed_dim=8, num_heads=2), data), data, "x")


def test_skyformer_of_its_authors() -> None:
    """pkuzengqi/Skyformer 1a677cb, ``Skyformer`` with three queries and three keys as landmarks.

    Head width 32, the one for which its scale is right, and 40 steps of its iteration (six are as near here).
    """
    data = vectors("skyformer")
    module = build_attention("skyformer", pattern="NS", embed_dim=32, num_heads=1, num_landmarks=6)
    assert_gives(with_weights(module, data), data, "x")


def test_soft_of_its_authors() -> None:
    """fudan-zvg/SOFT d3febc3, ``SoftmaxFreeAttention`` on a 6 x 2 grid whose convolution takes means of four tokens.

    Its inverse refuses a CPU: Newton's iteration of the same file, 80 steps, was put in its place.
    """
    data = vectors("soft")
    module = build_attention("soft", pattern="NS", embed_dim=8, num_heads=2, num_landmarks=3, conv_kernel_size=None)
    assert_gives(with_weights(module, data), data, "x")


def test_yosos_expectation_of_transformers() -> None:
    """transformers 5.23.0, ``YosoSelfAttention``: its output.

    Its gradient is no derivative: it takes tau/2 times the weight for the slope of the weight, as the paper has it for
    the sampled form. Ours is the derivative, so the gradient of the input differs.
    """
    data = vectors("yoso")
    module = with_weights(build_attention("yoso", pattern="NS", embed_dim=8, num_heads=2), data)
    assert distance(module(data["x"]), data["output"]) < OUTPUT
