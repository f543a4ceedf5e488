"""Attentions by latents, Gaussian kernels and hashes: landmarks, weights that grow, collisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions import yoso as collisions
from cab import build_attention
from tests.helpers.attentions.agreement import make


def test_landmarks_are_tokens_where_their_places_are_rounded() -> None:
    """The last place, 0.999, is 1 in bfloat16: the landmark is the last token of each row."""
    module: Any = build_attention("skyformer", pattern="CC", embed_dim=16, num_heads=2, num_landmarks=2)
    module.places.copy_(torch.tensor([0.0, 0.999]))
    source = torch.randn(2, 131, 16).bfloat16()
    hidden = (torch.arange(131) >= torch.tensor([[131], [9]])).expand(2, 131)
    state = module.bfloat16().init_state(2, key=source, value=source, key_padding_mask=hidden)
    keys = module.project(source, source, source)[1].float()
    expected = torch.stack([keys[0][:, [0, 130]], keys[1][:, [0, 8]]])
    torch.testing.assert_close(state["landmarks"], expected, atol=0, rtol=0)


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


@pytest.mark.parametrize("name", ["yoso", "yoso_e"])
@pytest.mark.parametrize(("count", "tau"), [(1, 1), (2, 1), (3, 2), (512, 9), (513, 10), (1024, 10), (4000, 12)])
def test_hashes_are_as_long_as_in_the_released_configurations(name: str, count: int, tau: int) -> None:
    module = make(name, "NS")
    assert module.length_of_hash(torch.tensor([count])).tolist() == [tau]


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


def test_sums_of_nearly_opposite_keys_still_give_a_unit_vector() -> None:
    """Of YOSO's weights 1e-9 are left there, below the norm at which vectors are divided."""
    torch.testing.assert_close(collisions.unit_sum(torch.tensor([[3e-9, 4e-9]])), torch.tensor([[0.6, 0.8]]))
