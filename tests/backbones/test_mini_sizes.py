"""Every backbone in the dimensions of preset mini learns a fixed batch, with four attentions in each pattern."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from cab import build_backbone

SIZES = Path(__file__).resolve().parents[2] / "configs" / "size"
FOUR = {
    "NS": ["vanilla", "abc", "performer", "local"],
    "CS": ["vanilla", "abc", "s4d", "local"],
    "NC": ["vanilla", "abc", "performer", "cosformer"],
    "CC": ["vanilla", "abc", "performer", "linear"],
}
PATTERNS = {"fastspeech2": "NS", "transformer_tts": "NS CS CC", "transformer": "NS CS CC", "informer": "NS CS NC"}
PATTERNS |= {"pointr": "NS NC", "gpt2": "CS", "roberta": "NS", "sr3": "NS"}
SMALL_DATA = {"gpt2": {"vocab_size": 50}, "roberta": {"vocab_size": 50}, "transformer": {"vocab_size": 50}}
SMALL_DATA |= {"sr3": {"image_size": 16}, "informer": {"channels": 3}}

Loss = Callable[[Any], Tensor]


def language_loss(backbone: Any) -> Tensor:
    tokens = torch.arange(64).view(2, 32) * 7 % 50
    return F.cross_entropy(backbone(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def masked_loss(backbone: Any) -> Tensor:
    tokens = torch.arange(64).view(2, 32) * 7 % 50
    return F.cross_entropy(backbone(tokens).flatten(0, 1), tokens.flatten())


def summary_loss(backbone: Any) -> Tensor:
    source, target = torch.arange(48).view(2, 24) * 5 % 50, torch.arange(24).view(2, 12) * 3 % 50
    return F.cross_entropy(backbone(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


def forecast_loss(backbone: Any) -> Tensor:
    past = torch.sin(torch.arange(288.0)).view(2, 48, 3)
    time = torch.zeros(2, 60, 4)
    return F.mse_loss(backbone(past, time[:, :48], past[:, -24:], time[:, :36]), torch.ones(2, 12, 3))


def completion_loss(backbone: Any) -> Tensor:
    torch.manual_seed(1)
    complete = F.normalize(torch.randn(2, 300, 3), dim=-1)
    distances = torch.cdist(backbone(complete[:, :150])[1], complete)
    return distances.amin(dim=1).mean() + distances.amin(dim=2).mean()


def noise_loss(backbone: Any) -> Tensor:
    torch.manual_seed(1)
    image = torch.randn(2, 6, 16, 16)
    return F.l1_loss(backbone(image, torch.rand(2)), image[:, 3:])


def frames_loss(backbone: Any) -> Tensor:
    torch.manual_seed(1)
    tokens = torch.arange(20).view(2, 10)
    mel = backbone(tokens, durations=torch.full((2, 10), 2)).mel
    return F.l1_loss(mel, torch.linspace(-1, 1, 80).expand_as(mel))


def steps_loss(backbone: Any) -> Tensor:
    torch.manual_seed(1)
    tokens, frames = torch.arange(20).view(2, 10), torch.linspace(-1, 1, 320).expand(2, 9, 320)
    output = backbone(tokens, None, frames)
    return F.l1_loss(output.after, frames) + F.l1_loss(output.before, frames)


LOSSES: dict[str, Loss] = {"gpt2": language_loss, "roberta": masked_loss, "transformer": summary_loss}
LOSSES |= {"informer": forecast_loss, "pointr": completion_loss, "sr3": noise_loss}
LOSSES |= {"fastspeech2": frames_loss, "transformer_tts": steps_loss}


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, pattern) for name, patterns in PATTERNS.items() for pattern in patterns.split()]
)
def test_thirty_steps_lower_the_loss(name: str, pattern: str) -> None:
    sizes = yaml.safe_load((SIZES / name / "mini.yaml").read_text())["backbone"]
    sizes = {option: value for option, value in sizes.items() if option not in ("normalization", "season")}
    for attention in FOUR[pattern]:
        torch.manual_seed(0)
        backbone = build_backbone(name, attention=attention, pattern=pattern, **{**sizes, **SMALL_DATA.get(name, {})})
        optimizer = torch.optim.Adam(backbone.parameters(), lr=1e-3)
        first = lowest = None
        for _ in range(30):
            optimizer.zero_grad()
            loss = LOSSES[name](backbone)
            loss.backward()
            optimizer.step()
            first = loss.item() if first is None else first
            lowest = loss.item()
            if lowest < 0.85 * first:
                break
        assert first is not None
        assert lowest is not None
        assert lowest < 0.85 * first, (attention, first, lowest)


def test_every_backbone_has_its_sizes() -> None:
    assert {path.parent.name for path in SIZES.glob("*/mini.yaml")} == set(LOSSES) == set(PATTERNS)
    assert {path.parent.name for path in SIZES.glob("*/smoke.yaml")} == set(LOSSES)
