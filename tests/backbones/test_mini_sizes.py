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
from cab.backbone_protocols import (
    Denoiser,
    DurationSynthesizer,
    Forecaster,
    MaskedLM,
    PairClassifier,
    PointCompleter,
    Prober,
    SequenceClassifier,
    SequenceToSequence,
    StepSynthesizer,
    TokenLM,
)
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import tuned_options

SIZES = Path(__file__).resolve().parents[2] / "configs" / "size"
FOUR = {
    "NS": ["vanilla", "abc", "performer", "local"],
    "CS": ["vanilla", "abc", "s4d", "local"],
    "NC": ["vanilla", "abc", "performer", "cosformer"],
    "CC": ["vanilla", "abc", "performer", "linear"],
}
NETWORKS = {  # of the tasks of this repository: what each is called with, and the patterns that are tested in it
    backbone: (task.cls.protocol_of(BACKBONES.get(backbone).cls), patterns)
    for task in TASKS
    if task.place.module.startswith("tasks.")
    for backbone, patterns in task.backbones.items()
}

Loss = Callable[[Any], Tensor]


def language_loss(backbone: Any) -> Tensor:
    tokens = torch.arange(64).view(2, 32) * 7 % 50
    return F.cross_entropy(backbone(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def masked_loss(backbone: Any) -> Tensor:
    tokens = torch.arange(64).view(2, 32) * 7 % 50
    return F.cross_entropy(backbone(tokens).flatten(0, 1), tokens.flatten())


def class_loss(backbone: Any) -> Tensor:
    tokens = torch.arange(64).view(4, 16) * 7 % 50
    return F.cross_entropy(backbone(tokens), torch.tensor([0, 1, 0, 1]))


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


def answers_loss(backbone: Any) -> Tensor:
    symbols = torch.arange(64).view(2, 32, 1) * 7 % 49 + 1
    logits = backbone(symbols, symbols.flip(1) if backbone.pattern.is_cross else None)
    return F.cross_entropy(logits.flatten(0, 1), symbols.flatten())


LOSSES: dict[type, tuple[Loss, dict[str, Any]]] = {  # with what the small data decide of the network
    TokenLM: (language_loss, {"vocab_size": 50}),
    MaskedLM: (masked_loss, {"vocab_size": 50}),
    SequenceClassifier: (class_loss, {"vocab_size": 50}),
    SequenceToSequence: (summary_loss, {"vocab_size": 50}),
    Forecaster: (forecast_loss, {"channels": 3}),
    PointCompleter: (completion_loss, {}),
    Denoiser: (noise_loss, {"image_size": 16}),
    DurationSynthesizer: (frames_loss, {}),
    StepSynthesizer: (steps_loss, {}),
    Prober: (answers_loss, {"vocab_size": 50}),
    PairClassifier: (class_loss, {"vocab_size": 50, "num_classes": 2}),
}


SLOTS = [(name, str(pattern)) for name, (_, patterns) in NETWORKS.items() for pattern in patterns]


def make(name: str, attention: str, pattern: str, **options: Any) -> Any:
    """The network in preset mini's dimensions, on the small data of its loss."""
    sizes = yaml.safe_load((SIZES / name / "mini.yaml").read_text())["backbone"]
    sizes = {option: value for option, value in sizes.items() if option not in ("normalization", "season")}
    sizes |= LOSSES[NETWORKS[name][0]][1]
    torch.manual_seed(0)
    return build_backbone(name, attention={"name": attention, **options}, pattern=pattern, **sizes)


@pytest.mark.parametrize(("name", "pattern"), SLOTS)
def test_every_attention_that_has_the_pattern_trains_there(name: str, pattern: str) -> None:
    """One step, with the options that preset mini gives it: a finite loss, and gradients that reach the slots."""
    task, *_ = (task.name for task in TASKS if name in task.backbones and task.place.module.startswith("tasks."))
    for entry in ATTENTIONS:
        if pattern in map(str, entry.patterns) and entry.name not in ("none", "flash"):  # no dropout in flash on a CPU
            backbone = make(name, entry.name, pattern, **tuned_options(task, name, pattern, entry.name, preset="mini"))
            loss = LOSSES[NETWORKS[name][0]][0](backbone)
            loss.backward()
            assert loss.isfinite(), entry.name
            for path, slot in backbone.attention_layers():
                if str(slot) == pattern:
                    parameters = list(backbone.get_submodule(path).parameters())  # fnet has none
                    gradients = [p.grad for p in parameters if p.grad is not None]
                    assert gradients or not parameters, (entry.name, path)
                    assert all(gradient.isfinite().all() for gradient in gradients), (entry.name, path)


@pytest.mark.parametrize(("name", "pattern"), SLOTS)
def test_thirty_steps_lower_the_loss(name: str, pattern: str) -> None:
    loss_of = LOSSES[NETWORKS[name][0]][0]
    for attention in FOUR[pattern]:
        backbone = make(name, attention, pattern)
        optimizer = torch.optim.Adam(backbone.parameters(), lr=1e-3)
        first = lowest = None
        for _ in range(30):
            optimizer.zero_grad()
            loss = loss_of(backbone)
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
    for preset in ("mini", "smoke"):
        assert {path.parent.name for path in SIZES.glob(f"*/{preset}.yaml")} == set(NETWORKS)
