"""SR3: slots, noise level, learning, mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from backbones.sr3 import SR3
from cab import UserError, build_backbone

SMALL = {"image_size": 8, "base_channels": 8, "channel_multipliers": [1, 2], "attention_resolutions": [4]}
SMALL |= {"num_blocks": 1, "norm_groups": 4}


def sr3(attention: str = "vanilla", **options: Any) -> SR3:
    backbone = build_backbone("sr3", attention=attention, pattern="NS", **{**SMALL, **options})
    assert isinstance(backbone, SR3)
    return backbone


def test_the_noise_level_is_encoded_by_sines() -> None:
    level = sr3().noise_level
    x = torch.tensor([0.3, 0.9])
    angle = torch.tensor([[v * math.exp(-math.log(1e4) * k / 4) for k in range(4)] for v in (0.3, 0.9)])
    expected = level.reduce(F.silu(level.expand(torch.cat([angle.sin(), angle.cos()], dim=1))))
    torch.testing.assert_close(level(x), expected)


def test_pixels_attend_as_tokens() -> None:
    """A block's attention sees row by row what the image has, and adds to it."""
    block = sr3().middle[0].eval()
    x, level = torch.randn(2, 16, 3, 5), torch.randn(2, 8)
    kept, block.attention = block.attention, None
    plain = block(x, level)
    tokens = block.attention_norm(plain).permute(0, 2, 3, 1).reshape(2, 15, 16)
    block.attention = kept
    expected = plain + kept(tokens).reshape(2, 3, 5, 16).permute(0, 3, 1, 2)
    torch.testing.assert_close(block(x, level), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("image", "level", "message"),
    [
        ((2, 3, 8, 8), 2, r"\[batch, 6, 8, 8\].*got \[2, 3, 8, 8\]"),
        ((0, 6, 8, 8), 0, "not empty"),
        ((2, 6, 8, 8), 3, r"noise_level must be \[2\], got \[3\]"),
    ],
)
def test_shapes_that_do_not_fit(image: tuple[int, ...], level: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sr3()(torch.zeros(image), torch.zeros(level))
