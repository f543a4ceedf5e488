"""Every backbone in the dimensions of preset mini: it learns, recomputes activations, runs in bfloat16, compiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from cab import UserError, build_backbone
from cab.backbone_protocols import (
    Denoiser,
    DurationSynthesizer,
    Forecaster,
    MaskedLM,
    PairClassifier,
    PointCompleter,
    Prober,
    RecurrentLM,
    SequenceClassifier,
    SequenceToSequence,
    StepSynthesizer,
    TokenLM,
)
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import tuned_options
from tests.helpers.backbones.learning import gradients, losses, same_gradients

SIZES = Path(__file__).resolve().parents[2] / "configs" / "size"
NETWORKS = {  # of the tasks of this repository: what each is called with, and the patterns that are tested in it
    backbone: (task.cls.protocol_of(BACKBONES.get(backbone).cls), patterns)
    for task in TASKS
    if task.location.module.startswith("tasks.")
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
    time = torch.linspace(-0.5, 0.5, 480).view(2, 60, 4)
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
    output = backbone(tokens, durations=torch.full((2, 10), 2), pitch=torch.randn(2, 10), energy=torch.randn(2, 10))
    predicted = output.log_duration.square() + (output.pitch - 1).square() + (output.energy + 1).square()
    return F.l1_loss(output.mel, torch.linspace(-1, 1, 80).expand_as(output.mel)) + predicted.mean()


def steps_loss(backbone: Any) -> Tensor:
    torch.manual_seed(1)
    tokens, frames = torch.arange(20).view(2, 10), torch.linspace(-1, 1, 320).expand(2, 9, 320)
    output = backbone(tokens, None, frames)
    return F.l1_loss(output.after, frames) + F.l1_loss(output.before, frames) + F.softplus(output.stop_logits).mean()


def answers_loss(backbone: Any) -> Tensor:
    symbols = torch.arange(64).view(2, 32, 1) * 7 % 49 + 1
    logits = backbone(symbols, symbols.flip(1) if backbone.pattern.is_cross else None)
    return F.cross_entropy(logits.flatten(0, 1), symbols.flatten())


LOSSES: dict[type, tuple[Loss, dict[str, Any]]] = {  # with what the small data decide of the network
    **dict.fromkeys((TokenLM, RecurrentLM), (language_loss, {"vocab_size": 50})),
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
NETWORKS_OF_EACH_KIND: list[tuple[str, str, dict[str, Any]]] = [
    *((name, pattern, {}) for name, pattern in {name: (name, pattern) for name, pattern in SLOTS}.values()),
    ("gpt2", "CS", {"residual": "gtrxl"}),
]
STACK = "abc,linear+vanilla"
UNUSED = {"pointr": r"neighborhood\."}
"""Parameters without an effect: all blocks of the public network own a neighborhood, and the first one uses it."""


def make(
    name: str,
    attention: str,
    pattern: str,
    *,
    network: Mapping[str, Any] | None = None,
    preset: str = "mini",
    **options: Any,
) -> Any:
    """The network in a preset's dimensions, on the small data of its loss."""
    sizes = yaml.safe_load((SIZES / name / f"{preset}.yaml").read_text())["backbone"]
    sizes = {option: value for option, value in sizes.items() if option not in ("normalization", "season")}
    sizes |= {**LOSSES[NETWORKS[name][0]][1], **(network or {})}
    torch.manual_seed(0)
    return build_backbone(name, attention={"name": attention, **options}, pattern=pattern, **sizes)


@pytest.mark.parametrize("share", ["one in turn", pytest.param("all others", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "pattern"), SLOTS)
def test_every_attention_that_has_the_pattern_trains_there(name: str, pattern: str, share: str) -> None:
    """One step of a smoke network, with preset mini's options: a finite loss, and gradients that reach the slots.

    The backbones of a pattern take its attentions in turn.
    """
    task, *_ = (task.name for task in TASKS if name in task.backbones and task.location.module.startswith("tasks."))
    backbones = [backbone for backbone, slot in SLOTS if slot == pattern]
    for number, entry in enumerate(ATTENTIONS):
        takes = (backbones[number % len(backbones)] == name) == (share == "one in turn")
        if takes and pattern in map(str, entry.patterns) and entry.name not in ("none", "flash"):  # flash: no dropout
            options = tuned_options(task, name, pattern, entry.name, preset="mini")
            backbone = make(name, entry.name, pattern, preset="smoke", **options)
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
def test_a_stack_has_its_attentions_in_turn_in_every_backbone_with_layers(name: str, pattern: str) -> None:
    """The period starts with the first layer of each kind, and one step reaches every attention."""
    depths: dict[str, Any] = {option: 4 for option in BACKBONES.get(name).options if option.endswith("_layers")}
    depths |= {"attention_resolutions": [16, 8]} if name == "sr3" else {}
    if name in ("gpt2_universal", "gpt2_act"):
        with pytest.raises(UserError, match="the network only 1 with pattern CS: use a shorter stack"):
            make(name, STACK, pattern, network=depths)
        return
    backbone = make(name, STACK, pattern, network=depths)
    tested = [backbone.get_submodule(path) for path, slot in backbone.attention_layers() if str(slot) == pattern]
    kinds = [type(slot).__name__ for slot in tested]
    assert kinds == (["ABCAttention", STACK] * len(kinds))[: len(kinds)]
    LOSSES[NETWORKS[name][0]][0](backbone).backward()
    assert all(parameter.grad is not None for slot in tested for parameter in slot.parameters())


LEARNING = [(name, pattern, attention, {}) for name, pattern in SLOTS for attention in ("vanilla", "abc")]
LEARNING += [(name, pattern, "vanilla", network) for name, pattern, network in NETWORKS_OF_EACH_KIND if network]


@pytest.mark.parametrize(("name", "pattern", "attention", "network"), LEARNING)
def test_thirty_steps_lower_the_loss_and_move_every_weight(
    name: str, pattern: str, attention: str, network: dict[str, Any]
) -> None:
    backbone = make(name, attention, pattern, network=network)
    start = {key: parameter.clone() for key, parameter in backbone.named_parameters()}
    found = losses(backbone, LOSSES[NETWORKS[name][0]][0], enough=0.85)
    assert found[-1] < 0.85 * found[0]
    still = [key for key, parameter in backbone.named_parameters() if torch.equal(parameter, start[key])]
    assert [key for key in still if not re.search(UNUSED.get(name, "^$"), key)] == []


@pytest.mark.parametrize(
    ("name", "pattern", "network"), [case for case in NETWORKS_OF_EACH_KIND if case[0] != "gpt2_reversible"]
)
def test_recomputed_activations_give_the_same_gradients(name: str, pattern: str, network: dict[str, Any]) -> None:
    """Dropout included; each attention layer runs once more in the backward pass, and once without gradients."""
    backbone, loss = make(name, "abc", pattern, network=network), LOSSES[NETWORKS[name][0]][0]
    plain, calls = gradients(backbone, loss), []
    for path, _ in backbone.attention_layers():
        backbone.get_submodule(path).register_forward_pre_hook(lambda module, *_: calls.append(module))
    with torch.no_grad():
        loss(backbone)
    once = len(calls)
    assert same_gradients(backbone, loss, plain) < 1e-5
    assert len(calls) == 3 * once > 0


@pytest.mark.parametrize(("name", "pattern", "network"), NETWORKS_OF_EACH_KIND)
def test_bfloat16_by_autocast(name: str, pattern: str, network: dict[str, Any]) -> None:
    backbone, loss = make(name, "vanilla", pattern, network=network).eval(), LOSSES[NETWORKS[name][0]][0]
    exact = loss(backbone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = loss(backbone)
    low.backward()
    assert low.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(p.grad.isfinite().all() for p in backbone.parameters() if p.grad is not None)


NOT_COMPILED = ("gpt2_act", "roberta_classifier", "transformer_tts", "roberta_funnel_classifier")
"""The loss of the first is collected outside; the others have the layers of another."""
COMPILED = [  # plain layers also recompute their activations
    (name, pattern, network, not network and "_" not in name)
    for name, pattern, network in NETWORKS_OF_EACH_KIND
    if name.startswith(("gpt2", "roberta", "transformer")) and name not in NOT_COMPILED
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern", "network", "saves"), COMPILED)
def test_compiles_to_one_graph(name: str, pattern: str, network: dict[str, Any], saves: bool) -> None:
    options = {"dropout": 0.0, "attention_dropout": 0.0, "checkpoint_activations": saves, **network}
    backbone, loss = make(name, "vanilla", pattern, network=options).train(), LOSSES[NETWORKS[name][0]][0]
    torch.compiler.reset()
    results = []
    for call in (backbone, torch.compile(backbone, backend="aot_eager", fullgraph=True)):
        value = loss(call)
        results.append([value, *torch.autograd.grad(value, list(backbone.parameters()))])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_every_backbone_has_its_sizes() -> None:
    for preset in ("mini", "smoke"):
        assert {path.parent.name for path in SIZES.glob(f"*/{preset}.yaml")} == set(NETWORKS)


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("fastspeech2", "NS", {"pitch_range": (1.0, 1.0)}, "pitch_range"),
    ("fastspeech2", "NS", {"energy_range": (2.0, -1.0)}, "energy_range"),
    ("fastspeech2", "NS", {"kernel_size": 4}, "kernel_size"),
    (
        "gpt2",
        "CS",
        {"positions": "sinusoid"},
        r"positions: Input should be 'sinusoidal', 'learned' or 'none'",
    ),
    ("gpt2_reversible", "CS", {"residual": "gtrxl"}, "cannot invert a gate: .* residual=plain"),
    ("gpt2_reversible", "CS", {"checkpoint_activations": True}, "recomputes activations .*activations=false"),
    ("gpt2_reversible", "CS", {"feed_forward": "none"}, "alternates .* set feed_forward=plain or glu"),
    ("pointr", "NC", {"points_per_query": 5}, "5 must be a square number"),
    ("pointr", "NC", {"num_proxies": 21, "first_samples": 20}, "num_proxies 21 at most first_samples 20"),
    ("roberta", "NS", {"max_length": 0}, "max_length of at least 1"),
    ("sr3", "NS", {"image_size": 9}, "image_size 9 must be a multiple of"),
    ("sr3", "NS", {"norm_groups": 3}, "of norm_groups 3"),
]


@pytest.mark.parametrize(("name", "pattern", "options", "message"), REFUSED)
def test_options_are_refused(name: str, pattern: str, options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        build_backbone(name, pattern=pattern, **options)
