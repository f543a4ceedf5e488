"""SR3: slots, noise level, learning, mistakes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from backbones.sr3 import SR3
from tests.helpers.backbones.records import RECORDS


def sr3() -> SR3:
    backbone = RECORDS["sr3"].build("sr3")
    assert isinstance(backbone, SR3)
    return backbone.train()


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
